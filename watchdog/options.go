package watchdog

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/outbox"
)

// Options of a [Watchdog].
type Options struct {
	// Pool of the database that holds both the watched tables and Surefoot's schema. One connection is used at
	// a time. Required; the caller closes it after Run has returned.
	Pool *pgxpool.Pool
	// Schema that `surefoot migrate up` made. Default: "surefoot".
	Schema string
	// Rules are what is watched. Required, with names of their own.
	Rules []Rule
	// Interval is the time from the end of one cycle to the start of the next. A cycle that left overdue rows
	// behind, because there were too many, is followed by the next one at once. Default: 60 s.
	Interval time.Duration
	// Batch is the most rows of one transaction. Default: 100.
	Batch int
	// MaxBatches is the most transactions that one rule gets in a cycle, before the next rule has its turn.
	// Default: 100.
	MaxBatches int
	// Backoff is the wait before a failed row's second try, doubled for each further one. Default: 1 min.
	Backoff time.Duration
	// MaxBackoff bounds that wait. Default: 1 h.
	MaxBackoff time.Duration
	// LockTimeout bounds the wait for a lock that a change meets (a trigger that touches other rows, an ALTER
	// TABLE); the row then counts as failed. Default: 2 s.
	LockTimeout time.Duration
	// DrainTimeout is how long a transaction in flight may go on after the context of Run ended; then it is
	// rolled back. Default: 5 s.
	DrainTimeout time.Duration
	// Logger takes warn "saga cancelled" for each row that was changed and error "watchdog error" for failures.
	// Default: nothing is logged.
	Logger zerolog.Logger
	// Registerer takes the metrics. Default: none are exported.
	Registerer prometheus.Registerer
	// Ready is told after each cycle: nil, or why the cycle failed. Default: nobody is told.
	Ready func(error)
}

// Watchdog watches. Make one with [New]. Its methods are safe for concurrent use.
type Watchdog struct {
	options Options
	outbox  *outbox.Outbox
	metrics *metrics
}

// New checks the options, with every fault in one error, and returns a watchdog. It does no I/O: whether the
// tables and columns exist is found out by [Watchdog.Run], [Watchdog.Once] and [Watchdog.Check].
func New(o Options) (*Watchdog, error) {
	faults := []error{pg.CheckSchema(o.Schema)}
	if o.Pool == nil {
		faults = append(faults, errors.New("the Pool is missing"))
	}
	if len(o.Rules) == 0 {
		faults = append(faults, errors.New("the Rules are missing: nothing would be watched"))
	}
	names := map[string]bool{}
	for _, rule := range o.Rules {
		if names[rule.Name] {
			faults = append(faults, fmt.Errorf("rule %q is there twice", rule.Name))
		}
		names[rule.Name] = true
		faults = append(faults, rule.validate())
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("watchdog: %w", err)
	}
	box, err := outbox.New(outbox.Options{Schema: o.Schema})
	if err != nil {
		return nil, fmt.Errorf("watchdog: %w", err)
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("watchdog: register metrics: %w", err)
	}
	return &Watchdog{options: o.withDefaults(), outbox: box, metrics: m}, nil
}

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&o.Interval, time.Minute},
		{&o.Backoff, time.Minute},
		{&o.MaxBackoff, time.Hour},
		{&o.LockTimeout, 2 * time.Second},
		{&o.DrainTimeout, 5 * time.Second},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if o.Batch <= 0 {
		o.Batch = 100
	}
	if o.MaxBatches <= 0 {
		o.MaxBatches = 100
	}
	if o.Ready == nil {
		o.Ready = func(error) {}
	}
	return o
}
