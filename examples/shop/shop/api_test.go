package shop_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/examples/shop/catalog"
	"github.com/surefoot-mq/surefoot/examples/shop/customers"
	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
)

// front is the shop over HTTP; the way to the catalog can fail.
type front struct {
	*bench
	url     string
	catalog *testkit.FaultyNetwork
}

func newFront(t *testing.T) front {
	t.Helper()
	b := newBench(t)
	require.NoError(t, b.shop.SeedCatalog(t.Context(), []catalog.Item{
		{SKU: "tea", Name: "Thé", UnitPriceCents: 1290, Currency: "EUR"},
		{SKU: "cup", Name: "Tasse", UnitPriceCents: 890, Currency: "EUR"},
		{SKU: "kit", Name: "Kit", UnitPriceCents: 100, Currency: "CHF"},
	}, []customers.Customer{{Tenant: "alpine", ID: "c1", Customer: event.Customer{Name: "Zoë", Email: "zoe@mail.example"}}}))
	prices, people := serveRoutes(t, b.shop.Catalog.Routes), serveRoutes(t, b.shop.Customers.Routes)
	network := testkit.Proxy(t, prices)
	clients, err := b.shop.Clients(shop.ClientsOptions{Catalog: network.Through(t, prices), Customers: people})
	require.NoError(t, err)
	t.Cleanup(clients.Close)
	api, err := b.shop.API(shop.APIOptions{Clients: clients})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- api.Run(ctx) }()
	go func() { ended <- clients.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, errors.Join(<-ended, <-ended)) })
	return front{b, serveRoutes(t, api.Routes), network}
}

// serveRoutes serves them over TCP, with all that a server puts around them.
func serveRoutes(t *testing.T, routes func(*http.ServeMux)) string {
	t.Helper()
	return serveWrapped(t, routes, func(h http.Handler) http.Handler { return h })
}

func serveWrapped(t *testing.T, routes func(*http.ServeMux), wrap func(http.Handler) http.Handler) string {
	t.Helper()
	mux := http.NewServeMux()
	routes(mux)
	s, err := httpserver.New(httpserver.Options{Handler: mux, Logger: testkit.Logger(t)})
	require.NoError(t, err)
	server := httptest.NewServer(wrap(s))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.URL
}

// reply is what a client sees.
type reply struct {
	status int
	header http.Header
	fields map[string]any
}

func (f front) ask(method, path, tenant, key, body string) reply {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, strings.NewReader(body))
	require.NoError(f.t, err)
	r.Header.Set(customers.HeaderTenant, tenant)
	if key != "" {
		r.Header.Set(idempotency.HeaderKey, key)
		r.Header.Set(httpserver.HeaderRequestID, "request-of-"+key)
	}
	r.Close = true
	response, err := http.DefaultClient.Do(r)
	require.NoError(f.t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(f.t, err)
	got := reply{response.StatusCode, response.Header, nil}
	require.NoError(f.t, json.Unmarshal(text, &got.fields), "%s", text)
	return got
}

func (f front) order(key, body string) reply {
	f.t.Helper()
	return f.ask(http.MethodPost, "/v1/orders", "alpine", key, body)
}

// rows counts the orders that are there.
func (f front) rows() (n int) {
	f.t.Helper()
	require.NoError(f.t, f.Pool.QueryRow(f.t.Context(), `SELECT count(*) FROM `+f.shop.Orders.Schema()+`.orders`).Scan(&n))
	return n
}

const teaAndCup = `{"customerId": "c1", "lines": [{"sku": "tea", "quantity": 2}, {"sku": "cup", "quantity": 1}], "card": "tok_good"}`

func TestAnOrderOverHTTPRunsItsSaga(t *testing.T) {
	f := newFront(t)
	taken := f.order("k1", teaAndCup)
	require.Equal(t, http.StatusAccepted, taken.status, "%v", taken.fields)
	require.Equal(t, "pending", taken.fields["status"])
	require.EqualValues(t, 2*1290+890, taken.fields["totalCents"])
	at := taken.header.Get("Location")
	require.Equal(t, "pending", f.ask(http.MethodGet, at, "alpine", "", "").fields["status"])
	var requestID string
	require.NoError(t, f.Pool.QueryRow(t.Context(), `SELECT request_id FROM `+f.Schema+`.outbox`).Scan(&requestID))
	require.Equal(t, "request-of-k1", requestID)

	f.run()
	done := f.ask(http.MethodGet, at, "alpine", "", "")
	require.Equal(t, "accepted", done.fields["status"], "%v", done.fields)
	require.Len(t, done.fields["lines"], 2)
	trace := done.fields["trace"].(map[string]any)
	require.Equal(t, orders.StatusConfirmed, trace["status"])
	require.NotEmpty(t, trace["chargeId"])
	f.ends(orders.StatusConfirmed, "")

	again := f.order("k1", teaAndCup)
	require.Equal(t, taken.fields, again.fields)
	require.Equal(t, "true", again.header.Get(idempotency.HeaderReplayed))
	other := f.order("k1", strings.Replace(teaAndCup, "2", "3", 1))
	require.Equal(t, 422, other.status)
	require.EqualValues(t, resilience.CodeIdempotencyKeyReused, other.fields["code"])
	require.Equal(t, 404, f.ask(http.MethodGet, at, "bazaar", "", "").status, "another tenant's order is not there")
	require.Equal(t, 1, f.rows())
}

func TestAnOrderThatFailsSaysWhy(t *testing.T) {
	f := newFront(t)
	taken := f.order("k1", strings.Replace(teaAndCup, `"quantity": 2`, `"quantity": 101`, 1))
	require.Equal(t, http.StatusAccepted, taken.status)
	f.run()
	failed := f.ask(http.MethodGet, taken.header.Get("Location"), "alpine", "", "")
	require.Equal(t, "failed", failed.fields["status"])
	require.Equal(t, event.ReasonOutOfStock, failed.fields["reason"])
}

// scenarios.md, dependency-down: no half order, an answer in under 3 s, and orders that were taken go on.
func TestWithoutPricesAnOrderIsRefusedWhole(t *testing.T) {
	f := newFront(t)
	require.Equal(t, http.StatusAccepted, f.order("before", teaAndCup).status)
	for name, fail := range map[string]func(){"refused": f.catalog.Cut, "hung": func() { f.catalog.HalfOpen(t) }} {
		fail()
		began := time.Now()
		refused := f.order("during", teaAndCup)
		require.Equal(t, http.StatusServiceUnavailable, refused.status, "%s: %v", name, refused.fields)
		require.EqualValues(t, resilience.CodeDependencyUnavailable, refused.fields["code"])
		require.NotEmpty(t, refused.header.Get("Retry-After"))
		require.Less(t, time.Since(began), 4*time.Second, name) // 3 s on a machine that is not shared
		require.Equal(t, http.StatusAccepted, f.order("before", teaAndCup).status, "what is remembered needs no prices")
		require.Equal(t, 1, f.rows())
		f.catalog.Heal(t)
	}
	f.run()
	require.Equal(t, http.StatusAccepted, f.order("during", teaAndCup).status, "with the same key")
	f.run()
	account := f.account()
	require.Len(t, account.Orders, 2)
	require.Zero(t, account.Pending)
}

func TestWrongOrdersAreRefusedWithACode(t *testing.T) {
	f := newFront(t)
	for body, want := range map[string]struct {
		status int
		code   resilience.Code
	}{
		`{`:                                         {400, resilience.CodeInvalidRequest},
		`{"total": 1}`:                              {400, resilience.CodeInvalidRequest},
		`{"customerId": "c1"}`:                      {400, resilience.CodeInvalidRequest},
		`{"lines": [{"sku": "tea"}]}`:               {400, resilience.CodeInvalidRequest},
		line("c1", "a b", 1, ""):                    {400, resilience.CodeInvalidRequest},
		line("c1", "tea", 0, ""):                    {400, resilience.CodeInvalidRequest},
		line("c1", "tea", 1, `a\u0000`):             {400, resilience.CodeInvalidRequest},
		line("../c1", "tea", 1, ""):                 {400, resilience.CodeInvalidRequest},
		line("c2", "tea", 1, ""):                    {422, orders.CodeUnknownCustomer},
		line("c1", "nothing", 1, ""):                {422, orders.CodeUnknownItem},
		strings.Replace(teaAndCup, "cup", "kit", 1): {400, resilience.CodeInvalidRequest},
	} {
		got := f.order("k", body)
		require.Equal(t, want.status, got.status, "%s: %v", body, got.fields)
		require.EqualValues(t, want.code, got.fields["code"], body)
	}
	require.EqualValues(t, resilience.CodeInvalidRequest, f.ask(http.MethodPost, "/v1/orders", "a b", "k", teaAndCup).fields["code"])
	require.EqualValues(t, resilience.CodeIdempotencyKeyMissing, f.ask(http.MethodPost, "/v1/orders", "alpine", "", teaAndCup).fields["code"])
	require.Zero(t, f.rows())
	require.Equal(t, http.StatusAccepted, f.order("k", teaAndCup).status, "a refusal leaves the key free")
}

func line(customer, sku string, quantity int, note string) string {
	return strings.NewReplacer("c1", customer, `"tea"`, `"`+sku+`"`, "2", string(rune('0'+quantity)), `"tok_good"`, `"tok_good", "note": "`+note+`"`).Replace(teaAndCup)
}

// Without prices there is half a page, which says so; a client that asks for pages all the time is refused.
func TestTheStorefrontAnswersInPart(t *testing.T) {
	f := newFront(t)
	show := func(query string) reply {
		f.t.Helper()
		return f.ask(http.MethodGet, "/v1/storefront?"+query, "", "", "")
	}
	whole := show("sku=tea&sku=kit&sku=nothing")
	require.Equal(t, 200, whole.status)
	require.Equal(t, map[string]any{"partial": false, "items": []any{
		map[string]any{"sku": "tea", "name": "Thé", "unitPriceCents": 1290., "currency": "EUR", "available": 100.},
		map[string]any{"sku": "kit", "name": "Kit", "unitPriceCents": 100., "currency": "CHF"},
	}}, whole.fields)
	f.catalog.Cut()
	require.Equal(t, map[string]any{"partial": true, "missing": []any{"catalog"}, "items": []any{
		map[string]any{"sku": "tea", "available": 100.},
	}}, show("sku=tea&sku=kit").fields)
	_, err := f.Pool.Exec(t.Context(), `ALTER TABLE `+f.shop.Inventory.Schema()+`.stock RENAME TO stock_away`)
	require.NoError(t, err)
	require.Equal(t, 503, show("sku=tea").status, "of nothing there is no part")
	f.catalog.Heal(t)
	require.Equal(t, []any{"stock"}, show("sku=tea").fields["missing"])
	require.Equal(t, 400, show("").status)
	served := 5
	for ; show("").status != http.StatusTooManyRequests; served++ {
		require.Less(t, served, 1000)
	}
	require.GreaterOrEqual(t, served, 300)
}

// A price that was read is good for a while when the catalog's database is away; what was not is not made up.
func TestTheCatalogAnswersFromWhatItRead(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.shop.SeedCatalog(t.Context(), []catalog.Item{{SKU: "tea", Name: "Thé", UnitPriceCents: 1290, Currency: "EUR"}}, nil))
	network := testkit.Proxy(t, b.URL)
	pool, err := pgxpool.New(t.Context(), network.Through(t, b.URL))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	for _, c := range []struct {
		maxAge time.Duration
		status int
	}{{time.Minute, 200}, {time.Nanosecond, 503}} {
		s, err := catalog.New(catalog.Options{Pool: pool, Prefix: b.Schema, MaxAge: c.maxAge})
		require.NoError(t, err)
		f := front{b, serveRoutes(t, s.Routes), nil}
		fresh := f.ask(http.MethodGet, "/v1/items?sku=tea&sku=nothing", "", "", "")
		require.Equal(t, 200, fresh.status)
		require.Empty(t, fresh.header.Get("Age"))
		network.Cut()
		old := f.ask(http.MethodGet, "/v1/items?sku=tea", "", "", "")
		require.Equal(t, c.status, old.status, "%v", old.fields)
		if c.status == 200 {
			require.Equal(t, fresh.fields, old.fields)
			require.Equal(t, "0", old.header.Get("Age"))
		}
		require.Equal(t, 503, f.ask(http.MethodGet, "/v1/items?sku=tea&sku=nothing", "", "", "").status)
		network.Heal(t)
	}
	f := front{b, serveRoutes(t, b.shop.Catalog.Routes), nil}
	require.Equal(t, 400, f.ask(http.MethodGet, "/v1/items", "", "", "").status)
	require.Equal(t, 400, f.ask(http.MethodGet, "/v1/items?"+strings.Repeat("sku=a&", catalog.MaxItems+1), "", "", "").status)
}
