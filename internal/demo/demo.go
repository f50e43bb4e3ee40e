package demo

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/examples/shop/sample"
	"github.com/surefoot-mq/surefoot/internal/pg"
)

// Names of what belongs to the demonstration.
const (
	DefaultVhost  = "surefoot-demo"
	DefaultPrefix = "surefoot_demo"
	// Witness is the queue that gets a copy of everything that is published.
	Witness = "demo.witness"
)

// DefaultTimeout is how long a run may take. It is not how long it takes, which is under a minute.
const DefaultTimeout = 3 * time.Minute

// Options of a demonstration.
type Options struct {
	// DatabaseURL of PostgreSQL; the user must be allowed to create schemas. Required.
	DatabaseURL string
	// AMQPURL of RabbitMQ. Its vhost is not used. Required.
	AMQPURL string
	// ManagementURL of RabbitMQ. Default: port 15672 of AMQPURL's host.
	ManagementURL string
	// TLS trusted for amqps and https. Default: the system's authorities.
	TLS *tls.Config
	// Orders as JSON lines, in the form of examples/shop/testdata/orders.jsonl. Required.
	Orders io.Reader
	// Vhost of the demonstration; made if it is not there. Default: "surefoot-demo".
	Vhost string
	// Prefix of its schemas, and itself the name of Surefoot's. Default: "surefoot_demo".
	Prefix string
	// Timeout is how long to wait for everything to end before the account is made all the same. Default: 3 min.
	Timeout time.Duration
	// Who redrives, for the audit. Required.
	Who string
	// Host and Version name this process to the broker. Default: "unknown" and "dev".
	Host, Version string
	// Logger takes the events of all parts. Default: none.
	Logger zerolog.Logger
	// Say is told what has happened, Live how far it is, several times a second; both from the goroutine of Run.
	// Default: nobody is told.
	Say, Live func(line string)
}

// Demo is one demonstration. Make one with [New]; it runs once at a time.
type Demo struct{ o Options }

// New checks the options. It does no I/O.
func New(o Options) (*Demo, error) {
	if o.DatabaseURL == "" || o.AMQPURL == "" {
		return nil, errors.New("demo: DatabaseURL and AMQPURL are required")
	}
	if o.Orders == nil || o.Who == "" {
		return nil, errors.New("demo: Orders and Who are required")
	}
	o.Vhost, o.Prefix = cmp.Or(o.Vhost, DefaultVhost), cmp.Or(o.Prefix, DefaultPrefix)
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Say == nil {
		o.Say = func(string) {}
	}
	if o.Live == nil {
		o.Live = func(string) {}
	}
	return &Demo{o: o}, pg.CheckSchema(o.Prefix)
}

// errTimeout is why a run that takes too long ends.
var errTimeout = errors.New("not everything ended in time")

// Run plays the demonstration and returns its account, which may have violations. An error means that there is
// no account: a service is away or refuses, or ctx has ended. All that was started has ended when it returns.
func (d *Demo) Run(ctx context.Context) (*Account, error) {
	began := time.Now()
	pool, err := d.pool(ctx, "demo", 6)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	unlock, err := d.lock(ctx, pool)
	if err != nil {
		return nil, err
	}
	defer unlock()
	r, err := d.prepare(ctx, pool)
	if err != nil {
		return nil, err
	}
	defer r.close(ctx)
	early, err := r.playAll(ctx)
	if err != nil {
		return nil, err
	}
	account, err := r.account(context.WithoutCancel(ctx))
	if err != nil {
		return nil, fmt.Errorf("account for the run: %w", err)
	}
	if early != nil {
		account.Violations = slices.Insert(account.Violations, 0, fmt.Sprintf("the run ended early, after %s: %s", d.o.Timeout, early))
	}
	account.Seconds = time.Since(began).Seconds()
	return account, nil
}

func (d *Demo) pool(ctx context.Context, name string, conns int32) (*pgxpool.Pool, error) {
	return pg.Open(ctx, pg.Options{URL: d.o.DatabaseURL, Name: "surefoot " + name, MaxConns: conns})
}

func (d *Demo) say(format string, args ...any) { d.o.Say(fmt.Sprintf(format, args...)) }

// SampleOrders are the orders of examples/shop/testdata/orders.jsonl, made anew.
func SampleOrders() (io.Reader, error) {
	var text bytes.Buffer
	err := sample.Write(&text)
	return &text, err
}
