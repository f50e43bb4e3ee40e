package relay_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/relay"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// world is a database, a broker, and what a consumer has seen.
type world struct {
	t      testing.TB
	db     testkit.DB
	broker testkit.AMQP
	box    *outbox.Outbox

	mu   sync.Mutex
	seen []amqp.Delivery
}

const (
	exchange = "shop.events"
	patience = 30 * time.Second
)

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldOn(t, testkit.Database(t), testkit.Broker(t))
}

func newWorldOn(t testing.TB, db testkit.DB, broker testkit.AMQP) *world {
	t.Helper()
	w := &world{t: t, db: db, broker: broker}
	var err error
	w.box, err = outbox.New(outbox.Options{Schema: w.db.Schema})
	require.NoError(t, err)
	return w
}

// channel returns a channel on a connection that ends with the test.
func (w *world) channel() *amqp.Channel {
	w.t.Helper()
	conn, err := amqp.Dial(w.broker.URL)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	require.NoError(w.t, err)
	return ch
}

// topology declares the exchange and a queue for everything under it, and consumes it.
func (w *world) topology() {
	w.t.Helper()
	ch := w.channel()
	require.NoError(w.t, ch.ExchangeDeclare(exchange, "topic", true, false, false, false, nil))
	w.bind(ch, "work", "order.#")
}

func (w *world) bind(ch *amqp.Channel, queue, key string) {
	w.t.Helper()
	_, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "classic"})
	require.NoError(w.t, err)
	require.NoError(w.t, ch.QueueBind(queue, key, exchange, false, nil))
	deliveries, err := ch.Consume(queue, "", true, false, false, false, nil)
	require.NoError(w.t, err)
	go func() {
		for d := range deliveries {
			w.mu.Lock()
			w.seen = append(w.seen, d)
			w.mu.Unlock()
		}
	}()
}

func (w *world) options() relay.Options {
	return relay.Options{
		Pool: w.pool(), Schema: w.db.Schema, AMQPURL: w.broker.URL, Exchange: exchange, Lease: 2 * time.Second,
		ListenURL: w.db.URL, Logger: testkit.Logger(w.t),
	}
}

func (w *world) pool() *pgxpool.Pool {
	w.t.Helper()
	pool, err := pg.Open(context.WithoutCancel(w.t.Context()), pg.Options{URL: w.db.URL, Name: "relay " + w.t.Name(), MaxConns: 8})
	require.NoError(w.t, err)
	w.t.Cleanup(pool.Close)
	return pool
}

// start runs a relay; the returned function stops it and waits.
func (w *world) start(o relay.Options) (stop func()) {
	w.t.Helper()
	return w.run(newRelay(w.t, o))
}

func (w *world) run(r *relay.Relay) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				if err != nil {
					w.t.Errorf("relay ended: %v", err)
				}
			case <-time.After(patience):
				w.t.Errorf("relay did not stop")
			}
		})
	}
	w.t.Cleanup(stop)
	return stop
}

// msg is a message whose body says its place among those of its key.
func msg(key string, n int) message.Message {
	return message.Message{ID: fmt.Sprintf("%s-%d", key, n), Type: "order.created", Key: key, Payload: []byte(strconv.Itoa(n))}
}

func (w *world) enqueue(msgs ...message.Message) {
	w.t.Helper()
	require.NoError(w.t, w.tryEnqueue(msgs...))
}

func (w *world) tryEnqueue(msgs ...message.Message) error {
	return pgx.BeginFunc(w.t.Context(), w.db.Pool, func(tx pgx.Tx) error {
		_, err := w.box.Enqueue(w.t.Context(), tx, msgs...)
		return err
	})
}

func (w *world) deliveries() []amqp.Delivery {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]amqp.Delivery(nil), w.seen...)
}

// ids returns the distinct message ids seen, in order of their first delivery.
func (w *world) ids() []string {
	var ids []string
	known := map[string]bool{}
	for _, d := range w.deliveries() {
		if !known[d.MessageId] {
			known[d.MessageId] = true
			ids = append(ids, d.MessageId)
		}
	}
	return ids
}

func (w *world) count(table string) int {
	w.t.Helper()
	var n int
	require.NoError(w.t, w.db.Pool.QueryRow(w.t.Context(), "SELECT count(*) FROM "+w.db.Schema+"."+table).Scan(&n))
	return n
}

// settled waits until n distinct messages have arrived and the outbox is empty.
func (w *world) settled(n int) {
	w.t.Helper()
	testkit.EventuallyNil(w.t, patience, "all messages to arrive and be settled", func() error {
		if seen, rows := len(w.ids()), w.count("outbox"); seen != n || rows != 0 {
			return fmt.Errorf("%d of %d arrived, %d rows left", seen, n, rows)
		}
		return nil
	})
}

// inOrder requires that first deliveries of each key came in the order of their numbers.
func (w *world) inOrder() {
	w.t.Helper()
	last := map[string]int{}
	known := map[string]bool{}
	for _, d := range w.deliveries() {
		key := message.Text(d.Headers, message.HeaderKey)
		if key == "" || known[d.MessageId] {
			continue
		}
		known[d.MessageId] = true
		var n int
		_, err := fmt.Sscan(string(d.Body), &n)
		require.NoError(w.t, err)
		require.Greater(w.t, n, last[key], "key %s out of order", key)
		last[key] = n
	}
}

func TestCommittedRowsArriveInOrderAndAreSettled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	for n := 1; n <= 20; n++ {
		var msgs []message.Message
		for k := range 50 {
			msgs = append(msgs, msg(fmt.Sprintf("k%d", k), n))
		}
		w.enqueue(msgs...)
	}
	w.start(w.options())
	w.settled(1000)
	w.enqueue(msg("later", 1), msg("", 7))
	w.settled(1002)
	w.inOrder()
	require.Len(t, w.deliveries(), 1002, "nothing twice in an undisturbed run")
	for _, d := range w.deliveries() {
		require.NotEmpty(t, d.Headers[message.HeaderOutbox])
		require.EqualValues(t, 1, d.Headers[message.HeaderEpoch])
	}
}

func (w *world) wait(what string, condition func() bool) {
	w.t.Helper()
	testkit.Eventually(w.t, patience, what, condition)
}

func newRelay(t testing.TB, o relay.Options) *relay.Relay {
	t.Helper()
	r, err := relay.New(o)
	require.NoError(t, err)
	return r
}

func containsFence(err error) bool { return strings.Contains(err.Error(), "former owner") }
