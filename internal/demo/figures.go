package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/topology"
)

const (
	waitingSQL pg.SQL = `SELECT (SELECT count(*) FROM @schema@.outbox) + (SELECT count(*) FROM @schema@.outbox_parked)`
	typesSQL   pg.SQL = `SELECT type, count(DISTINCT message_id) FROM @schema@.demo_enqueued GROUP BY type`
	handledSQL pg.SQL = `SELECT count(*) FROM @schema@.inbox`
)

// figures tell how far a run is. They are read one after the other: only at rest do they fit together.
type figures struct {
	orders, pending int
	// waiting rows of the outbox, the parked ones included.
	waiting                                    int
	enqueued, published, due, handled, retries int
	// dead letters by work queue.
	dead map[string]int
}

func (r *run) figures(ctx context.Context) (figures, error) {
	f := figures{dead: map[string]int{}}
	account, err := r.shop.Account(ctx, r.client, nil)
	if err != nil {
		return f, err
	}
	f.orders, f.pending = len(account.Orders), account.Pending
	if err := r.pool.QueryRow(ctx, waitingSQL.In(r.o.Prefix)).Scan(&f.waiting); err != nil {
		return f, fmt.Errorf("count the outbox: %w", err)
	}
	if err := r.countEvents(ctx, &f); err != nil {
		return f, fmt.Errorf("count events: %w", err)
	}
	for _, q := range r.spec.Queues {
		if f.dead[q.Name], _, err = r.conn.Inspect(ctx, q.DLQ()); err != nil {
			return f, err
		}
	}
	_, f.published = r.witness.seen()
	for _, n := range r.counted("surefoot_consumer_retries_total", "") {
		f.retries += n
	}
	return f, nil
}

func (r *run) countEvents(ctx context.Context, f *figures) error {
	rows, err := r.pool.Query(ctx, typesSQL.In(r.o.Prefix))
	if err != nil {
		return err
	}
	var eventType string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&eventType, &n}, func() error {
		f.enqueued += n
		f.due += n * len(queuesOf(r.spec, eventType))
		return nil
	})
	if err != nil {
		return err
	}
	return r.pool.QueryRow(ctx, handledSQL.In(r.o.Prefix)).Scan(&f.handled)
}

// queuesOf are the queues that an event type is due in. The shop binds by whole types.
func queuesOf(spec topology.Spec, eventType string) []string {
	var names []string
	for _, q := range spec.Queues {
		if slices.Contains(q.Bindings, eventType) {
			names = append(names, q.Name)
		}
	}
	return names
}

func (f figures) letters() int {
	sum := 0
	for _, n := range f.dead {
		sum += n
	}
	return sum
}

func (f figures) deadText(spec topology.Spec) string {
	var texts []string
	for _, q := range spec.Queues {
		if n := f.dead[q.Name]; n > 0 {
			texts = append(texts, fmt.Sprintf("%d in %s", n, q.DLQ()))
		}
	}
	if len(texts) == 0 {
		return "none"
	}
	return strings.Join(texts, ", ")
}

// counted reads a counter of the consumers, by queue; result, unless empty, is the label to count.
func (r *run) counted(name, result string) map[string]int {
	counts := map[string]int{}
	families, err := r.metrics.Gather()
	if err != nil {
		return counts // only figures for people: the account does not rest on them
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			queue, matches := "", result == ""
			for _, label := range m.GetLabel() {
				switch label.GetName() {
				case "queue":
					queue = label.GetValue()
				case "result":
					matches = matches || label.GetValue() == result
				}
			}
			if matches {
				counts[queue] += int(m.GetCounter().GetValue())
			}
		}
	}
	return counts
}
