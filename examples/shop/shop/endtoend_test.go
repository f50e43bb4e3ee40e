package shop_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/sample"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/relay"
	"github.com/surefoot-mq/surefoot/topology"
)

// The whole way of the sample orders over the real broker: every one ends as it should, one that is stuck by the
// watchdog's hand, and what could not be handled lies in its dead-letter queue.
func TestSampleOrdersOverTheBroker(t *testing.T) {
	broker := testkit.Broker(t)
	spec := shop.Topology()
	for i := range spec.Queues {
		spec.Queues[i].Retry = []time.Duration{200 * time.Millisecond}
		spec.Queues[i].Prefetch, spec.Queues[i].Concurrency = 20, 3
	}
	b := newBench(t, func(o *shop.Options) { o.AMQPURL, o.Topology = broker.URL, spec })
	declare(t, broker, spec)
	require.NoError(t, b.shop.Seed(t.Context(), sample.Stock()))
	require.NoError(t, b.simulator.SetRules(sample.Rules()...))
	b.startAll(broker)

	expected := b.submitSample()
	stuck := ""
	for id, end := range expected {
		if end == orders.StatusCancelled+" "+event.ReasonPaymentTimeout {
			stuck = id
		}
	}
	depth := depths(t, broker)
	testkit.EventuallyNil(t, 90*time.Second, "all but the stuck order to end", func() error { return b.pending(1) })
	testkit.Eventually(t, 30*time.Second, "its charge to be given up", func() bool { return depth("payments.saga.dlq") == 1 })
	b.age(stuck, 11*time.Minute)
	timeouts, expired := b.watch(0)
	require.Equal(t, 1, timeouts)
	require.Zero(t, expired)
	testkit.EventuallyNil(t, 30*time.Second, "the stuck order to end", func() error { return b.pending(0) })

	account, err := b.shop.Account(t.Context(), b.client, sample.Stock())
	require.NoError(t, err)
	require.Empty(t, account.Violations)
	ends := map[string]string{}
	for _, o := range account.Orders {
		ends[o.ID] = trimmed(o.Status, o.Reason)
	}
	require.Equal(t, expected, ends)
	bounced := 0
	for _, o := range sample.Orders() {
		if status, _ := sample.Expected(o); status == orders.StatusConfirmed && o.Customer.Email[:4] == "gone" {
			bounced++
		}
	}
	require.NotZero(t, bounced)
	testkit.Eventually(t, 30*time.Second, "the mails that bounced", func() bool { return depth("notifications.mail.dlq") == bounced })
	for _, queue := range []string{"orders.saga.dlq", "inventory.orders.dlq"} {
		require.Zero(t, depth(queue), queue)
	}
}

// Orders over HTTP with everything running: what is accepted at once, what is recovered and what is refused all end in one set of
// books, over the real broker.
func TestSyncCheckoutsOverTheBroker(t *testing.T) {
	broker := testkit.Broker(t)
	spec := shop.Topology()
	for i := range spec.Queues {
		spec.Queues[i].Retry, spec.Queues[i].Concurrency = []time.Duration{200 * time.Millisecond}, 2
	}
	b := newBench(t, func(o *shop.Options) { o.AMQPURL, o.Topology = broker.URL, spec })
	declare(t, broker, spec)
	tl := newTillOn(t, b)
	b.startAll(broker)
	r := tl.newRecovery(orders.RecoveryOptions{Every: 100 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.Run(ctx) })
	group.Go(func() error { return tl.desk.Run(ctx) })
	t.Cleanup(func() { cancel(); require.NoError(t, group.Wait()) })

	accepted := tl.buy("accepted")
	require.Equal(t, http.StatusCreated, accepted.status, "%v", accepted.fields)
	declined := tl.front.ask(http.MethodPost, "/v1/orders", "alpine", "declined", strings.Replace(syncOrder, "tok_good", "tok_declined", 1))
	require.Equal(t, http.StatusPaymentRequired, declined.status, "%v", declined.fields)
	require.NoError(t, tl.simulator.SetRules(provider.Rule{Fault: provider.FaultHang, Times: 1}))
	uncertain := tl.buy("uncertain")
	require.Equal(t, http.StatusAccepted, uncertain.status, "%v", uncertain.fields)
	saga := tl.front.order("saga", teaAndCup)
	require.Equal(t, http.StatusAccepted, saga.status, "%v", saga.fields)

	testkit.EventuallyNil(t, 60*time.Second, "all orders to end", func() error { return b.pending(0) })
	for key, want := range map[string]reply{"accepted": accepted, "declined": declined, "uncertain": uncertain, "saga": saga} {
		testkit.Eventually(t, 30*time.Second, "the mail about "+key, func() bool {
			account := b.account()
			for _, o := range account.Orders {
				if o.IdempotencyKey == key {
					return o.Mails == 1
				}
			}
			return false
		})
		status := "accepted"
		if key == "declined" {
			status = "failed"
		}
		require.Equal(t, status, tl.state(want)["status"], key)
	}
	tl.noLeaks()
	require.Len(t, tl.simulator.Ledger().Charges, 3)
}

// depths tells how many messages are ready in a queue; a passive declare is exact.
func depths(t *testing.T, broker testkit.AMQP) func(queue string) int {
	t.Helper()
	conn, err := amqp.Dial(broker.URL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	require.NoError(t, err)
	return func(queue string) int {
		t.Helper()
		q, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		require.NoError(t, err)
		return q.Messages
	}
}

func trimmed(status, reason string) string {
	if reason == "" {
		return status
	}
	return status + " " + reason
}

// startAll runs relay and services until the test ends.
func (b *bench) startAll(broker testkit.AMQP) {
	b.t.Helper()
	pool := b.pool(12)
	r, err := relay.New(relay.Options{Pool: pool, Schema: b.Schema, AMQPURL: broker.URL, Logger: testkit.Logger(b.t)})
	require.NoError(b.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.t.Context()))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.Run(ctx) })
	group.Go(func() error { return b.shop.Run(ctx) })
	b.t.Cleanup(func() {
		cancel()
		require.NoError(b.t, group.Wait())
	})
}

func (b *bench) pool(conns int32) *pgxpool.Pool {
	b.t.Helper()
	pool, err := pg.Open(context.WithoutCancel(b.t.Context()), pg.Options{URL: b.URL, MaxConns: conns})
	require.NoError(b.t, err)
	b.t.Cleanup(pool.Close)
	return pool
}

// submitSample takes the file's orders and returns how each should end.
func (b *bench) submitSample() map[string]string {
	b.t.Helper()
	file, err := os.Open("../testdata/orders.jsonl")
	require.NoError(b.t, err)
	defer file.Close()
	expected, known := map[string]string{}, 0
	require.NoError(b.t, sample.Read(file, func(_ int, o orders.Order) error {
		submitted, err := b.shop.Submit(b.t.Context(), o)
		if err == nil && !submitted.Created {
			known++
		}
		expected[o.ID()] = trimmed(sample.Expected(o))
		return err
	}))
	require.Equal(b.t, 1, known, "one order was sent twice")
	return expected
}

// pending is nil when no more than so many orders are on their way.
func (b *bench) pending(most int) error {
	account, err := b.shop.Account(b.t.Context(), b.client, nil)
	if err != nil {
		return err
	}
	if account.Pending > most {
		return fmt.Errorf("%d of %d orders are on their way", account.Pending, len(account.Orders))
	}
	if len(account.Orders) == 0 {
		return errors.New("there are no orders")
	}
	return nil
}

// declare makes a topology through the management API.
func declare(t *testing.T, broker testkit.AMQP, spec topology.Spec) {
	t.Helper()
	state := topology.Desired(spec)
	for name, e := range state.Exchanges {
		broker.API(t, http.MethodPut, "/api/exchanges/"+broker.Vhost+"/"+name, map[string]any{"type": e.Type, "durable": true}, nil)
	}
	for name, q := range state.Queues {
		broker.API(t, http.MethodPut, "/api/queues/"+broker.Vhost+"/"+name, map[string]any{"durable": true, "arguments": q.Arguments}, nil)
	}
	for binding := range state.Bindings {
		broker.API(t, http.MethodPost, "/api/bindings/"+broker.Vhost+"/e/"+binding.Exchange+"/q/"+binding.Queue,
			map[string]any{"routing_key": binding.RoutingKey}, nil)
	}
}
