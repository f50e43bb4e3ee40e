package shop_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/examples/shop/catalog"
	"github.com/surefoot-mq/surefoot/examples/shop/customers"
	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/inventory"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// till is the shop over HTTP with inventory and payments behind networks that can fail.
type till struct {
	*services
	front    front
	api      *shop.API
	recovery *orders.Recovery
}

func newTill(t *testing.T, change ...func(*shop.Limits)) *till {
	t.Helper()
	return newTillOn(t, newBench(t), change...)
}

func newTillOn(t *testing.T, b *bench, change ...func(*shop.Limits)) *till {
	t.Helper()
	s := newServicesOn(t, b, change...)
	var people []customers.Customer
	for _, tenant := range []string{"alpine", "bazaar"} {
		people = append(people, customers.Customer{Tenant: tenant, ID: "c1", Customer: event.Customer{Name: "Zoë", Email: "zoe@mail.example"}})
	}
	require.NoError(t, b.shop.SeedCatalog(t.Context(), []catalog.Item{
		{SKU: "tea", Name: "Thé", UnitPriceCents: 1290, Currency: "EUR"},
		{SKU: "cup", Name: "Tasse", UnitPriceCents: 890, Currency: "EUR"},
		{SKU: "gone", Name: "Gone", UnitPriceCents: 1, Currency: "EUR"},
		{SKU: "last", Name: "Last", UnitPriceCents: 1, Currency: "EUR"},
	}, people))
	limits := quick()
	for _, c := range change {
		c(&limits)
	}
	var err error
	s.clients, err = b.shop.Clients(shop.ClientsOptions{
		Catalog: serveRoutes(t, b.shop.Catalog.Routes), Customers: serveRoutes(t, b.shop.Customers.Routes),
		Inventory: s.inventoryURL, Payments: s.paymentsURL, Limits: &limits,
	})
	require.NoError(t, err)
	t.Cleanup(s.clients.Close)
	tl := &till{services: s}
	tl.api, err = b.shop.API(shop.APIOptions{Clients: s.clients})
	require.NoError(t, err)
	tl.front = s.to(serveRoutes(t, tl.api.Routes))
	tl.recovery = tl.newRecovery(orders.RecoveryOptions{})
	return tl
}

// newRecovery looks at every case in every round.
func (tl *till) newRecovery(o orders.RecoveryOptions) *orders.Recovery {
	tl.t.Helper()
	o.Wait, o.MaxWait = time.Nanosecond, time.Nanosecond
	r, err := tl.shop.Recovery(tl.clients, o)
	require.NoError(tl.t, err)
	return r
}

func (tl *till) buy(key string) reply {
	tl.t.Helper()
	return tl.front.ask(http.MethodPost, "/v1/orders", "alpine", key, syncOrder)
}

const syncOrder = `{"customerId": "c1", "lines": [{"sku": "tea", "quantity": 2}], "card": "tok_good", "checkout": "sync"}`

func (tl *till) state(r reply) map[string]any {
	tl.t.Helper()
	return tl.front.ask(http.MethodGet, r.header.Get("Location"), "alpine", "", "").fields
}

// recover works on the open cases at once.
func (tl *till) recover(r *orders.Recovery) orders.Recovered {
	tl.t.Helper()
	_, err := tl.Pool.Exec(tl.t.Context(), `UPDATE `+tl.shop.Orders.Schema()+`.recovery_cases SET next_at = now() WHERE state = 'open'`)
	require.NoError(tl.t, err)
	did, err := r.Once(tl.t.Context())
	require.NoError(tl.t, err)
	return did
}

func (tl *till) cases(state string) int {
	return tl.count(`SELECT count(*) FROM ` + tl.shop.Orders.Schema() + `.recovery_cases WHERE state = '` + state + `'`)
}

func (tl *till) pendingKeys() int {
	return tl.count(`SELECT count(*) FROM ` + tl.Schema + `.idempotency WHERE pending`)
}

// noLeaks demands that nothing is held for an order that has ended without it.
func (tl *till) noLeaks() {
	tl.t.Helper()
	require.Zero(tl.t, tl.count(`SELECT count(*) FROM `+tl.shop.Inventory.Schema()+`.reservations AS r JOIN `+tl.shop.Orders.Schema()+`.orders AS o ON o.id = r.order_id
		WHERE r.status = 'ACTIVE' AND o.status = 'CANCELLED'`), "leaked reservations")
}

func TestASyncCheckoutIsAcceptedInItsAnswer(t *testing.T) {
	tl := newTill(t)
	got := tl.buy("k1")
	require.Equal(t, http.StatusCreated, got.status, "%v", got.fields)
	require.Equal(t, "accepted", got.fields["status"])
	again := tl.buy("k1")
	require.Equal(t, got.fields, again.fields)
	require.Equal(t, "true", again.header.Get(idempotency.HeaderReplayed))
	require.Len(t, tl.simulator.Ledger().Charges, 1)
	require.Equal(t, 98, tl.teas())
	require.Zero(t, tl.pendingKeys())

	state := tl.state(got)
	require.Equal(t, "accepted", state["status"])
	trace := state["trace"].(map[string]any)
	require.Equal(t, "request-of-k1", trace["requestId"])
	attempts := trace["attempts"].([]any)
	require.Len(t, attempts, 2)
	require.Equal(t, "authorise", attempts[0].(map[string]any)["operation"])
	require.Zero(t, tl.count(`SELECT count(*) FROM `+tl.Schema+`.outbox WHERE type IN ('order.created', 'stock.reserved')`), "nothing asks for it a second time")
	tl.run()
	require.Equal(t, "COMMITTED", tl.ends(orders.StatusConfirmed, "").Reservation)
	require.Empty(t, tl.failed)
}

func TestASyncCheckoutThatCannotBeIsRefusedForGood(t *testing.T) {
	for name, c := range map[string]struct {
		sku, card string
		status    int
		code      string
	}{
		"sold out": {"gone", provider.CardGood, 409, event.ReasonOutOfStock},
		"declined": {"tea", provider.CardDeclined, 402, event.ReasonCardDeclined},
	} {
		t.Run(name, func(t *testing.T) {
			tl := newTill(t)
			body := strings.NewReplacer("tea", c.sku, provider.CardGood, c.card).Replace(syncOrder)
			for range 2 {
				got := tl.front.ask(http.MethodPost, "/v1/orders", "alpine", "k1", body)
				require.Equal(t, c.status, got.status, "%v", got.fields)
				require.Equal(t, c.code, got.fields["code"])
				require.Equal(t, "failed", tl.state(got)["status"])
			}
			require.Equal(t, 100, tl.teas(), "released at once")
			require.Empty(t, tl.simulator.Ledger().Charges)
			require.Zero(t, tl.pendingKeys())
			tl.run()
			tl.ends(orders.StatusCancelled, c.code)
		})
	}
}

// An inventory that certainly did nothing leaves no order behind: the customer tries again, with the same key.
func TestASyncCheckoutWithoutInventoryIsTriedLater(t *testing.T) {
	tl := newTill(t)
	tl.inventoryNet.Cut()
	got := tl.buy("k1")
	require.Equal(t, http.StatusServiceUnavailable, got.status, "%v", got.fields)
	require.EqualValues(t, resilience.CodeDependencyUnavailable, got.fields["code"])
	require.NotEmpty(t, got.header.Get("Retry-After"))
	require.Zero(t, tl.front.rows(), "no half order")
	tl.inventoryNet.Heal(t)
	require.Equal(t, http.StatusCreated, tl.buy("k1").status)
}

// The reservation is made, and the answer lost for good: the order is recovered, and its stock is reserved once.
func TestAReservationThatIsUnknownIsRecovered(t *testing.T) {
	tl := newTill(t)
	tl.gate.dropAfter.Store(3)
	got := tl.buy("k1")
	require.Equal(t, http.StatusAccepted, got.status, "%v", got.fields)
	require.Equal(t, "recovering", got.fields["status"])
	state := tl.state(got)
	require.Equal(t, "recovering", state["status"])
	require.Equal(t, orders.ReasonReservationUnknown, state["trace"].(map[string]any)["recovery"].(map[string]any)["reason"])
	require.Equal(t, http.StatusAccepted, tl.buy("k1").status, "the latest status, and nothing is asked twice")
	require.Equal(t, 1, tl.pendingKeys())

	require.Equal(t, orders.Recovered{Taken: 1, Accepted: 1}, tl.recover(tl.recovery))
	require.Zero(t, tl.pendingKeys(), "the answer is remembered with the end")
	require.Equal(t, http.StatusCreated, tl.buy("k1").status)
	require.Equal(t, "accepted", tl.state(got)["status"])
	require.Equal(t, 98, tl.teas())
	require.Len(t, tl.simulator.Ledger().Charges, 1)
	require.Equal(t, 1, tl.cases(orders.CaseAccepted))
	tl.run()
	tl.ends(orders.StatusConfirmed, "")
}

// The money may have been taken: the customer is told just that. The provider is asked, and charges once.
func TestAPaymentThatIsUnknownIsRecovered(t *testing.T) {
	tl := newTill(t)
	require.NoError(t, tl.simulator.SetRules(provider.Rule{Fault: provider.FaultHang, Times: 1}))
	got := tl.buy("k1")
	require.Equal(t, http.StatusAccepted, got.status, "%v", got.fields)
	require.Equal(t, "PendingConfirmation", got.fields["payment"].(map[string]any)["paymentStatus"])
	require.Equal(t, orders.StatusStockReserved, tl.state(got)["trace"].(map[string]any)["status"])
	require.Equal(t, orders.Recovered{Taken: 1, Accepted: 1}, tl.recover(tl.recovery))
	require.Equal(t, http.StatusCreated, tl.buy("k1").status)
	ledger := tl.simulator.Ledger()
	require.Len(t, ledger.Charges, 1)
	for _, n := range ledger.ChargeRequests {
		require.Equal(t, 1, n)
	}
	require.Len(t, ledger.Checks, 1)
	require.Equal(t, []string{"reserve", "authorise", "ask for reservation", "ask for payment"}, tl.operations(got), "asked, and not authorised again")
	tl.run()
	tl.ends(orders.StatusConfirmed, "")
}

// The payments were not asked at all: the worker does, as long as there is time.
func TestAPaymentThatWasNotAskedForIsMadeByTheWorker(t *testing.T) {
	tl := newTill(t)
	tl.paymentsNet.Cut()
	got := tl.buy("k1")
	require.Equal(t, http.StatusAccepted, got.status, "%v", got.fields)
	require.Equal(t, orders.Recovered{Taken: 1, Open: 1}, tl.recover(tl.recovery), "still away")
	tl.paymentsNet.Heal(t)
	testkit.Eventually(t, 10*time.Second, "the order to be paid", func() bool { return tl.recover(tl.recovery).Accepted == 1 })
	require.Equal(t, http.StatusCreated, tl.buy("k1").status)
	require.Len(t, tl.simulator.Ledger().Charges, 1)
}

// scenarios.md, compensation: the authority is asked first; what is held is released once; another tenant's order is untouched.
func TestAnOrderThatCannotGoOnIsCompensated(t *testing.T) {
	tl := newTill(t)
	other := tl.front.ask(http.MethodPost, "/v1/orders", "bazaar", "k1", syncOrder)
	require.Equal(t, http.StatusCreated, other.status, "%v", other.fields)
	require.NoError(t, tl.simulator.SetRules(provider.Rule{Fault: provider.FaultHangBefore, Tenant: "alpine"}))
	got := tl.buy("k1")
	require.Equal(t, http.StatusAccepted, got.status)
	require.Equal(t, 96, tl.teas())
	require.Equal(t, orders.Recovered{Taken: 1, Open: 1}, tl.recover(tl.recovery), "not known yet is no reason to give up")

	late := tl.newRecovery(orders.RecoveryOptions{FinishWithin: time.Nanosecond})
	require.Equal(t, orders.Recovered{Taken: 1, Compensated: 1}, tl.recover(late))
	require.Equal(t, 98, tl.teas())
	failed := tl.buy("k1")
	require.Equal(t, 409, failed.status)
	require.EqualValues(t, event.ReasonPaymentTimeout, failed.fields["code"])
	require.Equal(t, "failed", tl.state(got)["status"])
	require.Equal(t, orders.Recovered{}, tl.recover(late), "once")
	require.NoError(t, tl.simulator.SetRules())
	tl.run()
	account := tl.account()
	require.Zero(t, account.Pending)
	for _, o := range account.Orders {
		require.Equal(t, map[string]string{"alpine": "RELEASED", "bazaar": "COMMITTED"}[o.Tenant], o.Reservation)
	}
	tl.noLeaks()
	operations := tl.operations(got)
	require.Contains(t, operations, "ask for reservation")
	require.Equal(t, "release", operations[len(operations)-1], "the last thing, after all the questions")
}

func (tl *till) operations(of reply) []string {
	tl.t.Helper()
	rows, err := tl.Pool.Query(tl.t.Context(), `SELECT operation FROM `+tl.shop.Orders.Schema()+`.order_attempts WHERE order_id = $1 ORDER BY id`, tl.state(of)["orderId"])
	require.NoError(tl.t, err)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(tl.t, err)
	return list
}

// What no authority can tell for too long is a person's, with what is known; and tried again when that one says so.
func TestWhatStaysUnknownIsLeftToAPersonWithEvidence(t *testing.T) {
	tl := newTill(t)
	tl.paymentsNet.Cut()
	got := tl.buy("k1")
	require.Equal(t, http.StatusAccepted, got.status)
	impatient := tl.newRecovery(orders.RecoveryOptions{GiveUpAfter: time.Nanosecond})
	require.Equal(t, orders.Recovered{Taken: 1, Manual: 1}, tl.recover(impatient))
	list, err := tl.shop.Orders.Cases(t.Context(), tl.Pool)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, orders.CaseManual, list[0].State)
	require.Equal(t, "ACTIVE", list[0].Evidence["reservation"])
	require.Contains(t, list[0].Evidence["payment"], "unknown")
	require.Equal(t, "recovering", tl.state(got)["status"])
	require.Equal(t, orders.Recovered{}, tl.recover(tl.recovery), "nobody touches it")

	tl.paymentsNet.Heal(t)
	reopen := func(tenant string) (done bool) {
		require.NoError(t, pgx.BeginFunc(t.Context(), tl.Pool, func(tx pgx.Tx) error {
			done, err = tl.shop.Orders.Reopen(t.Context(), tx, tenant, list[0].OrderID)
			return err
		}))
		return done
	}
	require.False(t, reopen("bazaar"))
	require.True(t, reopen("alpine"))
	testkit.Eventually(t, 10*time.Second, "the order to be paid", func() bool { return tl.recover(tl.recovery).Accepted == 1 })
}

// A process that is gone in the middle of a checkout has left the order, and the key as pending: a case is opened for it.
func TestAnInterruptedCheckoutIsFound(t *testing.T) {
	tl := newTill(t)
	tl.gate.close()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, tl.front.url+"/v1/orders", strings.NewReader(syncOrder))
	require.NoError(t, err)
	r.Header.Set(customers.HeaderTenant, "alpine")
	r.Header.Set(idempotency.HeaderKey, "k1")
	gone := make(chan error, 1)
	go func() {
		response, err := http.DefaultClient.Do(r)
		if err == nil {
			_ = response.Body.Close()
		}
		gone <- err
	}()
	testkit.Eventually(t, 10*time.Second, "the inventory to be asked", func() bool { return tl.gate.held("alpine") > 0 })
	cancel()
	require.Error(t, <-gone)
	tl.gate.release()
	testkit.Eventually(t, 10*time.Second, "the checkout to end", func() bool { return tl.pendingKeys() == 1 && tl.gate.held("") == 0 })
	require.Equal(t, orders.Recovered{}, tl.recover(tl.recovery), "it may still be under way")
	swift := tl.newRecovery(orders.RecoveryOptions{Grace: time.Nanosecond})
	testkit.Eventually(t, 10*time.Second, "the order to be finished", func() bool { return tl.recover(swift).Accepted == 1 })
	require.Equal(t, http.StatusCreated, tl.buy("k1").status)
	require.Zero(t, tl.pendingKeys())
	require.Len(t, tl.simulator.Ledger().Charges, 1)
}

// The news of the payment may come by its event first: then the case only closes.
func TestACaseClosesWhenItsOrderHasEndedOtherwise(t *testing.T) {
	tl := newTill(t)
	require.NoError(t, tl.simulator.SetRules(provider.Rule{Fault: provider.FaultHang, Times: 1}))
	require.Equal(t, http.StatusAccepted, tl.buy("k1").status)
	found, err := tl.desk.Reconciler.Once(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, found.Charged)
	tl.run()
	require.Equal(t, orders.Recovered{Taken: 1, Accepted: 1}, tl.recover(tl.recovery))
	require.Equal(t, http.StatusCreated, tl.buy("k1").status)
	tl.ends(orders.StatusConfirmed, "")
}

// Two workers that took the same case: the one whose lease ran out changes nothing.
func TestACaseIsMovedByWhoeverTookItLast(t *testing.T) {
	tl := newTill(t)
	require.NoError(t, tl.simulator.SetRules(provider.Rule{Fault: provider.FaultHang, Times: 1}))
	require.Equal(t, http.StatusAccepted, tl.buy("k1").status)
	_, err := tl.Pool.Exec(t.Context(), `UPDATE `+tl.shop.Orders.Schema()+`.recovery_cases SET next_at = now()`)
	require.NoError(t, err)
	tl.gate.close()
	slow := make(chan orders.Recovered, 1)
	go func() {
		did, err := tl.recovery.Once(t.Context())
		if err != nil {
			did.Taken = -1
		}
		slow <- did
	}()
	testkit.Eventually(t, 10*time.Second, "the first worker to ask", func() bool { return tl.gate.held("alpine") > 0 })
	_, err = tl.Pool.Exec(t.Context(), `UPDATE `+tl.shop.Orders.Schema()+`.recovery_cases SET next_at = now(), version = version + 1`)
	require.NoError(t, err) // its lease is over, and another one has taken the case
	tl.gate.release()
	require.Equal(t, orders.Recovered{Taken: 1}, <-slow)
	require.Equal(t, 1, tl.cases(orders.CaseOpen))
	require.Equal(t, orders.Recovered{Taken: 1, Accepted: 1}, tl.recover(tl.recovery))
}

func TestOneOpenCasePerOrder(t *testing.T) {
	tl := newTill(t)
	tl.paymentsNet.Cut()
	got := tl.buy("k1")
	require.Equal(t, http.StatusAccepted, got.status)
	swift := tl.newRecovery(orders.RecoveryOptions{Grace: time.Nanosecond})
	for range 3 {
		require.Equal(t, orders.Recovered{Taken: 1, Open: 1}, tl.recover(swift))
	}
	_, err := tl.Pool.Exec(t.Context(), `INSERT INTO `+tl.shop.Orders.Schema()+`.recovery_cases (tenant, order_id, reason) VALUES ('alpine', $1, 'X')`, got.fields["orderId"])
	require.ErrorContains(t, err, "recovery_cases_open")
	require.Equal(t, 1, tl.count(`SELECT count(*) FROM `+tl.shop.Orders.Schema()+`.recovery_cases`))
	_, err = tl.Pool.Exec(t.Context(), `UPDATE `+tl.shop.Orders.Schema()+`.order_attempts SET class = 'done'`)
	require.ErrorContains(t, err, "never changed")
}

// The cases of one tenant, however many, do not keep another's waiting.
func TestCasesAreTakenTenantByTenant(t *testing.T) {
	tl := newTill(t)
	tl.inventoryNet.Cut()
	for i := range 10 {
		tl.submit(func(o *orders.Order) { o.IdempotencyKey, o.Checkout = fmt.Sprintf("k%d", i), orders.CheckoutSync })
	}
	quiet := tl.submit(func(o *orders.Order) { o.Tenant, o.Checkout = "bazaar", orders.CheckoutSync })
	r := tl.newRecovery(orders.RecoveryOptions{Grace: time.Nanosecond, Batch: 2, Lease: 2 * time.Second})
	did, err := r.Once(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, did.Taken)
	var asked int
	require.NoError(t, tl.Pool.QueryRow(t.Context(), `SELECT version FROM `+tl.shop.Orders.Schema()+`.recovery_cases WHERE order_id = $1`, quiet).Scan(&asked))
	require.NotZero(t, asked, "the last one to come is among the first")
}

// What was held has expired while nobody could be asked for the money: the order is cancelled, and nothing is charged for it.
func TestAnExpiredReservationEndsItsRecovery(t *testing.T) {
	tl := newTill(t)
	tl.paymentsNet.Cut()
	got := tl.buy("k1")
	require.Equal(t, http.StatusAccepted, got.status)
	tl.age(got.fields["orderId"].(string), 15*time.Minute+time.Second)
	timeouts, expired := tl.watch(16 * time.Minute)
	require.Equal(t, [2]int{0, 1}, [2]int{timeouts, expired})
	tl.paymentsNet.Heal(t)
	require.Equal(t, orders.Recovered{Taken: 1, Compensated: 1}, tl.recover(tl.recovery))
	require.Equal(t, event.ReasonReservationExpired, tl.buy("k1").fields["code"])
	require.Equal(t, 100, tl.teas())
	tl.run()
	require.Zero(t, tl.ends(orders.StatusCancelled, event.ReasonReservationExpired).Charges)
	tl.noLeaks()
}

// scenarios.md, tenant-bulkhead: a noisy tenant has its share of the places, and no more; the quiet one is served meanwhile.
func TestANoisyTenantLeavesRoomForAQuietOne(t *testing.T) {
	tl := newTill(t, func(l *shop.Limits) { l.Inventory.Deadline, l.Inventory.Timeout = 20*time.Second, 10*time.Second })
	tl.gate.close()
	const noisy = 16 // 4 places, 8 waiting, and the rest
	answers := make(chan reply, noisy+1)
	var all sync.WaitGroup
	for i := range noisy {
		all.Go(func() { answers <- tl.buy(fmt.Sprintf("k%d", i)) })
	}
	var shed []reply
	for len(shed) < noisy-12 {
		got := <-answers
		shed = append(shed, got)
	}
	for _, got := range shed {
		require.Equal(t, 503, got.status, "%v", got.fields)
		require.EqualValues(t, resilience.CodeDependencyOverloaded, got.fields["code"])
		require.NotEmpty(t, got.header.Get("Retry-After"))
	}
	testkit.Eventually(t, 10*time.Second, "the noisy tenant's share to be used", func() bool { return tl.gate.held("alpine") == 4 })
	quiet := make(chan reply, 1)
	all.Go(func() { quiet <- tl.front.ask(http.MethodPost, "/v1/orders", "bazaar", "k1", syncOrder) })
	testkit.Eventually(t, 10*time.Second, "the quiet tenant to have a place", func() bool { return tl.gate.held("bazaar") == 1 })
	tl.gate.release()
	require.Equal(t, http.StatusCreated, (<-quiet).status)
	all.Wait()
	for range 12 {
		require.Equal(t, http.StatusCreated, (<-answers).status)
	}
	require.Equal(t, 4, tl.gate.peak("alpine"))
	require.Len(t, tl.simulator.Ledger().Charges, 13)
	require.Equal(t, 13, tl.front.rows(), "what was shed left nothing")
}

// scenarios.md, breaker-recovery: the circuit opens, calls are shed, a probe closes it, and what is uncertain ends.
func TestOrdersEndWhenTheInventoryIsBack(t *testing.T) {
	tl := newTill(t, func(l *shop.Limits) {
		l.Inventory.Deadline, l.Inventory.Timeout, l.Inventory.Retry.Attempts = 250*time.Millisecond, 200*time.Millisecond, 1
		l.Inventory.Breaker = resilience.Breaker{Failures: 3, Consecutive: true, Open: 1500 * time.Millisecond, Probes: 2}
	})
	tl.gate.close()
	for i := range 3 {
		require.Equal(t, http.StatusAccepted, tl.buy(fmt.Sprintf("k%d", i)).status)
	}
	require.Equal(t, policy.Open, tl.clients.Policy(inventory.Name).State())
	require.Equal(t, http.StatusServiceUnavailable, tl.buy("shed").status)
	tl.gate.release()
	testkit.Eventually(t, 20*time.Second, "every order to end", func() bool {
		tl.recover(tl.recovery)
		return tl.cases(orders.CaseOpen) == 0
	})
	require.Equal(t, policy.Closed, tl.clients.Policy(inventory.Name).State())
	require.Equal(t, 3, tl.cases(orders.CaseAccepted))
	require.Len(t, tl.simulator.Ledger().Charges, 3)
	tl.run()
	account := tl.account()
	require.Len(t, account.Orders, 3)
	require.Zero(t, account.Pending)
	tl.noLeaks()
}

// Concurrent tries of one order are one reservation and one charge.
func TestOneOrderHoweverOftenItIsSent(t *testing.T) {
	tl := newTill(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if got := tl.buy("k1"); got.status != http.StatusCreated {
				t.Errorf("%d %v", got.status, got.fields)
			}
		})
	}
	all.Wait()
	require.Equal(t, 98, tl.teas())
	require.Len(t, tl.simulator.Ledger().Charges, 1)
	require.Equal(t, []string{"charge STARTED", "charge CHARGED"}, tl.attempts())
}
