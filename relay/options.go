package relay

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// OnPoison says what the later rows of a bad row's key do.
type OnPoison string

const (
	// Strict holds them back, in order, until the bad row is published or discarded.
	Strict OnPoison = "strict"
	// Skip lets them pass.
	Skip OnPoison = "skip"
)

// minConns is how many connections of the pool the relay's parts can use at the same time: a lease must not
// wait for a slow read.
const minConns = 8

// Options of a [Relay].
type Options struct {
	// Pool is used for everything but LISTEN; a pooler in transaction mode may be behind it. At least 8
	// connections. Required; the caller closes it.
	Pool *pgxpool.Pool
	// ListenURL reaches the database directly, not through a pooler, for the doorbell that wakes a
	// sleeping relay; while rows come one by one each is then read as soon as it is committed. Default: "", no doorbell; rows then wait up to PollMax,
	// or PollMin while others come.
	ListenURL string
	// Schema that `surefoot migrate up` made. Default: "surefoot".
	Schema string
	// AMQPURL of the broker, or file:///path of a file that holds it and is read for each connection. Required.
	AMQPURL string
	// TLS is used for amqps URLs. Default: from the URL's parameters cacertfile, certfile, keyfile and server_name_indication.
	TLS *tls.Config
	// Exchange for rows that name none. Default: "", the broker's default exchange: such a row goes straight into the
	// queue that is called like its routing key. `surefoot relay run` refuses to start without one.
	Exchange string
	// Name tells this process from other relays, in logs and in the broker's list of connections.
	// Default: "unknown".
	Name string
	// Version of this program, for the broker's list of connections. Default: "dev".
	Version string
	// Shards, unless 0, must be the number that the database was set up with; another refuses to start.
	// Default: 0, whatever it is.
	Shards int
	// Connections is the most connections to publish on. Default: 4.
	Connections int
	// Window is the most unconfirmed messages per shard; two shards on a connection then have what fills it. Default: 1000.
	Window int
	// WindowBytes is the most unconfirmed bytes per shard; one message always passes. Default: 16 MiB.
	WindowBytes int
	// MaxBody is the largest payload the broker takes, in bytes. Default: the broker's default, 16 MiB
	// from 4.0 and 128 MiB before.
	MaxBody int
	// Lease is how long a silent owner keeps a shard; it is renewed at a third. At least 1 s. Default: 10 s.
	Lease time.Duration
	// ConfirmTimeout is how long a confirm may take before the message's route is stopped. Default: 30 s.
	ConfirmTimeout time.Duration
	// Attempts is how often a bad row is tried before it is dead. Default: 3.
	Attempts int
	// Backoff is the wait before a bad row's second try, doubled for each further one, an hour at most.
	// Default: 200 ms.
	Backoff time.Duration
	// OnPoison is Strict or Skip. Default: Strict.
	OnPoison OnPoison
	// PollMin is the wait between reads until nothing has come for PollMax, unless the doorbell is waited for. Default: 2 ms.
	PollMin time.Duration
	// PollMax is the wait between reads when idle. Default: 100 ms.
	PollMax time.Duration
	// ProbeMin and ProbeMax bound the wait before a stopped route is tried again. Default: 100 ms, 5 s.
	ProbeMin, ProbeMax time.Duration
	// Sweep is the time between two looks for rows that were overlooked. Default: 1 min.
	Sweep time.Duration
	// Drain bounds how long a stop, or handing over a shard, waits for confirms. Default: 5 s.
	Drain time.Duration
	// Logger gets one line per change of state. Default: none.
	Logger zerolog.Logger
	// Registerer takes the metrics. Default: nil, none are registered.
	Registerer prometheus.Registerer
	// Ready is told nil when the relay works, and otherwise what it waits for. Default: nobody is told.
	Ready func(error)
}

func (o Options) withDefaults() Options {
	o.Name = cmp.Or(o.Name, "unknown")
	o.Version = cmp.Or(o.Version, "dev")
	o.Connections = cmp.Or(o.Connections, 4)
	o.Window = cmp.Or(o.Window, 1000)
	o.WindowBytes = cmp.Or(o.WindowBytes, 16<<20)
	o.Lease = cmp.Or(o.Lease, 10*time.Second)
	o.ConfirmTimeout = cmp.Or(o.ConfirmTimeout, 30*time.Second)
	o.Attempts = cmp.Or(o.Attempts, 3)
	o.Backoff = cmp.Or(o.Backoff, 200*time.Millisecond)
	o.OnPoison = cmp.Or(o.OnPoison, Strict)
	o.PollMin = cmp.Or(o.PollMin, 2*time.Millisecond)
	o.PollMax = cmp.Or(o.PollMax, 100*time.Millisecond)
	o.ProbeMin = cmp.Or(o.ProbeMin, 100*time.Millisecond)
	o.ProbeMax = cmp.Or(o.ProbeMax, 5*time.Second)
	o.Sweep = cmp.Or(o.Sweep, time.Minute)
	o.Drain = cmp.Or(o.Drain, 5*time.Second)
	o.Schema = pg.Schema(o.Schema)
	if o.Ready == nil {
		o.Ready = func(error) {}
	}
	return o
}

// validate reports every fault at once. It runs after withDefaults.
func (o Options) validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf("relay: "+format, args...))
		}
	}
	fault(o.Pool == nil, "Pool is missing")
	if o.Pool != nil {
		conns := o.Pool.Config().MaxConns
		fault(conns < minConns, "the pool has at most %d connections; give it at least %d (database.max_conns)", conns, minConns)
	}
	if err := pg.CheckSchema(o.Schema); err != nil {
		faults = append(faults, err)
	}
	if err := o.brokerOptions(0).Validate(); err != nil {
		faults = append(faults, err)
	}
	fault(o.Connections < 1, "Connections is %d; use 1 or more", o.Connections)
	fault(o.Window < 1 || o.WindowBytes < 1, "Window and WindowBytes must be positive")
	fault(o.Lease < time.Second, "Lease is %s; use at least 1s", o.Lease)
	fault(o.Attempts < 1, "Attempts is %d; use 1 or more", o.Attempts)
	fault(o.OnPoison != Strict && o.OnPoison != Skip, "OnPoison is %q; use strict or skip", o.OnPoison)
	fault(o.PollMin <= 0 || o.PollMax < o.PollMin, "PollMin must be positive and PollMax not below it")
	fault(o.ProbeMin <= 0 || o.ProbeMax < o.ProbeMin, "ProbeMin must be positive and ProbeMax not below it")
	fault(o.Shards < 0 || o.MaxBody < 0, "Shards and MaxBody must not be negative")
	fault(o.Backoff <= 0 || o.ConfirmTimeout <= 0 || o.Sweep <= 0 || o.Drain <= 0, "Backoff, ConfirmTimeout, Sweep and Drain must be positive")
	return errors.Join(faults...)
}

// brokerOptions are those of one link. The heartbeat bounds how long a frozen owner's fence stays: never
// longer than a lease.
func (o Options) brokerOptions(link int) rabbit.Options {
	return rabbit.Options{
		URL: o.AMQPURL, Role: fmt.Sprintf("relay-%d", link+1), Host: o.Name, Version: o.Version, TLS: o.TLS, Logger: o.Logger,
		Heartbeat: min(max(o.Lease*2/5, time.Second), 4*time.Second),
	}
}
