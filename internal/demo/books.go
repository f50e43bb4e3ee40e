package demo

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/topology"
)

const (
	enqueuedSQL pg.SQL = `SELECT message_id, min(type) FROM @schema@.demo_enqueued GROUP BY message_id`

	inboxSQL pg.SQL = `
SELECT c.queue, i.message::text FROM @schema@.inbox AS i JOIN @schema@.inbox_consumers AS c ON c.id = i.consumer`
)

// books are what the witnesses of a run have seen, when it is over.
type books struct {
	// enqueued is the type by message id; published counts copies.
	enqueued  map[string]string
	published map[string]int
	// handled and dead are message ids by work queue.
	handled, dead map[string]map[string]bool
	// kinds counts the dead letters by queue, type and error class.
	kinds map[DeadLine]int
	// waiting rows of the outbox; on their way in the queues, by name.
	waiting int
	onWay   map[string]int
	// Figures of the consumers, by queue.
	retries, repeats, buried, redriven map[string]int
	shop                               *shop.Account
}

func (r *run) readBooks(ctx context.Context) (*books, error) {
	b := &books{
		enqueued: map[string]string{}, handled: map[string]map[string]bool{}, dead: map[string]map[string]bool{},
		kinds: map[DeadLine]int{}, onWay: map[string]int{}, redriven: r.redriven,
		retries: r.counted("surefoot_consumer_retries_total", ""), buried: r.counted("surefoot_consumer_dead_lettered_total", ""),
		repeats: r.counted("surefoot_consumer_handled_total", "duplicate"),
	}
	for _, read := range []func(context.Context, *books) error{r.readRows, r.readLetters, r.readDepths, r.readWitness} {
		if err := read(ctx, b); err != nil {
			return nil, err
		}
	}
	var err error
	b.shop, err = r.shop.Account(ctx, r.client, r.stock)
	return b, err
}

func (r *run) readRows(ctx context.Context, b *books) error {
	if err := r.pool.QueryRow(ctx, waitingSQL.In(r.o.Prefix)).Scan(&b.waiting); err != nil {
		return fmt.Errorf("read outbox: %w", err)
	}
	pairs := func(sql pg.SQL, each func(a, b string)) error {
		rows, err := r.pool.Query(ctx, sql.In(r.o.Prefix))
		if err != nil {
			return err
		}
		var first, second string
		_, err = pgx.ForEachRow(rows, []any{&first, &second}, func() error { each(first, second); return nil })
		return err
	}
	if err := pairs(enqueuedSQL, func(id, eventType string) { b.enqueued[id] = eventType }); err != nil {
		return fmt.Errorf("read what was enqueued: %w", err)
	}
	if err := pairs(inboxSQL, func(queue, id string) { put(b.handled, queue, id) }); err != nil {
		return fmt.Errorf("read inbox: %w", err)
	}
	return nil
}

func put(sets map[string]map[string]bool, queue, id string) {
	if sets[queue] == nil {
		sets[queue] = map[string]bool{}
	}
	sets[queue][id] = true
}

func (r *run) readLetters(ctx context.Context, b *books) error {
	for _, q := range r.spec.Queues {
		letters, err := r.letters.Show(ctx, deadletter.ShowRequest{Queue: q.Name, Limit: deadletter.MaxShow, Preview: -1, Who: r.o.Who})
		if err != nil {
			return fmt.Errorf("look at %s: %w", q.DLQ(), err)
		}
		for _, letter := range letters {
			put(b.dead, q.Name, letter.ID)
			b.kinds[DeadLine{Queue: q.DLQ(), Type: letter.Type, ErrorClass: letter.ErrorClass}]++
		}
	}
	return nil
}

// readDepths reads what lies in queues where nothing should be at the end.
func (r *run) readDepths(ctx context.Context, b *books) error {
	for name, q := range topology.Desired(r.spec.WithDefaults()).Queues {
		if q.Role == topology.RoleDeadLetters {
			continue
		}
		ready, _, err := r.conn.Inspect(ctx, name)
		if err != nil {
			return err
		}
		if ready > 0 {
			b.onWay[name] = ready
		}
	}
	return nil
}

// readWitness waits a little for the last copies, which come on a connection of their own.
func (r *run) readWitness(ctx context.Context, b *books) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		b.published, _ = r.witness.seen()
		if !slices.ContainsFunc(slices.Collect(maps.Keys(b.enqueued)), func(id string) bool { return b.published[id] == 0 }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil // what is missing is a violation
		case <-ticker.C:
		}
	}
}

func (r *run) account(ctx context.Context) (*Account, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	b, err := r.readBooks(ctx)
	if err != nil {
		return nil, err
	}
	a := &Account{Lines: r.lines, Violations: []string{}}
	a.addOrders(r.orders, b.shop)
	a.addEvents(b, r.spec)
	a.addQueues(b, r.spec)
	a.checkStory(r, b)
	return a, nil
}
