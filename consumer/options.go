package consumer

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/topology"
)

// Ordering says which messages wait for each other.
type Ordering string

const (
	// OrderNone lets every message run as soon as there is a place.
	OrderNone Ordering = "none"
	// OrderLanes runs the messages of one key one at a time within the process, in the order of delivery; across
	// replicas too when the queue is a single-active-consumer one. A message that goes to the retry tier is
	// overtaken by later ones of its key. Messages without a key do not wait.
	OrderLanes Ordering = "lanes"
)

// Tier is one step of the retry ladder: a queue whose messages return to the work queue after Delay.
type Tier = topology.Tier

// consumerTimeout is the broker's default limit for an unacknowledged delivery, with a margin.
const consumerTimeout = 25 * time.Minute

// Options of a consumer.
type Options struct {
	// Queue to consume from. Required.
	Queue string
	// Name under which the inbox remembers messages; all replicas share it. Default: Queue.
	Name string
	// Handler handles messages in a transaction. Exactly one of Handler, Plain, Remote and Batch is required.
	Handler Handler
	// Plain handles messages without a transaction.
	Plain PlainHandler
	// Remote handles messages without a transaction, and returns events.
	Remote RemoteHandler
	// Batch handles several messages in one transaction.
	Batch BatchHandler
	// BatchSize is the most messages that Batch gets, at most Prefetch. A Prefetch of several times that lets one batch
	// arrive while others run. Default: Prefetch, at most 100.
	BatchSize int
	// BatchWait is how long the first message of a batch waits for others, at most 1 min. It does not wait when none can
	// come, because Prefetch are held. Default: 5 ms.
	BatchWait time.Duration
	// URL of the broker, amqp:// or amqps://, or file:///path of a file that holds it and is read for each connection. Two connections are made: one
	// consumes, one publishes. Required.
	URL string
	// Pool of the database that holds the inbox; the caller closes it after Run. It must offer at least Concurrency
	// connections, when that is set. Required.
	Pool *pgxpool.Pool
	// Schema that `surefoot migrate up` made; handlers enqueue into it too, see outbox.WithSchema. Default: "surefoot".
	Schema string
	// Retry is the ladder of retry queues, shortest delay first. Default: Queue.retry, 30 s.
	Retry []Tier
	// DeadLetters is the dead-letter queue. Default: Queue.dlq.
	DeadLetters string
	// Unverified leaves out the check, at each connect, that the queues of Retry and DeadLetters exist and that
	// nothing on the way there loses messages. Default: false.
	Unverified bool
	// ManagementURL of the broker's API, http:// or https://, with credentials or with those of URL; the check reads
	// arguments, bindings and policies there. Default: none, the check only finds queues that are missing.
	ManagementURL string
	// MaxAttempts is how often a message is tried, the first included. Default: 5.
	MaxAttempts int
	// Prefetch is the most unacknowledged messages held. Default: 10.
	Prefetch int
	// Concurrency is the most handlers at a time, at most Prefetch; each takes a connection of Pool. Default: Prefetch,
	// or what Pool offers where that is less, which is logged.
	Concurrency int
	// Timeout is a message's deadline in the handler, tries after a deadlock included, and that of a whole batch. After
	// a batch that failed each message has its own. Default: 30 s.
	Timeout time.Duration
	// Ordering of messages of one key. Default: OrderNone.
	Ordering Ordering
	// AllowNoID handles messages without an id, without an inbox row: at least once. Default: false, they are
	// dead letters.
	AllowNoID bool
	// Drain is how long handlers may go on after Run's ctx has ended; then theirs is cancelled and their messages
	// are returned, not counted. Default: 15 s.
	Drain time.Duration
	// InboxRetention is how long a handled message is remembered; a later duplicate has effects again.
	// Default: 7 days.
	InboxRetention time.Duration
	// RenewAfter is how long a message may be held unacknowledged by a pause or for an absent dependency. Keep it
	// below the broker's consumer timeout (30 min) less Timeout. Default: 20 min.
	RenewAfter time.Duration
	// Absence says what becomes of messages while a dependency of the handler is away. Default: AbsenceHold.
	Absence Absence
	// PausePoll is how often the database is asked whether the queue is paused; at most 5 s. Default: 2 s.
	PausePoll time.Duration
	// Classifier knows errors that the built-in rules do not; ClassNone leaves them to those. Default: none.
	Classifier resilience.Classifier
	// Solo is shared by all consumers of a process, so that a message suspected of killing it runs alone in it.
	// Default: one of this consumer's own.
	Solo *Solo
	// TLS for amqps URLs. Default: from the URL's parameters cacertfile, certfile, keyfile and server_name_indication.
	TLS *tls.Config
	// Host and Version name this process in connections and failure records. Default: "unknown" and "dev".
	Host, Version string
	// Logger takes the fixed events. Default: none.
	Logger zerolog.Logger
	// Metrics registry; consumers of one process may share it. Default: none.
	Metrics prometheus.Registerer
	// Ready is told nil when the consumer works, else what keeps it from working. It is called from several
	// goroutines, one at a time. Default: none.
	Ready func(reason error)

	step func(name string) error // the fault points; tests put their own in place
}

func (o Options) withDefaults() Options {
	o.Name = cmp.Or(o.Name, o.Queue)
	queue := topology.Queue{Name: o.Queue}
	o.DeadLetters = cmp.Or(o.DeadLetters, queue.DLQ())
	o.MaxAttempts = cmp.Or(o.MaxAttempts, 5)
	o.Prefetch = cmp.Or(o.Prefetch, 10)
	o.Concurrency = cmp.Or(o.Concurrency, o.fitting())
	o.BatchSize = cmp.Or(o.BatchSize, min(o.Prefetch, 100))
	o.BatchWait = cmp.Or(o.BatchWait, 5*time.Millisecond)
	o.Timeout = cmp.Or(o.Timeout, 30*time.Second)
	o.Ordering = cmp.Or(o.Ordering, OrderNone)
	o.Drain = cmp.Or(o.Drain, 15*time.Second)
	o.InboxRetention = cmp.Or(o.InboxRetention, 7*24*time.Hour)
	o.RenewAfter = cmp.Or(o.RenewAfter, 20*time.Minute)
	o.Absence = cmp.Or(o.Absence, AbsenceHold)
	o.PausePoll = cmp.Or(o.PausePoll, 2*time.Second)
	o.Host = cmp.Or(o.Host, "unknown")
	o.Version = cmp.Or(o.Version, "dev")
	if o.Retry == nil {
		o.Retry = queue.Tiers()
	}
	if o.Solo == nil {
		o.Solo = NewSolo()
	}
	if o.Ready == nil {
		o.Ready = func(error) {}
	}
	if o.step == nil {
		o.step = func(name string) error { return fault.Point("consumer." + name) }
	}
	return o
}

// fitting is a concurrency for which the pool has the connections: pgx's own default is a pool of four on small machines.
func (o Options) fitting() int {
	if o.Pool == nil {
		return o.Prefetch
	}
	return min(o.Prefetch, int(o.Pool.Config().MaxConns))
}

// validate lists every fault of options that have their defaults.
func (o Options) validate() error {
	var faults []error
	fault := func(wrong bool, text string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf("consumer: "+text, args...))
		}
	}
	fault(o.Queue == "", "Queue is empty; name the queue to consume from")
	fault(!o.oneHandler(), "set exactly one of Handler, Plain, Remote and Batch")
	fault(o.Batch != nil && (o.BatchSize < 1 || o.BatchSize > o.Prefetch), "BatchSize is %d; use 1 to Prefetch (%d)", o.BatchSize, o.Prefetch)
	fault(o.BatchWait < 0 || o.BatchWait > time.Minute, "BatchWait is %s; use up to 1m", o.BatchWait)
	fault(o.Pool == nil, "Pool is nil; the inbox needs a database")
	fault(o.MaxAttempts < 1, "MaxAttempts is %d; use at least 1", o.MaxAttempts)
	fault(o.Prefetch < 1 || o.Prefetch > 65535, "Prefetch is %d; use 1 to 65535", o.Prefetch)
	fault(o.Concurrency < 1 || o.Concurrency > o.Prefetch, "Concurrency is %d; use 1 to Prefetch (%d)", o.Concurrency, o.Prefetch)
	fault(o.Pool != nil && int(o.Pool.Config().MaxConns) < o.Concurrency,
		"the pool has fewer connections than Concurrency (%d); enlarge it or lower Concurrency", o.Concurrency)
	fault(o.Ordering != OrderNone && o.Ordering != OrderLanes, "Ordering %q is unknown; use none or lanes", o.Ordering)
	fault(o.Absence != AbsenceHold && o.Absence != AbsenceRetry, "Absence %q is unknown; use hold or retry", o.Absence)
	fault(o.PausePoll < 0 || o.PausePoll > 5*time.Second, "PausePoll is %s; use up to 5s, within which a pause must be obeyed", o.PausePoll)
	faults = append(faults, o.validateTimes(), o.validateRetry(), pg.CheckSchema(o.Schema), o.connection("consumer", o.Logger).Validate())
	return errors.Join(faults...)
}

func (o Options) oneHandler() bool {
	n := 0
	for _, set := range []bool{o.Handler != nil, o.Plain != nil, o.Remote != nil, o.Batch != nil} {
		if set {
			n++
		}
	}
	return n == 1
}

func (o Options) validateTimes() error {
	for name, d := range map[string]time.Duration{
		"Timeout": o.Timeout, "Drain": o.Drain, "InboxRetention": o.InboxRetention, "RenewAfter": o.RenewAfter,
	} {
		if d < 0 {
			return fmt.Errorf("consumer: %s is negative", name)
		}
	}
	if o.Prefetch < 1 || o.Concurrency < 1 {
		return nil
	}
	longest := HeldAtMost(o.Prefetch, o.Concurrency, o.Timeout)
	if o.Batch != nil { // all of them late in their batches, and late again alone
		longest += HeldAtMost(o.Prefetch, o.Concurrency*max(o.BatchSize, 1), o.Timeout)
	}
	if longest > consumerTimeout {
		return fmt.Errorf("consumer: %d held messages, %d at a time, of %s each can take %s; the broker takes unacknowledged ones back after 30m: "+
			"lower Timeout or Prefetch, or raise Concurrency", o.Prefetch, o.Concurrency, o.Timeout, longest)
	}
	return nil
}

// HeldAtMost is how long a message may stay unacknowledged when all that were taken before it, and itself, take as long as they may: prefetch
// of them, places at a time. Both must be 1 or more.
func HeldAtMost(prefetch, places int, timeout time.Duration) time.Duration {
	return time.Duration((prefetch+places-1)/places) * timeout
}

func (o Options) validateRetry() error {
	if len(o.Retry) == 0 {
		return errors.New("consumer: Retry is empty; name at least one retry queue")
	}
	for _, tier := range o.Retry {
		if tier.Queue == "" || tier.Delay <= 0 {
			return fmt.Errorf("consumer: retry tier %q with delay %s; a queue and a delay above 0 are needed", tier.Queue, tier.Delay)
		}
	}
	if !slices.IsSortedFunc(o.Retry, func(a, b Tier) int { return int(a.Delay - b.Delay) }) {
		return errors.New("consumer: Retry must list the shortest delay first")
	}
	return nil
}

func (o Options) connection(role string, log zerolog.Logger) rabbit.Options {
	return rabbit.Options{URL: o.URL, Role: role, Host: o.Host, Version: o.Version, TLS: o.TLS, Logger: log}
}
