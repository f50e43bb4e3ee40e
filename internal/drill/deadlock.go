package drill

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

func deadlock() Drill {
	return Drill{
		Name: "deadlock", Section: SectionQueues,
		Proves: "a transaction that the database chose to fail runs again at once, and reaches the retry queue only when that does not help",
		Settings: []Setting{
			length("delay", 300*time.Millisecond, 100*time.Millisecond, 10*time.Second, "delay of the retry queue (30s by default)"),
		},
		Arms: []Arm{
			{Name: Before, Does: "a deadlock is a failure like any other", play: func(ctx context.Context, s *stage) error { return deadlocks(ctx, s, false) }},
			{Name: After, Does: "up to three tries in the process, from 50 ms", play: func(ctx context.Context, s *stage) error { return deadlocks(ctx, s, true) }},
		},
		checks: func(Settings) []Check {
			return append(
				expect(Before, "real_deadlocks", atLeast(1), "visits_to_retry_queue_of_the_pair", atLeast(1), "effects", 3),
				expect(After, "real_deadlocks", atLeast(1), "visits_to_retry_queue_of_the_pair", 0, "database_retries_logged", atLeast(1), "runs_of_the_stubborn", stubbornFailures+1,
					"visits_to_retry_queue_of_the_stubborn", 1, "effects", 3, "dead_letters", 0)...)
		},
	}
}

const (
	stockTable pg.SQL = `CREATE TABLE @schema@.drill_stock (sku text PRIMARY KEY, available integer NOT NULL); INSERT INTO @schema@.drill_stock VALUES ('a', 10), ('b', 10)`
	stockTake  pg.SQL = `UPDATE @schema@.drill_stock SET available = available - 1 WHERE sku = $1`
	deadlockDo pg.SQL = `DO $$ BEGIN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01'; END $$`
)

// crossing are two handlers that take the same rows in opposite order, and wait for each other once.
type crossing struct {
	stage *stage

	mu        sync.Mutex
	deadlocks int
	stubborn  int // runs of the message that always fails
	met       map[string]bool
	both      chan struct{} // closed when each has its first row
}

const stubbornKey = "stubborn"

// stubbornFailures are deadlocks in a row, one for each try in the process.
const stubbornFailures = 3

func (c *crossing) handle(ctx context.Context, tx pgx.Tx, m message.Message) error {
	if m.Key == stubbornKey {
		return c.handleStubborn(ctx, tx, m)
	}
	first, second := "a", "b"
	if m.Key == "ba" {
		first, second = second, first
	}
	if _, err := tx.Exec(ctx, stockTake.In(c.stage.schema), first); err != nil {
		return c.count(err)
	}
	if err := c.meet(ctx, m.Key); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, stockTake.In(c.stage.schema), second); err != nil {
		return c.count(err)
	}
	return c.stage.effect(ctx, tx, m)
}

// meet waits until both have their first row, in their first run.
func (c *crossing) meet(ctx context.Context, key string) error {
	c.mu.Lock()
	again := c.met[key]
	c.met[key] = true
	if len(c.met) == 2 && !again {
		close(c.both)
	}
	c.mu.Unlock()
	if again {
		return nil
	}
	select {
	case <-c.both:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *crossing) count(err error) error {
	if resilience.SQLStateOf(err) == "40P01" {
		c.mu.Lock()
		c.deadlocks++
		c.mu.Unlock()
	}
	return err
}

// handleStubborn meets a deadlock in its first runs.
func (c *crossing) handleStubborn(ctx context.Context, tx pgx.Tx, m message.Message) error {
	c.mu.Lock()
	c.stubborn++
	fails := c.stubborn <= stubbornFailures
	c.mu.Unlock()
	if fails {
		_, err := tx.Exec(ctx, string(deadlockDo))
		return err
	}
	return c.stage.effect(ctx, tx, m)
}

// deadlocks has two messages deadlock each other, and one meet deadlocks for too long.
func deadlocks(ctx context.Context, s *stage, inProcess bool) error {
	c := &crossing{stage: s, met: map[string]bool{}, both: make(chan struct{})}
	handler := c.handle
	if !inProcess { // the mark says that it is a failure that passes, and no more
		handler = func(ctx context.Context, tx pgx.Tx, m message.Message) error {
			return resilience.RetryAfter(c.handle(ctx, tx, m), 0)
		}
	}
	l, err := s.line(ctx, work("drill.orders", 5, s.set.Duration("delay")), handler, nil)
	if err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, stockTable.In(s.schema), pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	if err := s.enqueue(ctx, newEvent("drill.order", "ab", nil), newEvent("drill.order", "ba", nil)); err != nil {
		return err
	}
	if err := l.effects(ctx, 2); err != nil {
		return err
	}
	pair := l.retried()
	s.observe("real_deadlocks", c.deadlocks)
	s.observe("visits_to_retry_queue_of_the_pair", pair)
	if err := s.enqueue(ctx, newEvent("drill.order", stubbornKey, nil)); err != nil {
		return err
	}
	if err := l.effects(ctx, 3); err != nil {
		return err
	}
	s.observe("database_retries_logged", s.logs.count("database retry", "sqlstate", "40P01"))
	s.observe("runs_of_the_stubborn", c.stubborn)
	s.observe("visits_to_retry_queue_of_the_stubborn", l.retried()-pair)
	dead, err := ready(ctx, l.conn, l.queue.DLQ())
	s.observe("dead_letters", dead)
	return errors.Join(err, s.observeCount(ctx, "effects", effectsCount))
}
