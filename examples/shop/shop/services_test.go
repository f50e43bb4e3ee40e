package shop_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/inventory"
	"github.com/surefoot-mq/surefoot/examples/shop/payments"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
)

// services are inventory and payments over HTTP, on networks that can fail.
type services struct {
	*bench
	clients                   *shop.Clients
	desk                      *shop.Desk
	inventoryURL, paymentsURL string
	inventoryAt, paymentsAt   string // directly
	inventoryNet, paymentsNet *testkit.FaultyNetwork
	gate                      *gate
}

// gate counts requests in hand, and holds them while it is closed.
type gate struct {
	mu         sync.Mutex
	open       chan struct{}
	now, most  map[string]int // by tenant; "" is all
	dropBefore atomic.Int64   // so many requests are cut off before they are handled
	dropAfter  atomic.Int64   // and so many after
}

func newGate() *gate {
	g := &gate{now: map[string]int{}, most: map[string]int{}, open: make(chan struct{})}
	close(g.open)
	return g
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
}

func (g *gate) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.dropBefore.Add(-1) >= 0 {
			panic(http.ErrAbortHandler)
		}
		tenant := r.Header.Get("X-Tenant-Id")
		open := g.count(tenant, 1)
		defer g.count(tenant, -1)
		select {
		case <-open:
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
		if g.dropAfter.Add(-1) >= 0 {
			next.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}

func (g *gate) count(tenant string, n int) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, who := range []string{"", tenant} {
		g.now[who] += n
		g.most[who] = max(g.most[who], g.now[who])
	}
	return g.open
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}

// peak is the most that were in hand at a time.
func (g *gate) peak(tenant string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.most[tenant]
}

func (g *gate) held(tenant string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now[tenant]
}

// quick are the shop's limits with times for tests.
func quick() shop.Limits {
	l := shop.DefaultLimits()
	l.Payments.Deadline, l.Payments.Timeout = 4*time.Second, 4*time.Second
	l.Provider.Deadline, l.Provider.Timeout = 2*time.Second, 700*time.Millisecond
	l.Provider.Retry = resilience.Retry{Attempts: 1}
	l.Inventory.Deadline, l.Inventory.Timeout = 5*time.Second, time.Second // the machine may be busy
	l.Inventory.Retry.Base = 10 * time.Millisecond
	l.Inventory.Breaker.Open, l.Payments.Breaker.Open = 200*time.Millisecond, 100*time.Millisecond
	return l
}

func newServices(t *testing.T, change ...func(*shop.Limits)) *services {
	t.Helper()
	return newServicesOn(t, newBench(t), change...)
}

func newServicesOn(t *testing.T, b *bench, change ...func(*shop.Limits)) *services {
	t.Helper()
	limits := quick()
	for _, c := range change {
		c(&limits)
	}
	s := &services{bench: b, gate: newGate()}
	patient, err := provider.NewClient(provider.ClientOptions{URL: b.providerURL})
	require.NoError(t, err)
	t.Cleanup(patient.Close)
	s.desk, err = b.shop.Desk(shop.DeskOptions{
		Client: patient, Limits: &limits.Provider, Reconcile: payments.ReconcilerOptions{After: time.Nanosecond, Wait: time.Nanosecond, MaxWait: time.Nanosecond},
	})
	require.NoError(t, err)
	s.inventoryAt = serveWrapped(t, b.shop.InventoryRoutes, s.gate.wrap)
	t.Cleanup(s.gate.release) // a request whose body nobody has read does not notice that its client is gone
	s.paymentsAt = serveRoutes(t, s.desk.Routes)
	s.inventoryNet, s.paymentsNet = testkit.Proxy(t, s.inventoryAt), testkit.Proxy(t, s.paymentsAt)
	s.inventoryURL, s.paymentsURL = s.inventoryNet.Through(t, s.inventoryAt), s.paymentsNet.Through(t, s.paymentsAt)
	s.clients, err = b.shop.Clients(shop.ClientsOptions{Inventory: s.inventoryURL, Payments: s.paymentsURL, Limits: &limits})
	require.NoError(t, err)
	t.Cleanup(s.clients.Close)
	return s
}

func (s *services) to(url string) front { return front{bench: s.bench, url: url} }

func (s *services) count(sql string) (n int) {
	s.t.Helper()
	require.NoError(s.t, s.Pool.QueryRow(s.t.Context(), sql).Scan(&n))
	return n
}

// teas are what is for sale of the 100.
func (s *services) teas() int {
	return s.count(`SELECT available FROM ` + s.shop.Inventory.Schema() + `.stock WHERE sku = 'tea'`)
}

var ref = event.Ref{OrderID: "order-1", Tenant: "alpine"}

var twoTeas = []inventory.Line{{SKU: "tea", Quantity: 2}}

func TestAReservationIsMadeAndReleasedOnceOverHTTP(t *testing.T) {
	s := newServices(t)
	first, err := s.clients.Inventory.Reserve(t.Context(), ref, twoTeas)
	require.NoError(t, err)
	require.Equal(t, inventory.StatusActive, first.Status)
	require.WithinDuration(t, time.Now().Add(inventory.DefaultHold), first.ExpiresAt, time.Minute)
	again, err := s.clients.Inventory.Reserve(t.Context(), ref, twoTeas)
	require.NoError(t, err)
	require.Equal(t, first, again)
	require.Equal(t, 98, s.teas(), "held once")
	_, err = s.clients.Inventory.Reserve(t.Context(), ref, []inventory.Line{{SKU: "tea", Quantity: 3}})
	require.ErrorIs(t, err, inventory.ErrOther)
	asked, err := s.clients.Inventory.Reservation(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, first, asked)

	for range 2 {
		released, err := s.clients.Inventory.Release(t.Context(), ref, event.ReasonPaymentTimeout)
		require.NoError(t, err)
		require.Equal(t, inventory.StatusReleased, released.Status)
		require.Equal(t, 100, s.teas(), "given back once")
	}
	_, err = s.clients.Inventory.Reserve(t.Context(), ref, twoTeas)
	var rejected *inventory.RejectedError
	require.ErrorAs(t, err, &rejected)
	require.Equal(t, event.ReasonPaymentTimeout, rejected.Reason)
}

// A request to reserve that was on its way while its order was given up finds the tombstone.
func TestAReleaseKeepsALateReservationFromHolding(t *testing.T) {
	s := newServices(t)
	_, err := s.clients.Inventory.Reservation(t.Context(), ref)
	require.ErrorIs(t, err, inventory.ErrUnknown)
	_, err = s.clients.Inventory.Release(t.Context(), ref, event.ReasonPaymentTimeout)
	require.NoError(t, err)
	_, err = s.clients.Inventory.Reserve(t.Context(), ref, twoTeas)
	var rejected *inventory.RejectedError
	require.ErrorAs(t, err, &rejected)
	require.Equal(t, 100, s.teas())
}

func TestWhatIsSoldOutIsRefusedForGood(t *testing.T) {
	s := newServices(t)
	for sku, reason := range map[string]string{"gone": event.ReasonOutOfStock, "unheard-of": event.ReasonUnknownItem} {
		for range 2 {
			var rejected *inventory.RejectedError
			_, err := s.clients.Inventory.Reserve(t.Context(), event.Ref{OrderID: sku, Tenant: "alpine"}, []inventory.Line{{SKU: sku, Quantity: 1}, {SKU: "tea", Quantity: 1}})
			require.ErrorAs(t, err, &rejected)
			require.Equal(t, reason, rejected.Reason)
		}
	}
	require.Equal(t, 100, s.teas(), "all lines, or none")
	got := s.to(s.inventoryAt).ask(http.MethodPost, "/v1/reservations", "alpine", "x", `{"orderId": "x", "lines": [{"sku": "gone", "quantity": 1}]}`)
	require.Equal(t, 409, got.status)
	require.EqualValues(t, inventory.CodeOutOfStock, got.fields["code"])
	require.Equal(t, "gone", got.fields["sku"])
}

func TestWrongReservationsAreRefused(t *testing.T) {
	s := newServices(t)
	f := s.to(s.inventoryAt)
	const good = `{"orderId": "x", "lines": [{"sku": "tea", "quantity": 1}]}`
	for _, c := range []struct {
		path, tenant, key, body string
		code                    resilience.Code
	}{
		{"", "", "x", good, resilience.CodeInvalidRequest},
		{"", "alpine", "", good, resilience.CodeIdempotencyKeyMissing},
		{"", "alpine", "y", good, resilience.CodeInvalidRequest},
		{"", "alpine", "x", `{"orderId": "x"}`, resilience.CodeInvalidRequest},
		{"", "alpine", "x", `{"orderId": "x", "lines": [{"sku": "tea", "quantity": 0}]}`, resilience.CodeInvalidRequest},
		{"", "alpine", "x", `{"orderId": "x", "more": 1}`, resilience.CodeInvalidRequest},
		{"/x/release", "alpine", "x", `{"reason": "R"}`, resilience.CodeInvalidRequest},
		{"/x/release", "alpine", "release:x", `{"reason": ""}`, resilience.CodeInvalidRequest},
	} {
		got := f.ask(http.MethodPost, "/v1/reservations"+c.path, c.tenant, c.key, c.body)
		require.EqualValues(t, c.code, got.fields["code"], "%+v", c)
	}
	require.Zero(t, s.count(`SELECT count(*) FROM `+s.shop.Inventory.Schema()+`.reservations`))
}

// scenarios.md, one-reservation: the first call has its effect, and its answer is lost.
func TestAReservationWhoseAnswerIsLostIsOne(t *testing.T) {
	s := newServices(t)
	s.gate.dropAfter.Store(1)
	ctx, cancel := resilience.WithBudget(t.Context(), 5*time.Second)
	defer cancel()
	_, err := s.clients.Inventory.Reserve(ctx, ref, twoTeas)
	require.NoError(t, err)
	require.Equal(t, 98, s.teas())
	attempts, _ := resilience.BudgetOf(ctx).Attempts()
	require.Len(t, attempts, 2)
	require.Equal(t, 1, s.count(`SELECT count(*) FROM `+s.shop.Inventory.Schema()+`.reservations`))
}

// What is another tenant's is not there: it cannot be read, reserved, released or paid.
func TestAnotherTenantsOrderIsNotThere(t *testing.T) {
	s := newServices(t)
	_, err := s.clients.Inventory.Reserve(t.Context(), ref, twoTeas)
	require.NoError(t, err)
	_, err = s.clients.Payments.Authorise(t.Context(), ref, pay(100))
	require.NoError(t, err)
	other := event.Ref{OrderID: ref.OrderID, Tenant: "bazaar"}
	for name, call := range map[string]func() error{
		"reserve":   func() error { _, err := s.clients.Inventory.Reserve(t.Context(), other, twoTeas); return err },
		"read":      func() error { _, err := s.clients.Inventory.Reservation(t.Context(), other); return err },
		"release":   func() error { _, err := s.clients.Inventory.Release(t.Context(), other, "R"); return err },
		"authorise": func() error { _, err := s.clients.Payments.Authorise(t.Context(), other, pay(100)); return err },
		"payment":   func() error { _, err := s.clients.Payments.Payment(t.Context(), other); return err },
	} {
		err := call()
		require.True(t, isUnknown(err), "%s: %v", name, err)
	}
	cancelled, err := event.New(event.TypeOrderCancelled, ref.OrderID, event.OrderCancelled{Ref: other, Reason: "R"})
	require.NoError(t, err)
	for _, role := range s.roles {
		if role.Queue == inventory.Queue {
			require.NoError(t, s.handle(delivery{role: role, msg: cancelled}), "nor by an event")
		}
	}
	require.Equal(t, 98, s.teas())
	held, err := s.clients.Inventory.Reservation(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, inventory.StatusActive, held.Status)
	require.Len(t, s.simulator.Ledger().Charges, 1)
}

func isUnknown(err error) bool {
	return errors.Is(err, inventory.ErrUnknown) || errors.Is(err, payments.ErrUnknown)
}

func pay(cents int64) event.Payment {
	return event.Payment{AmountCents: cents, Currency: "EUR", Card: provider.CardGood}
}

func (s *services) attempts() []string {
	s.t.Helper()
	rows, err := s.Pool.Query(s.t.Context(), `SELECT operation || ' ' || outcome FROM `+s.shop.Payments.Schema()+`.payment_attempts ORDER BY id`)
	require.NoError(s.t, err)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(s.t, err)
	return list
}

func TestAPaymentIsMadeOnceOverHTTP(t *testing.T) {
	s := newServices(t)
	first, err := s.clients.Payments.Authorise(t.Context(), ref, pay(100))
	require.NoError(t, err)
	require.NotEmpty(t, first)
	again, err := s.clients.Payments.Authorise(t.Context(), ref, pay(100))
	require.NoError(t, err)
	require.Equal(t, first, again)
	asked, err := s.clients.Payments.Payment(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, first, asked)
	_, err = s.clients.Payments.Authorise(t.Context(), ref, pay(200))
	require.ErrorIs(t, err, payments.ErrOther)
	require.Equal(t, []string{"charge STARTED", "charge CHARGED"}, s.attempts())
	require.Equal(t, 1, s.simulator.Ledger().ChargeRequests[ref.OrderID])
	_, err = s.Pool.Exec(t.Context(), `UPDATE `+s.shop.Payments.Schema()+`.payment_attempts SET outcome = 'UNKNOWN'`)
	require.ErrorContains(t, err, "never changed")
}

func TestADeclinedCardIsFinal(t *testing.T) {
	s := newServices(t)
	card := pay(100)
	card.Card = provider.CardDeclined
	for range 2 {
		_, err := s.clients.Payments.Authorise(t.Context(), ref, card)
		require.ErrorIs(t, err, payments.ErrDeclined)
	}
	require.Equal(t, 1, s.simulator.Ledger().ChargeRequests[ref.OrderID], "402 is not asked for again")
	got := s.to(s.paymentsAt).ask(http.MethodPost, "/v1/payments", "alpine", ref.OrderID, `{"orderId": "order-1", "amountCents": 100, "currency": "EUR", "card": "tok_declined"}`)
	require.Equal(t, 402, got.status)
	require.EqualValues(t, payments.CodeDeclined, got.fields["code"])
	state := s.to(s.paymentsAt).ask(http.MethodGet, "/v1/payments/"+ref.OrderID, "alpine", "", "")
	require.Equal(t, "Declined", state.fields["paymentStatus"])
}

// scenarios.md, fallback: the answer to a charge whose outcome nobody knows, and what follows from asking again.
func TestADoubtIsAskedForAndNeverChargedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		fault   provider.Fault
		charges int
		after   string // what the provider says in the end
	}{
		"charged": {provider.FaultHang, 1, "Confirmed"},
		"not yet": {provider.FaultHangBefore, 0, "PendingConfirmation"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServices(t)
			require.NoError(t, s.simulator.SetRules(provider.Rule{Fault: c.fault, DelayMS: 60_000}))
			f := s.to(s.paymentsAt)
			const body = `{"orderId": "order-1", "amountCents": 100, "currency": "EUR", "card": "tok_good"}`
			got := f.ask(http.MethodPost, "/v1/payments", "alpine", ref.OrderID, body)
			require.Equal(t, http.StatusAccepted, got.status)
			delete(got.fields, "message")
			require.Equal(t, map[string]any{
				"paymentStatus": "PendingConfirmation", "paymentConfirmed": false, "isFallback": true, "source": "payment-provider", "reason": "primary-timeout",
				"requiresStatusCheck": true, "retryAdvice": "retry-with-same-idempotency-key", "idempotencyKey": "order-1", "transactionId": nil,
			}, got.fields)
			require.NoError(t, s.simulator.SetRules())
			for range 2 {
				again := f.ask(http.MethodPost, "/v1/payments", "alpine", ref.OrderID, body)
				require.Equal(t, c.after, again.fields["paymentStatus"])
				state := f.ask(http.MethodGet, "/v1/payments/order-1", "alpine", "", "")
				require.Equal(t, c.after, state.fields["paymentStatus"])
			}
			ledger := s.simulator.Ledger()
			require.Len(t, ledger.Charges, c.charges)
			require.Equal(t, 1, ledger.ChargeRequests[ref.OrderID], "asked, and never charged again")
			require.NotEmpty(t, ledger.Checks)
		})
	}
}

// Between two attempts of one call too: the provider is asked what became of the first.
func TestTheSecondAttemptAsksFirst(t *testing.T) {
	for fault, requests := range map[provider.Fault]int{provider.FaultHang: 1, provider.FaultHangBefore: 2} {
		t.Run(string(fault), func(t *testing.T) {
			s := newServices(t, func(l *shop.Limits) {
				l.Provider.Retry = resilience.Retry{Attempts: 3, Base: time.Millisecond}
				l.Provider.Deadline, l.Payments.Deadline, l.Payments.Timeout = 8*time.Second, 9*time.Second, 9*time.Second
			})
			require.NoError(t, s.simulator.SetRules(provider.Rule{Fault: fault, Times: 1}))
			_, err := s.clients.Payments.Authorise(t.Context(), ref, pay(100))
			require.NoError(t, err)
			ledger := s.simulator.Ledger()
			require.Equal(t, requests, ledger.ChargeRequests[ref.OrderID])
			require.Len(t, ledger.Checks, 1)
			require.Len(t, ledger.Charges, 1)
		})
	}
}

// A circuit that is open, or a provider that is not there, has certainly charged nothing: the caller may try again later.
func TestAPaymentThatWasNotBegunIsForgotten(t *testing.T) {
	s := newServices(t, func(l *shop.Limits) {
		l.Provider.Breaker = resilience.Breaker{Failures: 1, Open: 1500 * time.Millisecond}
	})
	require.NoError(t, s.simulator.SetRules(provider.Rule{Fault: provider.FaultHangBefore}))
	_, err := s.clients.Payments.Authorise(t.Context(), event.Ref{OrderID: "opens", Tenant: "alpine"}, pay(1))
	require.Error(t, err)
	require.NoError(t, s.simulator.SetRules())
	_, err = s.clients.Payments.Authorise(t.Context(), ref, pay(100))
	require.Equal(t, resilience.CodeDependencyUnavailable, resilience.CodeOf(err), "%v", err)
	_, err = s.clients.Payments.Payment(t.Context(), ref)
	require.ErrorIs(t, err, payments.ErrUnknown)
	testkit.EventuallyNil(t, 10*time.Second, "the circuit to let a probe through", func() error {
		_, err := s.clients.Payments.Authorise(t.Context(), ref, pay(100))
		return err
	})
	require.Equal(t, 1, s.simulator.Ledger().ChargeRequests[ref.OrderID])
}

// scenarios.md, reconciliation: the provider charged 4 of 6 and declined 2; nobody here knows.
func TestReconciliationAsksAndNeverCharges(t *testing.T) {
	s := newServices(t, func(l *shop.Limits) { l.Provider.Breaker.Failures = 10 })
	require.NoError(t, s.simulator.SetRules(provider.Rule{Fault: provider.FaultSlow, DelayMS: 60_000}))
	ids := []string{"a", "b", "c", "d", "e", "f"}
	for i, id := range ids {
		p := pay(100)
		if i >= 4 {
			p.Card = provider.CardDeclined
		}
		_, err := s.clients.Payments.Authorise(t.Context(), event.Ref{OrderID: id, Tenant: "alpine"}, p)
		var pending *payments.PendingError
		require.ErrorAs(t, err, &pending)
	}
	early, err := s.desk.Reconciler.Once(t.Context())
	require.NoError(t, err)
	require.Equal(t, payments.Reconciled{Checks: 6, Pending: 6}, early, "an answer that is still unknown stays pending")
	require.NoError(t, s.simulator.SetRules()) // lets the provider finish
	testkit.Eventually(t, 10*time.Second, "the provider to have charged", func() bool { return len(s.simulator.Ledger().Charges) == 4 })
	requests := s.simulator.Ledger().ChargeRequests
	testkit.EventuallyNil(t, 10*time.Second, "all outcomes", func() error {
		_, err := s.desk.Reconciler.Once(t.Context())
		if err == nil && s.count(`SELECT count(*) FROM `+s.shop.Payments.Schema()+`.payments WHERE status = 'CHARGING'`) > 0 {
			err = context.DeadlineExceeded
		}
		return err
	})
	require.Equal(t, 4, s.count(`SELECT count(*) FROM `+s.shop.Payments.Schema()+`.payments WHERE status = 'CHARGED' AND charge_id IS NOT NULL`))
	require.Equal(t, 2, s.count(`SELECT count(*) FROM `+s.shop.Payments.Schema()+`.payments WHERE status = 'DECLINED' AND charge_id IS NULL`))
	ledger := s.simulator.Ledger()
	require.Equal(t, requests, ledger.ChargeRequests, "no new charge")
	require.GreaterOrEqual(t, len(ledger.Checks), 12)
	done, err := s.desk.Reconciler.Once(t.Context())
	require.NoError(t, err)
	require.Zero(t, done)
}

// After a failed attempt the queue's handler asks before it charges.
func TestTheSagaAsksBeforeItChargesAgain(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.simulator.SetRules(provider.Rule{Fault: provider.FaultHang, Times: 1}))
	id := b.submit()
	b.run()
	d := b.failedWith(resilience.ClassTimeout)
	b.failed[0].msg.Attempts = 1
	b.retry()
	require.Equal(t, 1, b.simulator.Ledger().ChargeRequests[id], "%s is asked for", d.msg.Type)
	require.Equal(t, []string{id}, b.simulator.Ledger().Checks)
	b.ends("CONFIRMED", "")
}
