package console

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// Times of asking.
const (
	askTimeout  = 5 * time.Second
	maxRest     = 15 * time.Second // after a slow answer
	flowsEvery  = 5 * time.Second  // as often as the broker's statistics change
	groupsEvery = 5                // intervals
	slowEvery   = 8
	sagasEvery  = 15 // reads users' tables
	maxShown    = 50 // runs of the overview
	maxGroups   = 500
)

// fact is what was learnt at some time, and what has kept from learning more since.
type fact[T any] struct {
	Value T
	At    time.Time // zero: never
	Err   error     // of the last try; nil: it went well
}

// Known says that there is a value, however old.
func (f fact[T]) Known() bool { return !f.At.IsZero() }

// Fresh says that the last try went well.
func (f fact[T]) Fresh() bool { return f.Known() && f.Err == nil }

// tableCounts are the server's counters of rows that came and went since its statistics began.
type tableCounts struct{ Enqueued, Left, Handled int64 }

// depth is what lies in a queue.
type depth struct {
	Ready     int
	Consumers int
	Missing   bool
}

// relayFact is a relay that is alive, and whether it could publish, as far as it knows.
type relayFact struct {
	Name string
	Able bool
}

// brokerFacts are by queue, of all queues that belong to the topology.
type brokerFacts struct{ Depths map[string]depth }

// groupFacts are the index of dead letters.
type groupFacts struct {
	Groups  []deadletter.FailureGroup
	Scanned []deadletter.Scanned
}

// facts are everything that is known at one moment.
type facts struct {
	Outbox   fact[outbox.Summary]
	Tables   fact[tableCounts]
	Broker   fact[brokerFacts]
	Flows    fact[map[string]rabbit.Flow]
	Queues   fact[map[string]consumer.QueueState]
	Groups   fact[groupFacts]
	Runs     fact[[]deadletter.Run]
	Circuits fact[[]policy.Snapshot]
	Overdue  fact[map[string]int] // sagas by rule
	Relays   fact[[]relayFact]
}

// known holds the facts. The zero value knows nothing; safe for concurrent use.
type known struct {
	mu    sync.Mutex
	facts facts
}

// get returns a copy; what it points to is never changed.
func (k *known) get() facts {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.facts
}

// setGroups takes what a page has read anyway.
func (k *known) setGroups(g groupFacts) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.facts.Groups = fact[groupFacts]{Value: g, At: time.Now()}
}

// learn asks for one fact and keeps what was known if that fails.
func learn[T any](ctx context.Context, k *known, of func(*facts) *fact[T], ask func(context.Context) (T, error)) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	value, err := ask(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	f := of(&k.facts)
	if f.Err = err; err == nil {
		*f = fact[T]{Value: value, At: time.Now()}
	}
}

const tablesSQL pg.SQL = `
SELECT coalesce(sum(n_tup_ins) FILTER (WHERE relname = 'outbox'), 0)::bigint, coalesce(sum(n_tup_del) FILTER (WHERE relname = 'outbox'), 0)::bigint,
       coalesce(sum(n_tup_ins) FILTER (WHERE relname = 'inbox'), 0)::bigint
FROM pg_stat_user_tables WHERE schemaname = $1 AND relname IN ('outbox', 'inbox')`

// unfitError says that the database answers, and not with what this program knows.
type unfitError struct{ error }

// Unwrap returns the cause.
func (e unfitError) Unwrap() error { return e.error }

// summary says of a schema that is missing, older or newer what to do.
func summary(ctx context.Context, o Options) (outbox.Summary, error) {
	s, err := outbox.Summarize(ctx, o.Pool, o.Schema)
	if _, answered := errors.AsType[*pgconn.PgError](err); err == nil || !answered || pg.IsUnavailable(err) {
		return s, err
	}
	if unfit := pg.CheckVersion(ctx, o.Pool, o.Schema); unfit != nil {
		err = unfit
	}
	return s, unfitError{err}
}

const relaysSQL pg.SQL = `
SELECT name, able_since IS NOT NULL FROM @schema@.outbox_members WHERE expires_at > clock_timestamp() ORDER BY name LIMIT 100`

func relays(ctx context.Context, o Options) ([]relayFact, error) {
	rows, _ := o.Pool.Query(ctx, relaysSQL.In(o.Schema)) // its error is that of the rows
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[relayFact])
	if err != nil {
		return nil, fmt.Errorf("list relays: %w", err)
	}
	return list, nil
}

// rest is how long an asker waits after an answer that took so long: ten times that, so that asking is no burden, but not so long that figures are of
// no use.
func rest(interval, took time.Duration) time.Duration { return max(interval, min(10*took, maxRest)) }

// ask starts an asker for each kind of fact, and the ticks.
func (c *Console) ask(ctx context.Context, working *sync.WaitGroup) {
	o, k := c.opts, &c.known
	every := func(interval time.Duration, once func(context.Context)) {
		working.Go(func() {
			defer telemetry.FatalOnPanic(o.Logger)
			for ctx.Err() == nil {
				began := time.Now()
				once(ctx)
				pause.For(ctx, rest(interval, time.Since(began)))
			}
		})
	}
	every(o.Interval, func(ctx context.Context) {
		learn(ctx, k, func(f *facts) *fact[outbox.Summary] { return &f.Outbox }, func(ctx context.Context) (outbox.Summary, error) {
			return summary(ctx, o)
		})
		learn(ctx, k, func(f *facts) *fact[tableCounts] { return &f.Tables }, func(ctx context.Context) (t tableCounts, err error) {
			err = o.Pool.QueryRow(ctx, tablesSQL.In(o.Schema), o.Schema).Scan(&t.Enqueued, &t.Left, &t.Handled)
			return t, err
		})
		learn(ctx, k, func(f *facts) *fact[[]relayFact] { return &f.Relays }, func(ctx context.Context) ([]relayFact, error) { return relays(ctx, o) })
		learn(ctx, k, func(f *facts) *fact[[]deadletter.Run] { return &f.Runs }, func(ctx context.Context) ([]deadletter.Run, error) {
			runs, err := c.letters.Runs(ctx, "", false, maxShown)
			return slices.DeleteFunc(runs, func(r deadletter.Run) bool { return ended(r.State) }), err
		})
	})
	every(groupsEvery*o.Interval, func(ctx context.Context) {
		learn(ctx, k, func(f *facts) *fact[groupFacts] { return &f.Groups }, func(ctx context.Context) (g groupFacts, err error) {
			g.Groups, g.Scanned, err = c.letters.Groups(ctx, deadletter.GroupsRequest{Limit: maxGroups})
			return g, err
		})
	})
	every(flowsEvery, func(ctx context.Context) {
		learn(ctx, k, func(f *facts) *fact[map[string]rabbit.Flow] { return &f.Flows }, c.flows)
	})
	every(slowEvery*o.Interval, func(ctx context.Context) {
		learn(ctx, k, func(f *facts) *fact[[]policy.Snapshot] { return &f.Circuits }, func(ctx context.Context) ([]policy.Snapshot, error) {
			return policy.Snapshots(ctx, o.Pool, o.Schema)
		})
	})
	every(sagasEvery*o.Interval, func(ctx context.Context) {
		learn(ctx, k, func(f *facts) *fact[map[string]int] { return &f.Overdue }, c.overdue)
	})
	every(o.Interval, func(ctx context.Context) {
		learn(ctx, k, func(f *facts) *fact[map[string]consumer.QueueState] { return &f.Queues }, func(ctx context.Context) (map[string]consumer.QueueState, error) {
			return queueStates(ctx, o)
		})
	})
	working.Go(func() {
		defer telemetry.FatalOnPanic(o.Logger)
		c.watchBroker(ctx)
	})
	every(o.Interval, func(context.Context) {
		f := k.get()
		c.history.add(time.Now(), &f, c.rows(&f))
		c.hub.tick()
	})
}

func queueStates(ctx context.Context, o Options) (map[string]consumer.QueueState, error) {
	list, err := consumer.Queues(ctx, o.Pool, o.Schema, "")
	if err != nil {
		return nil, err
	}
	states := make(map[string]consumer.QueueState, len(list))
	for _, q := range list {
		states[q.Queue] = q
	}
	return states, nil
}

// flows keeps those of the topology: a vhost may hold many others.
func (c *Console) flows(ctx context.Context) (map[string]rabbit.Flow, error) {
	list, err := c.management.Flows(ctx)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, name := range c.queueNames() {
		names[name] = true
	}
	flows := map[string]rabbit.Flow{}
	for _, f := range list {
		if names[f.Name] {
			flows[f.Name] = f
		}
	}
	c.ages.flowed(time.Now(), c.queues, flows)
	return flows, nil
}

// queueNames are all queues of the topology: work queues, retry tiers, dead letters.
func (c *Console) queueNames() (names []string) {
	for _, q := range c.queues {
		names = append(names, q.Name, q.DLQ())
		for _, tier := range q.Tiers() {
			names = append(names, tier.Queue)
		}
	}
	return names
}

// watchBroker keeps a connection and counts, exactly, what is ready in each queue.
func (c *Console) watchBroker(ctx context.Context) {
	o := c.opts
	_ = rabbit.Supervise(ctx, rabbit.SuperviseOptions{ // New has checked the options
		Options:    rabbit.Options{URL: o.AMQPURL, Role: "console", Host: o.Host, Version: o.Version, Logger: o.Logger},
		BackoffMax: 5 * time.Second,
		OnState: func(reason error) {
			c.known.mu.Lock()
			defer c.known.mu.Unlock()
			c.known.facts.Broker.Err = reason
		},
	}, func(ctx context.Context, conn *rabbit.Conn) error {
		for {
			began := time.Now()
			depths, err := c.depths(ctx, conn)
			if err != nil {
				return err
			}
			c.known.mu.Lock()
			c.known.facts.Broker = fact[brokerFacts]{Value: brokerFacts{Depths: depths}, At: time.Now()}
			c.known.mu.Unlock()
			if !pause.For(ctx, rest(o.Interval, time.Since(began))) {
				return nil
			}
			if err := conn.Err(); err != nil {
				return err
			}
		}
	})
}

func (c *Console) depths(ctx context.Context, conn *rabbit.Conn) (map[string]depth, error) {
	depths := map[string]depth{}
	for _, name := range c.queueNames() {
		ready, consumers, err := conn.Inspect(ctx, name)
		switch {
		case rabbit.Code(err) == amqp.NotFound:
			depths[name] = depth{Missing: true}
		case conn.Err() != nil || ctx.Err() != nil:
			return nil, errors.Join(err, conn.Err())
		case err == nil:
			depths[name] = depth{Ready: ready, Consumers: consumers}
		}
	}
	c.ages.counted(time.Now(), depths)
	return depths, nil
}

// ended says whether a run moves nothing any more.
func ended(s deadletter.RunState) bool {
	return s == deadletter.RunDone || s == deadletter.RunCancelled
}

// sortedKeys are in order, so that pages do not jump.
func sortedKeys[V any](of map[string]V) []string { return slices.Sorted(maps.Keys(of)) }
