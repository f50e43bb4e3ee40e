package consumer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

func TestMain(m *testing.M) { testkit.MainOrChild(m, workerVar, runWorker) }

const soon = 20 * time.Second

// world is a test's own vhost with one queue and its retry and dead-letter queues, and its own schema.
type world struct {
	t     testing.TB
	db    testkit.DB
	vhost testkit.AMQP
	conn  *amqp.Connection
	ch    *amqp.Channel
	logs  *logBook

	started []consumer.Options
	stops   []func()
}

type worldOptions struct {
	tier         time.Duration // default 200 ms
	singleActive bool
	limit        int // delivery limit of the work queue, default 20
	classic      bool
}

func newWorld(t testing.TB, o worldOptions) *world {
	t.Helper()
	return newWorldOn(t, o, testkit.Database(t), testkit.Broker(t))
}

func newWorldOn(t testing.TB, o worldOptions, db testkit.DB, vhost testkit.AMQP) *world {
	t.Helper()
	w := &world{t: t, db: db, vhost: vhost, logs: &logBook{}}
	_, err := w.db.Pool.Exec(t.Context(), `CREATE TABLE `+w.db.Schema+`.effects (n bigint GENERATED ALWAYS AS IDENTITY, id text, key text)`)
	require.NoError(t, err)
	w.connect()
	w.declare(o)
	return w
}

// connect opens the test's own connection.
func (w *world) connect() {
	w.t.Helper()
	var err error
	w.conn, err = amqp.Dial(w.vhost.URL)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = w.conn.Close() })
	w.ch, err = w.conn.Channel()
	require.NoError(w.t, err)
	require.NoError(w.t, w.ch.Confirm(false))
}

func (w *world) declare(o worldOptions) {
	w.t.Helper()
	if o.tier == 0 {
		o.tier = 200 * time.Millisecond
	}
	if o.limit == 0 {
		o.limit = 20
	}
	for _, name := range []string{"x.dlx", "x.retry"} {
		require.NoError(w.t, w.ch.ExchangeDeclare(name, "direct", true, false, false, false, nil))
	}
	w.queue("q.dlq", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1000000})
	w.queue("q.retry", amqp.Table{
		"x-queue-type": "quorum", "x-message-ttl": o.tier.Milliseconds(), "x-dead-letter-exchange": "x.retry",
		"x-dead-letter-routing-key": "q", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	})
	work := amqp.Table{
		"x-queue-type": "quorum", "x-dead-letter-exchange": "x.dlx", "x-dead-letter-routing-key": "q",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-delivery-limit": o.limit,
	}
	if o.classic {
		work = amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "x.dlx", "x-dead-letter-routing-key": "q"}
	}
	if o.singleActive {
		work["x-single-active-consumer"] = true
	}
	w.queue("q", work)
	require.NoError(w.t, w.ch.QueueBind("q.dlq", "q", "x.dlx", false, nil))
	require.NoError(w.t, w.ch.QueueBind("q", "q", "x.retry", false, nil))
}

func (w *world) queue(name string, args amqp.Table) {
	w.t.Helper()
	_, err := w.ch.QueueDeclare(name, true, false, false, false, args)
	require.NoError(w.t, err)
}

// options are those of a consumer in this world; handler may be nil for one that records the effect.
func (w *world) options(handler consumer.Handler) consumer.Options {
	if handler == nil {
		handler = w.effect
	}
	return consumer.Options{
		Queue: "q", Handler: handler, URL: w.vhost.URL, Pool: w.db.Pool, Schema: w.db.Schema,
		Retry: []consumer.Tier{{Queue: "q.retry", Delay: 200 * time.Millisecond}}, Concurrency: 4,
		Timeout: 10 * time.Second, PausePoll: 50 * time.Millisecond, Drain: 3 * time.Second,
		Host: "testhost", Version: "test", Logger: zerolog.New(zerolog.MultiLevelWriter(w.logs, testkit.LogWriter(w.t))),
	}
}

// effect is a handler whose effect can be counted.
func (w *world) effect(ctx context.Context, tx pgx.Tx, m message.Message) error {
	_, err := tx.Exec(ctx, `INSERT INTO `+w.db.Schema+`.effects (id, key) VALUES ($1, $2)`, m.ID, m.Key)
	return err
}

// start runs a consumer until the returned stop or the end of the test.
func (w *world) start(o consumer.Options) (stop func()) {
	w.t.Helper()
	return w.startWith(o, func(*consumer.Consumer) {})
}

func (w *world) startWith(o consumer.Options, adjust func(*consumer.Consumer)) (stop func()) {
	w.t.Helper()
	c, err := consumer.New(o)
	require.NoError(w.t, err)
	adjust(c)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			require.NoError(w.t, err)
		case <-time.After(soon):
			w.t.Error("the consumer does not stop")
		}
	})
	w.t.Cleanup(stop)
	w.started, w.stops = append(w.started, o), append(w.stops, stop)
	return stop
}

func (w *world) publish(ids ...string) {
	w.t.Helper()
	for _, id := range ids {
		w.send(amqp.Publishing{MessageId: id, Type: "order.created", Body: []byte(`{"orderId":"` + id + `"}`)})
	}
}

func (w *world) send(p amqp.Publishing) { w.t.Helper(); w.sendTo("q", p) }

func (w *world) sendTo(queue string, p amqp.Publishing) {
	w.t.Helper()
	p.DeliveryMode = amqp.Persistent
	confirm, err := w.ch.PublishWithDeferredConfirm("", queue, true, false, p)
	require.NoError(w.t, err)
	ok, err := confirm.WaitContext(w.t.Context())
	require.NoError(w.t, err)
	require.True(w.t, ok)
}

// plain are the options of a consumer without a transaction.
func (w *world) plain(handler consumer.PlainHandler) consumer.Options {
	o := w.options(w.effect)
	o.Handler, o.Plain = nil, handler
	return o
}

// get takes one message out of a queue, waiting for it.
func (w *world) get(queue string) amqp.Delivery {
	w.t.Helper()
	var d amqp.Delivery
	testkit.Eventually(w.t, soon, "a message in "+queue, func() bool {
		var ok bool
		var err error
		d, ok, err = w.ch.Get(queue, true)
		require.NoError(w.t, err)
		return ok
	})
	return d
}

func (w *world) depth(queue string) int {
	w.t.Helper()
	q, err := w.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(w.t, err)
	return q.Messages
}

func (w *world) effects() (ids []string) {
	w.t.Helper()
	rows, err := w.db.Pool.Query(w.t.Context(), `SELECT id FROM `+w.db.Schema+`.effects ORDER BY n`)
	require.NoError(w.t, err)
	ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(w.t, err)
	return ids
}

func (w *world) awaitEffects(n int) {
	w.t.Helper()
	testkit.Eventually(w.t, soon, "the effects", func() bool { return len(w.effects()) >= n })
}

// awaitEmpty stops the consumers once the queues have nothing ready: only then the broker counts exactly, for what is
// unacknowledged comes back. While something does, the consumers go on. They are stopped when it returns.
func (w *world) awaitEmpty(queues ...string) {
	w.t.Helper()
	queues = append(queues, "q")
	testkit.Eventually(w.t, 2*soon, "the queues to be empty", func() bool {
		if w.depths(queues) > 0 {
			return false
		}
		for _, stop := range w.stops {
			stop()
		}
		if w.depths(queues) == 0 {
			return true
		}
		started := w.started
		w.started, w.stops = nil, nil
		for _, o := range started {
			w.start(o)
		}
		return false
	})
	w.started, w.stops = nil, nil
}

func (w *world) depths(queues []string) (n int) {
	w.t.Helper()
	for _, queue := range queues {
		n += w.depth(queue)
	}
	return n
}

// killConnections closes all connections of the consumer from the broker's side.
func (w *world) killConnections(role string) {
	w.t.Helper()
	w.vhost.CloseConnections(w.t, func(c testkit.Connection) bool { return strings.HasPrefix(c.Client.Name, "surefoot "+role+" ") })
}

// logBook keeps log lines.
type logBook struct {
	mu    sync.Mutex
	lines []map[string]any
}

func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range bytes.Lines(p) {
		var fields map[string]any
		if json.Unmarshal(line, &fields) == nil {
			b.lines = append(b.lines, fields)
		}
	}
	return len(p), nil
}

// find returns the lines with a message.
func (b *logBook) find(text string) (found []map[string]any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.lines {
		if line["message"] == text {
			found = append(found, line)
		}
	}
	return found
}

// gate lets a handler wait and a test know that it does.
type gate struct {
	entered chan string
	open    chan struct{}
}

func newGate() *gate { return &gate{entered: make(chan string, 100), open: make(chan struct{})} }

func (g *gate) pass(ctx context.Context, id string) error {
	g.entered <- id
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func receive[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(soon):
		t.Fatalf("waited for %s", what)
		panic("unreachable")
	}
}

// exitGoroutine is what a failed assertion in a handler does.
func exitGoroutine() { runtime.Goexit() }
