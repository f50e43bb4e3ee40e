package bench

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	effectsSQL pg.SQL = `CREATE TABLE @schema@.effects (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text NOT NULL)`
	countSQL   pg.SQL = `SELECT count(*), count(DISTINCT id) FROM @schema@.effects`
)

// deepPrefetch is the prefetch at which memory is measured.
const deepPrefetch = 1000

// Batches of 100: while two run, others fill.
const (
	batchPrefetch = 400
	batchWorkers  = 2
)

// consumption is one arm of the consumer's benchmark.
type consumption struct {
	name     string
	mode     consumeMode
	prefetch int
	workers  int
	times    int // as many rows as the slow ones, so that it lasts as long
}

func (b *Bench) consume(ctx context.Context, s *stage, r *Report) error {
	r.Load = Load{Rows: b.o.Rows, Bytes: b.o.Bytes, Keys: b.o.Keys, Prefetch: b.o.Prefetch, Workers: b.o.Workers, Rounds: b.o.Rounds}
	var turns []turn
	for _, c := range []consumption{
		{"bare with row", modeBareRow, b.o.Prefetch, b.o.Workers, 1},
		{"inbox", modeInbox, b.o.Prefetch, b.o.Workers, 1},
		{"batch", modeBatch, max(b.o.Prefetch, batchPrefetch), batchWorkers, 4},
		{"bare", modeBare, b.o.Prefetch, b.o.Workers, 5},
		{"plain", modePlain, b.o.Prefetch, b.o.Workers, 5},
		{"inbox, prefetch 1000", modeInbox, deepPrefetch, b.o.Workers, 1},
	} {
		turns = append(turns, turn{c.name, func(ctx context.Context, round int) (Sample, error) { return s.consumeOnce(ctx, c, round) }})
	}
	if err := s.take(ctx, r, turns, nil); err != nil {
		return err
	}
	r.compare("inbox", "bare with row", atLeast(0.9))
	r.compare("batch", "bare with row", atLeast(4))
	r.compare("plain", "bare", atLeast(0.9))
	r.figure("peak memory, inbox, prefetch 1000", "MiB", r.amounts(Memory, "inbox, prefetch 1000"), atMost(goalMemory))
	r.figure("peak memory, batch", "MiB", r.amounts(Memory, "batch"), nil)
	return nil
}

// consumeOnce lets one consumer work off a full queue.
func (s *stage) consumeOnce(ctx context.Context, c consumption, round int) (Sample, error) {
	rows := s.o.Rows * c.times
	schema, err := s.prepareConsume(ctx, "consume", c.mode.transactional(), rows)
	if err != nil {
		return Sample{}, err
	}
	before := s.meter.read()
	p, err := s.start(ctx, s.arm(schema, armConsume, consumeTask{
		Mode: c.mode, Queue: s.work(), Rows: rows, Prefetch: c.prefetch, Workers: c.workers,
	}))
	if err != nil {
		return Sample{}, err
	}
	defer p.kill()
	done, err := result(ctx, p)
	if err != nil {
		return Sample{}, err
	}
	used := s.meter.read().since(before)
	sample := Sample{Round: round, Rows: done.Rows, Seconds: done.Seconds, Rate: float64(done.Rows) / done.Seconds}
	sample.spent(p, used, rows)
	return sample, s.accountEffects(ctx, c, schema, rows, done)
}

// prepareConsume makes the tables and a full queue.
func (s *stage) prepareConsume(ctx context.Context, arm string, ids bool, rows int) (schema string, err error) {
	if schema, err = s.freshSchema(ctx, arm); err != nil {
		return "", err
	}
	if _, err := s.pool.Exec(ctx, effectsSQL.In(schema)); err != nil {
		return "", err
	}
	if err := s.freshWork(ctx); err != nil {
		return "", err
	}
	return schema, s.fillQueue(ctx, s.work().Name, rows, func(n int) (amqp.Publishing, error) {
		m := message.Message{Type: routingKey, Key: fmt.Sprint("k", n%s.o.Keys), Payload: s.body}
		if ids {
			m.ID = message.NewID()
		}
		return m.Publishing()
	})
}

// accountEffects wants every message handled, and one effect of each. Acknowledgements that the broker had not carried out when
// the connection was closed may be lost, at most the prefetch.
func (s *stage) accountEffects(ctx context.Context, c consumption, schema string, rows int, done outcome) error {
	left, err := s.depth(ctx, s.work().Name)
	if err != nil {
		return err
	}
	if left > c.prefetch || done.Rows != rows {
		return fmt.Errorf("%d of %d messages were handled, and %d are in the queue again", done.Rows, rows, left)
	}
	if !c.mode.transactional() {
		return nil
	}
	var effects, distinct int
	if err := s.pool.QueryRow(ctx, countSQL.In(schema)).Scan(&effects, &distinct); err != nil {
		return err
	}
	if effects != rows || distinct != rows {
		return fmt.Errorf("%d effects, of %d messages, where %d were sent", effects, distinct, rows)
	}
	return nil
}
