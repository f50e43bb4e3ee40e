package deadletter

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/dlqindex"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// Options of the dead letters of one broker.
type Options struct {
	// Pool of the database with the locks and the audit. Required.
	Pool *pgxpool.Pool
	// Schema that holds Surefoot's tables. Default: "surefoot".
	Schema string
	// AMQPURL of the broker, or file:///path of a file that holds it and is read for each connection. Required.
	AMQPURL string
	// ManagementURL of the broker; without credentials it takes those of AMQPURL. Default: none; then only the queues in Queues are known, and
	// those are taken as safe to look at.
	ManagementURL string
	// TLS for amqps and https. Default: the system's authorities.
	TLS *tls.Config
	// Queues are the work queues of the configured topology. Default: none.
	Queues []Queue
	// Logger for what happened to each letter. Default: none is logged.
	Logger zerolog.Logger
	// Host and Version are part of the connections' names. Default: "unknown" and "dev".
	Host, Version string
	// Window is the most letters on their way: published and not yet gone from the dead-letter queue. A crash
	// leaves at most these twice. Default: 500.
	Window int
	// ReadAhead is the most bytes that the broker should send ahead, by the mean size of the letters that came. Default: 32 MiB.
	ReadAhead int
	// ConfirmTimeout is how long the broker may take to confirm before a run stops. Default: 30 s.
	ConfirmTimeout time.Duration
	// SessionLimit is how long letters are held before all are given back and received anew, well under the
	// broker's consumer timeout (30 minutes by default). Default: 10 minutes.
	SessionLimit time.Duration
	// Lease is how long the lock of a dead process is respected, and must be longer than the broker takes to
	// notice a dead connection (about 25 s). Default: 60 s.
	Lease time.Duration
	// HeadAge is how long List believes the age of the oldest letter while the queue has not become shorter.
	// Default: 1 minute.
	HeadAge time.Duration
}

// Queue is a work queue whose dead letters are looked after.
type Queue struct {
	// Name of the work queue, without ".dlq".
	Name string
	// Owner is the team in charge.
	Owner string
	// Runbook says what to do; often a URL.
	Runbook string
}

// DeadLetters reads and empties dead-letter queues. Safe for concurrent use.
type DeadLetters struct {
	opts       Options
	home       string // the vhost
	locks      locks
	index      *dlqindex.Store
	heads      heads
	management *rabbit.Management // nil: none
	restWave   int                // letters of one wave after the ramp
}

// New checks the options. It does not connect.
func New(opts Options) (*DeadLetters, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	home, err := rabbit.Vhost(opts.AMQPURL)
	if err != nil {
		return nil, fmt.Errorf("deadletter: AMQPURL: %w", err)
	}
	d := &DeadLetters{opts: opts, home: home, locks: newLocks(opts), index: dlqindex.New(opts.Pool, opts.Schema), restWave: restWave}
	if opts.ManagementURL == "" {
		return d, nil
	}
	d.management, err = rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: opts.AMQPURL, URL: opts.ManagementURL, TLS: opts.TLS})
	if err != nil {
		return nil, fmt.Errorf("deadletter: ManagementURL: %w", err)
	}
	return d, nil
}

func (o Options) withDefaults() Options {
	o.Schema = cmp.Or(o.Schema, pg.DefaultSchema)
	o.Host = cmp.Or(o.Host, "unknown")
	o.Version = cmp.Or(o.Version, "dev")
	o.Window = cmp.Or(o.Window, 500)
	o.ReadAhead = cmp.Or(o.ReadAhead, 32<<20)
	o.ConfirmTimeout = cmp.Or(o.ConfirmTimeout, 30*time.Second)
	o.SessionLimit = cmp.Or(o.SessionLimit, 10*time.Minute)
	o.Lease = cmp.Or(o.Lease, time.Minute)
	o.HeadAge = cmp.Or(o.HeadAge, time.Minute)
	return o
}

// origin is from where this process acts, for the audit.
func (o Options) origin() string { return "surefoot " + o.Version + " on " + o.Host }

func (o Options) validate() error {
	var faults []error
	if o.Pool == nil {
		faults = append(faults, errors.New("deadletter: Pool is missing; locks and audit need the database"))
	}
	if err := pg.CheckSchema(o.Schema); err != nil {
		faults = append(faults, fmt.Errorf("deadletter: %w", err))
	}
	if err := (rabbit.Options{URL: o.AMQPURL, Role: "dlq"}).Validate(); err != nil {
		faults = append(faults, fmt.Errorf("deadletter: AMQPURL: %w", err))
	}
	if o.Window < 1 || o.Window > maxWindow || o.ReadAhead < 1 {
		faults = append(faults, fmt.Errorf("deadletter: Window must be 1 to %d and ReadAhead positive", maxWindow))
	}
	if o.ConfirmTimeout < 0 || o.SessionLimit < 0 || o.HeadAge < 0 || o.Lease < 3*time.Second {
		faults = append(faults, errors.New("deadletter: durations must not be negative, and Lease at least 3s"))
	}
	for _, q := range o.Queues {
		if q.Name == "" {
			faults = append(faults, errors.New("deadletter: a queue in Queues has no name"))
		}
	}
	return errors.Join(faults...)
}

// Queues are those of the options, by name.
func (d *DeadLetters) Queues() []Queue {
	return slices.SortedFunc(slices.Values(d.opts.Queues), func(a, b Queue) int { return cmp.Compare(a.Name, b.Name) })
}

// rpcLimit is how long the broker may take for an answer: while it takes back hundreds of thousands of letters it answers nothing else on the
// connection that held them.
const rpcLimit = time.Minute

// connect dials for one operation; role tells the connections apart on the broker's management page.
func (d *DeadLetters) connect(ctx context.Context, role string) (*rabbit.Conn, error) {
	return rabbit.Dial(ctx, rabbit.Options{
		URL: d.opts.AMQPURL, Role: role, Host: d.opts.Host, Version: d.opts.Version, TLS: d.opts.TLS, Logger: d.opts.Logger, RPCTimeout: rpcLimit,
	})
}
