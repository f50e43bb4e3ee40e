package bench

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

// Kind is one of the benchmarks.
type Kind string

// The benchmarks.
const (
	Relay   Kind = "relay"
	Consume Kind = "consume"
	Redrive Kind = "redrive"
	Latency Kind = "latency"
	Enqueue Kind = "enqueue"
	Worker  Kind = "worker"
)

// Held is what is kept open while the relay arms work.
type Held string

// What can be held open.
const (
	HeldNothing Held = ""
	// HeldSnapshot is a REPEATABLE READ transaction that only reads: vacuum removes nothing.
	HeldSnapshot Held = "snapshot"
	// HeldWrite is a transaction with an id: pg_snapshot_xmin stands still.
	HeldWrite Held = "write"
	// HeldElsewhere is HeldWrite in another database of the cluster.
	HeldElsewhere Held = "write-other-db"
)

// DefaultNamespace begins the names of all that a run makes.
const DefaultNamespace = "surefoot_bench"

// Options of a benchmark. Zero values stand for the defaults.
type Options struct {
	// Kind of benchmark. Required.
	Kind Kind
	// DatabaseURL of PostgreSQL; the user must be allowed to create schemas. Required.
	DatabaseURL string
	// AMQPURL of RabbitMQ, with the vhost to work in. Required.
	AMQPURL string
	// ManagementURL of RabbitMQ. Default: port 15672 of AMQPURL's host.
	ManagementURL string
	// TLS for amqps and https, and the file of authorities that it came from. Default: the system's.
	TLS    *tls.Config
	CAFile string
	// Binary is the surefoot whose commands are measured. Required.
	Binary string
	// Peers is the binary of scripts/peers. Default: none, those arms are left out.
	Peers string
	// Environ of the processes as NAME=value; the URLs are put in. Default: empty.
	Environ []string
	// Namespace begins the names of schemas and queues. Default: DefaultNamespace.
	Namespace string

	// Rounds is how often each arm runs. Default: 5; with Held 8; with Steady 1.
	Rounds int
	// Rows of one run of one arm. Default: by Kind.
	Rows int
	// Bytes of a payload. Default: 256.
	Bytes int
	// Keys that the rows are spread over. Default: 10,000.
	Keys int
	// Connections to publish on. Default: 4.
	Connections int
	// Window is the longest that one run of a relay's arm is measured. Default: 30 s.
	Window time.Duration
	// Held is kept open from the second round on, and the tables are kept between rounds. Default: nothing.
	Held Held
	// Backlog is how many rows wait in a second table, made once; then rates with and without it are compared. Default: 0, off.
	Backlog int
	// Steady is how many rows a second are offered for For. Default: 0, off.
	Steady int
	// For is how long Steady, or a round of Latency, lasts. Default: 5 min, 15 s.
	For time.Duration
	// Prefetch and Workers of consumers. Default: 100 and 8.
	Prefetch, Workers int

	// Host and Version name this process to the broker. Default: "unknown" and "dev".
	Host, Version string
	// Say is told what happens. Default: nobody is told.
	Say func(line string)
}

// defaultRows make a run of an arm last for some seconds.
var defaultRows = map[Kind]int{Relay: 100_000, Consume: 20_000, Redrive: 20_000, Enqueue: 500, Latency: 1, Worker: 10_000}

func (o Options) withDefaults() Options {
	o.Namespace = cmp.Or(o.Namespace, DefaultNamespace)
	o.Rounds = cmp.Or(o.Rounds, o.defaultRounds())
	if o.Held != HeldNothing {
		o.Rows = cmp.Or(o.Rows, 50_000)
	}
	o.Rows = cmp.Or(o.Rows, defaultRows[o.Kind])
	o.Bytes = cmp.Or(o.Bytes, 256)
	o.Keys = cmp.Or(o.Keys, 10_000)
	o.Connections = cmp.Or(o.Connections, 4)
	o.Window = cmp.Or(o.Window, 30*time.Second)
	if o.Kind == Latency {
		o.For = cmp.Or(o.For, 15*time.Second)
	}
	o.For = cmp.Or(o.For, 5*time.Minute)
	o.Prefetch = cmp.Or(o.Prefetch, 100)
	o.Workers = cmp.Or(o.Workers, 8)
	o.Host = cmp.Or(o.Host, "unknown")
	o.Version = cmp.Or(o.Version, "dev")
	if o.Say == nil {
		o.Say = func(string) {}
	}
	return o
}

func (o Options) defaultRounds() int {
	switch {
	case o.Steady > 0:
		return 1
	case o.Held != HeldNothing:
		return 8
	}
	return 5
}

// validate lists every fault of options that have their defaults.
func (o Options) validate() error {
	var faults []error
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(defaultRows[o.Kind] == 0, "there is no benchmark %q", o.Kind)
	fault(o.DatabaseURL == "" || o.AMQPURL == "" || o.Binary == "", "bench: DatabaseURL, AMQPURL and Binary are required")
	fault(pg.CheckSchema(o.Namespace) != nil || len(o.Namespace) > maxNamespace, "bench: the namespace %q cannot be a schema", o.Namespace)
	fault(o.Rounds < 1 || o.Rows < 1 || o.Bytes < 1 || o.Keys < 1 || o.Connections < 1, "rounds, rows, bytes, keys and connections must be 1 or more")
	fault(o.Window <= 0 || o.For <= 0, "window and duration must be more than 0")
	fault(o.Backlog < 0 || o.Steady < 0, "backlog and steady rate must not be negative")
	fault(o.Prefetch < 1 || o.Prefetch > 65535 || o.Workers < 1 || o.Workers > o.Prefetch, "prefetch must be 1 to 65535, and workers 1 to prefetch")
	fault(o.Held != HeldNothing && o.Held != HeldSnapshot && o.Held != HeldWrite && o.Held != HeldElsewhere,
		"what is held must be snapshot, write or write-other-db, not %q", o.Held)
	fault(o.Held != HeldNothing && o.Rounds < 2, "with something held, 2 rounds or more are needed: the first is without it")
	modes := 0
	for _, on := range []bool{o.Held != HeldNothing, o.Backlog > 0, o.Steady > 0} {
		if on {
			modes++
		}
	}
	fault(modes > 1, "something held, a backlog and a steady load are measured one at a time")
	return errors.Join(faults...)
}

// maxNamespace leaves room for the names of the arms.
const maxNamespace = 26
