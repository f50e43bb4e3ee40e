package reconcile

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

// Options of a [Reconciler].
type Options struct {
	// Pool of the database that holds both the suspects' tables and Surefoot's schema. Required; the caller closes it after Run has
	// returned.
	Pool *pgxpool.Pool
	// Schema that `surefoot migrate up` made. Default: "surefoot".
	Schema string
	// Rules are what is reconciled. Required, with names of their own.
	Rules []Rule
	// Interval is the time from the end of one cycle of a rule to the start of its next, where the rule has none of its own. A cycle
	// comes earlier when a suspect without an answer is due. Default: 1 h.
	Interval time.Duration
	// Batch is the most suspects that are claimed at a time. Default: 100.
	Batch int
	// MaxBatches is the most claims of one cycle; what is left waits for the next one, which then follows at once. Default: 100.
	MaxBatches int
	// Concurrency is how many suspects of a rule are asked about at a time. Default: 10.
	Concurrency int
	// AskTimeout bounds one question, with all its tries. Default: 10 s.
	AskTimeout time.Duration
	// Backoff is the wait before a suspect without an answer is asked about again, doubled for each further time. Default: 1 min.
	Backoff time.Duration
	// MaxBackoff bounds that wait. Default: 1 h.
	MaxBackoff time.Duration
	// LockTimeout bounds the wait for a lock that a change meets. Default: 2 s.
	LockTimeout time.Duration
	// DrainTimeout is how long a change in flight may go on after the context of Run ended; then it is rolled back. Default: 5 s.
	DrainTimeout time.Duration
	// Host names this process in the runs. Default: "unknown".
	Host string
	// Logger takes error "<subject> discrepancy" for each row that was mended, warn "suspect unanswered", and error "reconcile error".
	// Default: nothing is logged.
	Logger zerolog.Logger
	// Registerer takes the metrics. Default: none are exported.
	Registerer prometheus.Registerer
	// Ready is told after each cycle: nil, or why cycles fail. An authority that is away is no reason. Default: nobody is told.
	Ready func(error)
}

// leaseMargin is what a claim lasts longer than its questions can take.
const leaseMargin = 30 * time.Second

// Reconciler reconciles. Make one with [New]. Its methods are safe for concurrent use.
type Reconciler struct {
	options Options
	outbox  *outbox.Outbox
	metrics *metrics
	health  health
}

// New checks the options, with every fault in one error, and returns a reconciler. It does no I/O: whether the tables and columns
// exist is found out by [Reconciler.Run], [Reconciler.Once] and [Reconciler.Check].
func New(o Options) (*Reconciler, error) {
	faults := []error{pg.CheckSchema(o.Schema)}
	if o.Pool == nil {
		faults = append(faults, errors.New("the Pool is missing"))
	}
	if len(o.Rules) == 0 {
		faults = append(faults, errors.New("the Rules are missing: nothing would be reconciled"))
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
		return nil, fmt.Errorf("reconcile: %w", err)
	}
	box, err := outbox.New(outbox.Options{Schema: o.Schema})
	if err != nil {
		return nil, fmt.Errorf("reconcile: %w", err)
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("reconcile: register metrics: %w", err)
	}
	o = o.withDefaults()
	return &Reconciler{options: o, outbox: box, metrics: m, health: health{ready: o.Ready}}, nil
}

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&o.Interval, time.Hour},
		{&o.AskTimeout, 10 * time.Second},
		{&o.Backoff, time.Minute},
		{&o.MaxBackoff, time.Hour},
		{&o.LockTimeout, 2 * time.Second},
		{&o.DrainTimeout, 5 * time.Second},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	for _, d := range []struct {
		field *int
		value int
	}{{&o.Batch, 100}, {&o.MaxBatches, 100}, {&o.Concurrency, 10}} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if o.Host == "" {
		o.Host = "unknown"
	}
	if o.Ready == nil {
		o.Ready = func(error) {}
	}
	return o
}

// interval of a rule.
func (o Options) interval(r Rule) time.Duration {
	if r.Interval > 0 {
		return r.Interval
	}
	return o.Interval
}

// lease is how long a claim holds: what its questions can take one after the other, and a margin for the changes.
func (o Options) lease() time.Duration {
	rounds := (o.Batch + o.Concurrency - 1) / o.Concurrency
	return time.Duration(rounds)*o.AskTimeout + leaseMargin
}
