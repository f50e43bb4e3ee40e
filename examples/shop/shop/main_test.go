package shop_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/watchdog"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var stock = map[string]int{"tea": 100, "cup": 100, "last": 1, "gone": 0}

// bench is the shop on a real database, with a provider over HTTP. Its messages are handed to the handlers by
// the test, in the order that the test wants: the shop must come out right in every one.
type bench struct {
	testkit.DB
	t         *testing.T
	shop      *shop.Shop
	simulator *provider.Simulator
	client    *provider.Client
	// providerURL is where the simulator listens.
	providerURL string
	roles       []shop.Role

	waiting []delivery
	failed  []delivery
}

type delivery struct {
	role shop.Role
	msg  message.Message
	err  error
}

func newBench(t *testing.T, change ...func(*shop.Options)) *bench {
	t.Helper()
	t.Parallel()
	b := &bench{DB: testkit.Database(t), t: t, simulator: provider.NewSimulator()}
	server := httptest.NewServer(b.simulator)
	t.Cleanup(func() { _ = b.simulator.SetRules(); server.CloseClientConnections(); server.Close() })
	b.providerURL = server.URL
	var err error
	b.client, err = provider.NewClient(provider.ClientOptions{URL: server.URL, Timeout: 300 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(b.client.Close)
	o := shop.Options{Pool: b.Pool, Provider: b.client, Prefix: b.Schema, Schema: b.Schema, Logger: testkit.Logger(t)}
	for _, c := range change {
		c(&o)
	}
	b.shop, err = shop.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.shop.Drop(context.WithoutCancel(t.Context()))) })
	require.NoError(t, b.shop.Migrate(t.Context()))
	require.NoError(t, b.shop.Seed(t.Context(), stock))
	b.roles = b.shop.Roles()
	return b
}

// collect takes what was enqueued and addresses it to the queues that are bound to it.
func (b *bench) collect() {
	b.t.Helper()
	rows, err := b.Pool.Query(b.t.Context(), `WITH gone AS (DELETE FROM `+b.Schema+`.outbox RETURNING *)
		SELECT message_id, type, key, exchange, payload FROM gone ORDER BY id`)
	require.NoError(b.t, err)
	msgs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m message.Message, err error) {
		err = row.Scan(&m.ID, &m.Type, &m.Key, &m.Exchange, &m.Payload)
		return m, err
	})
	require.NoError(b.t, err)
	for _, m := range msgs {
		require.Equal(b.t, event.Exchange, m.Exchange)
		routed := false
		for _, role := range b.roles {
			queue, ok := shop.Topology().Find(role.Queue)
			require.True(b.t, ok)
			if slices.Contains(queue.Bindings, m.Type) {
				b.waiting, routed = append(b.waiting, delivery{role: role, msg: m}), true
			}
		}
		require.True(b.t, routed, "%s reaches no queue", m.Type)
	}
}

// handle hands one delivery to its handler, in a transaction, as a consumer would.
func (b *bench) handle(d delivery) error {
	b.t.Helper()
	return pgx.BeginFunc(b.t.Context(), b.Pool, func(tx pgx.Tx) error {
		return d.role.Handler(message.NewContext(b.t.Context(), d.msg), tx, d.msg)
	})
}

// run delivers until nothing is left, but for what keep holds back. What fails is put aside.
func (b *bench) run(keep ...func(delivery) bool) {
	b.t.Helper()
	var kept []delivery
	for b.collect(); len(b.waiting) > 0; b.collect() {
		d := b.waiting[0]
		b.waiting = b.waiting[1:]
		if slices.ContainsFunc(keep, func(k func(delivery) bool) bool { return k(d) }) {
			kept = append(kept, d)
			continue
		}
		if d.err = b.handle(d); d.err != nil {
			b.failed = append(b.failed, d)
		}
	}
	b.waiting = kept
}

// retry hands what has failed out again.
func (b *bench) retry() {
	b.t.Helper()
	b.waiting, b.failed = append(b.waiting, b.failed...), nil
	b.run()
}

func holding(queue, eventType string) func(delivery) bool {
	return func(d delivery) bool { return d.role.Queue == queue && d.msg.Type == eventType }
}

func order(change ...func(*orders.Order)) orders.Order {
	o := orders.Order{
		Tenant: "alpine", IdempotencyKey: "k1", Customer: event.Customer{Name: "Zoë", Email: "zoe@mail.example"}, Card: provider.CardGood,
		Lines: []event.Line{{SKU: "tea", Name: "Thé", Quantity: 2, UnitPriceCents: 1290}, {SKU: "cup", Name: "Tasse", Quantity: 1, UnitPriceCents: 890}, {SKU: "tea", Name: "Thé", Quantity: 1, UnitPriceCents: 1290}},
	}
	for _, c := range change {
		c(&o)
	}
	return o
}

func (b *bench) submit(change ...func(*orders.Order)) string {
	b.t.Helper()
	submitted, err := b.shop.Submit(b.t.Context(), order(change...))
	require.NoError(b.t, err)
	require.True(b.t, submitted.Created)
	return submitted.ID
}

// account is the books, which must be in order.
func (b *bench) account() *shop.Account {
	b.t.Helper()
	account, err := b.shop.Account(b.t.Context(), b.client, stock)
	require.NoError(b.t, err)
	require.Empty(b.t, account.Violations)
	return account
}

// ends demands that the one order has come to its end.
func (b *bench) ends(status, reason string) shop.OrderAccount {
	b.t.Helper()
	account := b.account()
	require.Len(b.t, account.Orders, 1)
	require.Zero(b.t, account.Pending, "%+v", account.Orders)
	require.Equal(b.t, status, account.Orders[0].Status)
	require.Equal(b.t, reason, account.Orders[0].Reason)
	return account.Orders[0]
}

// age moves an order's and its reservation's times into the past.
func (b *bench) age(id string, by time.Duration) {
	b.t.Helper()
	_, err := b.Pool.Exec(b.t.Context(), `UPDATE `+b.shop.Orders.Schema()+`.orders SET status_at = status_at - $2::interval WHERE id = $1`, id, by)
	require.NoError(b.t, err)
	_, err = b.Pool.Exec(b.t.Context(), `UPDATE `+b.shop.Inventory.Schema()+`.reservations SET expires_at = expires_at - $2::interval WHERE order_id = $1`, id, by)
	require.NoError(b.t, err)
}

// watch runs one cycle of the shop's rules and returns how many rows each changed.
func (b *bench) watch(limit time.Duration) (timeouts, expired int) {
	b.t.Helper()
	w, err := watchdog.New(watchdog.Options{
		Pool: b.Pool, Schema: b.Schema, Logger: testkit.Logger(b.t),
		Rules: []watchdog.Rule{shop.PaymentTimeout(b.Schema, limit), shop.ReservationExpired(b.Schema)},
	})
	require.NoError(b.t, err)
	warnings, err := w.Check(b.t.Context())
	require.NoError(b.t, err)
	require.Empty(b.t, warnings)
	results, err := w.Once(b.t.Context())
	require.NoError(b.t, err)
	return results[0].Cancelled, results[1].Cancelled
}

func (b *bench) failedWith(class resilience.Class) delivery {
	b.t.Helper()
	require.Len(b.t, b.failed, 1, fmt.Sprint(b.failed))
	require.Equal(b.t, class, resilience.Classify(b.failed[0].err), b.failed[0].err.Error())
	return b.failed[0]
}
