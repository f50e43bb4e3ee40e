package shop_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/examples/shop/customers"
	"github.com/surefoot-mq/surefoot/examples/shop/inventory"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/payments"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// Whatever answers at a service's address without saying what was asked for has told nothing: neither success nor refusal.
func TestAnswersAboutSomethingElseAreDoubts(t *testing.T) {
	b := newBench(t)
	for name, body := range map[string]string{
		"nothing": `{}`, "null": `null`, "a page": `<html>`,
		"another's":                  `{"orderId":"other","status":"ACTIVE","expiresAt":"2030-01-01T00:00:00Z","paymentStatus":"Confirmed","transactionId":"ch_1","idempotencyKey":"other"}`,
		"a status that there is not": `{"orderId":"order-1","status":"FINE"}`,
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
			t.Cleanup(server.Close)
			c, err := b.shop.Clients(shop.ClientsOptions{Catalog: server.URL, Customers: server.URL, Inventory: server.URL, Payments: server.URL})
			require.NoError(t, err)
			t.Cleanup(c.Close)
			for op, call := range map[string]func() error{
				"items":     func() error { _, err := c.Catalog.Items(t.Context(), []string{"tea"}); return err },
				"customer":  func() error { _, err := c.Customers.Customer(t.Context(), "alpine", "c1"); return err },
				"reserve":   func() error { _, err := c.Inventory.Reserve(t.Context(), ref, twoTeas); return err },
				"read":      func() error { _, err := c.Inventory.Reservation(t.Context(), ref); return err },
				"release":   func() error { _, err := c.Inventory.Release(t.Context(), ref, "R"); return err },
				"authorise": func() error { _, err := c.Payments.Authorise(t.Context(), ref, pay(100)); return err },
				"payment":   func() error { _, err := c.Payments.Payment(t.Context(), ref); return err },
			} {
				err := call()
				require.Error(t, err, op)
				for _, answer := range []error{inventory.ErrUnknown, inventory.ErrCommitted, payments.ErrUnknown, payments.ErrDeclined, payments.ErrReversed} {
					require.NotErrorIs(t, err, answer, op)
				}
				var refused *policy.Error
				require.False(t, errors.As(err, &refused) && refused.Effect == policy.EffectNone, "%s: nobody knows whether it had an effect", op)
			}
		})
	}
}

// What PostgreSQL cannot keep is refused before it is asked: as a failure of the service it would open the circuits that everybody
// shares.
func TestTextThatNoTableHoldsIsRefused(t *testing.T) {
	tl := newTill(t)
	catalogAt, customersAt := serveRoutes(t, tl.shop.Catalog.Routes), serveRoutes(t, tl.shop.Customers.Routes)
	for _, text := range []string{"%00", "tea%00", "%ff%fe", "%ed%a0%80", "%0a", "%1b%5b2J", "%3Cscript%3E", strings.Repeat("x", 10_000), "%F0%9F%8D%B5", "a%20b", "%27%3B--"} {
		for _, c := range []struct{ url, path string }{
			{tl.front.url, "/v1/orders/" + text},
			{tl.front.url, "/v1/storefront?sku=" + text},
			{tl.front.url, "/v1/storefront?sku=tea&sku=" + text},
			{catalogAt, "/v1/items?sku=" + text},
			{customersAt, "/v1/customers/" + text},
			{tl.inventoryAt, "/v1/reservations/" + text},
			{tl.paymentsAt, "/v1/payments/" + text},
		} {
			got := tl.to(c.url).ask(http.MethodGet, c.path, "alpine", "", "")
			require.True(t, got.status >= 400 && got.status < 500, "%s: %d %v", c.path, got.status, got.fields)
		}
	}
	got := tl.to(tl.paymentsAt).ask(http.MethodPost, "/v1/payments", "alpine", "x", `{"orderId":"x","amountCents":1,"currency":"\u0000\u0000\u0000","card":"tok_good"}`)
	require.EqualValues(t, resilience.CodeInvalidRequest, got.fields["code"])
	for range 10 { // more than open a circuit
		tl.front.ask(http.MethodGet, "/v1/storefront?sku=%00", "alpine", "", "")
	}
	require.Equal(t, http.StatusCreated, tl.buy("k1").status, "others are served")
}

// A body is one value, whole: what follows it would be read by some and not by others.
func TestABodyIsOneValue(t *testing.T) {
	tl := newTill(t)
	for _, after := range []string{`{}`, `x`, `]`, syncOrder, "\x00"} {
		got := tl.front.ask(http.MethodPost, "/v1/orders", "alpine", "k1", syncOrder+after)
		require.EqualValues(t, resilience.CodeInvalidRequest, got.fields["code"], after)
	}
	require.Equal(t, http.StatusCreated, tl.front.ask(http.MethodPost, "/v1/orders", "alpine", "k1", syncOrder+" \r\n").status)
}

// One payment that cannot be written down does not keep the others of its round from being known.
func TestOnePaymentThatCannotBeWrittenDownLeavesTheOthersAlone(t *testing.T) {
	s := newServices(t, func(l *shop.Limits) { l.Provider.Breaker.Failures = 100 })
	tables := s.shop.Payments.Schema()
	_, err := s.Pool.Exec(t.Context(), `INSERT INTO `+tables+`.payments (order_id, tenant, amount_cents, currency, card, status, next_check_at)
		SELECT 'order-' || n, 'alpine', 100, 'EUR', 'tok_good', 'CHARGING', now() - interval '1 day' + n * interval '1 second' FROM generate_series(0, 19) AS n;
		ALTER TABLE `+tables+`.payment_attempts ADD CHECK (order_id <> 'order-0')`)
	require.NoError(t, err)
	_, err = s.desk.Reconciler.Once(t.Context())
	require.Error(t, err, "the round says what is wrong")
	require.Equal(t, 19, s.count(`SELECT count(*) FROM `+tables+`.payment_attempts WHERE outcome = 'NOT_FOUND'`), "the others were asked for")
}

// One case that cannot be written down does not keep those of other tenants from being finished.
func TestOneCaseThatCannotBeWrittenDownLeavesTheOthersAlone(t *testing.T) {
	tl := newTill(t)
	tl.paymentsNet.Cut()
	var first string
	for _, key := range []string{"a", "b", "c", "d", "e"} { // fewer than open the circuit
		got := tl.buy(key)
		require.Equal(t, http.StatusAccepted, got.status)
		if first == "" {
			first = got.fields["orderId"].(string)
		}
	}
	tl.paymentsNet.Heal(t)
	_, err := tl.Pool.Exec(t.Context(), `ALTER TABLE `+tl.shop.Orders.Schema()+`.order_attempts ADD CHECK (order_id <> '`+first+`' OR case_id IS NULL);
		UPDATE `+tl.shop.Orders.Schema()+`.recovery_cases SET next_at = now() - interval '1 hour' + id * interval '1 second'`)
	require.NoError(t, err)
	_, err = tl.newRecovery(orders.RecoveryOptions{Parallel: 1}).Once(t.Context())
	require.Error(t, err, "the round says what is wrong")
	require.Equal(t, 4, tl.cases(orders.CaseAccepted))
}

// An order that is taken while its tenant is erased was not counted as under way, so it is not removed: it would be paid for and be gone.
func TestAnOrderThatIsTakenWhileItsTenantIsErasedStays(t *testing.T) {
	tl := newTill(t)
	require.Equal(t, http.StatusCreated, tl.buy("old").status)
	tl.run()
	holder, err := tl.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = holder.Rollback(t.Context()) }()
	_, err = holder.Exec(t.Context(), `SELECT FROM `+tl.Schema+`.idempotency FOR UPDATE`)
	require.NoError(t, err)
	erased := make(chan error, 1)
	go func() { erased <- tl.shop.Erase(t.Context(), "alpine") }()
	testkit.Eventually(t, 10*time.Second, "the erasure to have counted, and to wait", func() bool {
		return tl.count(`SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'DELETE FROM %`+tl.Schema+`%idempotency%'`) > 0
	})
	taken := tl.submit(func(o *orders.Order) { o.IdempotencyKey = "new" })
	require.NoError(t, holder.Rollback(t.Context()))
	require.NoError(t, <-erased)
	tl.run()
	require.Empty(t, tl.failed)
	require.Equal(t, 1, tl.count(`SELECT count(*) FROM `+tl.shop.Orders.Schema()+`.orders`))
	require.Equal(t, 1, tl.count(`SELECT count(*) FROM `+tl.shop.Orders.Schema()+`.orders WHERE status = 'CONFIRMED' AND id = '`+taken+`'`))
}

// A commit that was not answered may have held the stock. Told as "nothing has happened" the order would be gone, and what it holds not.
func TestACommitThatIsNotAnsweredIsADoubt(t *testing.T) {
	tl := newTill(t)
	schema := tl.shop.Inventory.Schema()
	_, err := tl.Pool.Exec(t.Context(), `
		CREATE FUNCTION `+schema+`.lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER lose AFTER INSERT ON `+schema+`.reservations DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION `+schema+`.lose()`)
	require.NoError(t, err)
	direct := tl.to(tl.inventoryAt).ask(http.MethodPost, "/v1/reservations", "alpine", "x", `{"orderId": "x", "lines": [{"sku": "tea", "quantity": 1}]}`)
	require.Equal(t, http.StatusGatewayTimeout, direct.status, "%v", direct.fields)
	got := tl.buy("k1")
	require.Equal(t, http.StatusAccepted, got.status, "%v", got.fields)
	_, err = tl.Pool.Exec(t.Context(), `DROP TRIGGER lose ON `+schema+`.reservations`)
	require.NoError(t, err)
	testkit.Eventually(t, 10*time.Second, "the order to be finished", func() bool { return tl.recover(tl.recovery).Accepted == 1 })
	require.Equal(t, http.StatusCreated, tl.buy("k1").status)
}

// A proxy that checks one of two headers, and a service that believes the other, are a way into another tenant's books.
func TestARequestNamesOneTenantAndOneKey(t *testing.T) {
	tl := newTill(t)
	for header, at := range map[string]string{customers.HeaderTenant: tl.front.url + "/v1/orders/x", idempotency.HeaderKey: tl.inventoryAt + "/v1/reservations"} {
		method := map[string]string{customers.HeaderTenant: http.MethodGet, idempotency.HeaderKey: http.MethodPost}[header]
		r, err := http.NewRequestWithContext(t.Context(), method, at, strings.NewReader(`{"orderId": "x", "lines": [{"sku": "tea", "quantity": 1}]}`))
		require.NoError(t, err)
		r.Header.Set(customers.HeaderTenant, "alpine")
		r.Header.Set(idempotency.HeaderKey, "x")
		r.Header.Add(header, "bazaar")
		r.Close = true
		response, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusBadRequest, response.StatusCode, header)
	}
	require.Equal(t, 100, tl.teas())
}

// A server that does not have the path knows nothing of what was asked for: its 404 is not "there is no such order".
func TestAWrongAddressIsADoubt(t *testing.T) {
	b := newBench(t)
	at := serveRoutes(t, func(*http.ServeMux) {})
	c, err := b.shop.Clients(shop.ClientsOptions{Customers: at, Inventory: at, Payments: at})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	_, customer := c.Customers.Customer(t.Context(), "alpine", "c1")
	_, reservation := c.Inventory.Reservation(t.Context(), ref)
	_, payment := c.Payments.Payment(t.Context(), ref)
	for _, err := range []error{customer, reservation, payment} {
		require.Error(t, err)
		for _, answer := range []error{customers.ErrUnknown, inventory.ErrUnknown, payments.ErrUnknown} {
			require.NotErrorIs(t, err, answer)
		}
	}
}
