package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/examples/shop/catalog"
	"github.com/surefoot-mq/surefoot/examples/shop/customers"
	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/payments"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/examples/shop/web"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/topology"
)

// market is the shop of examples/shop, with a provider to break, in schemas of the arm.
type market struct {
	*stage
	shop      *shop.Shop
	simulator *provider.Simulator
	provider  *provider.Client
	spec      topology.Spec
	stock     map[string]int
	// providerNet is between the shop and the provider.
	providerNet *network
	providerURL string // through it
	providerAt  *meter
	parts       map[string]part // consumers by queue

	// Over HTTP, once it is open.
	desk                   *shop.Desk
	clients                *shop.Clients
	front                  string
	inventoryAt, catalogAt *counter
	inventoryURL           string
	// catalogNet is between the shop and its catalog.
	catalogNet *network
}

// teas and tenants of the market.
const (
	tea        = "tea"
	stockOfTea = 1000
	tenant     = "alpine"
)

// market makes tables, queues, stock and provider.
func (s *stage) market(ctx context.Context, change func(*shop.Options)) (*market, error) {
	pool, err := s.database(ctx)
	if err != nil {
		return nil, err
	}
	m := &market{stage: s, simulator: provider.NewSimulator(), providerAt: &meter{}, spec: shop.Topology(), stock: map[string]int{tea: stockOfTea}, parts: map[string]part{}}
	for i := range m.spec.Queues {
		q := &m.spec.Queues[i]
		q.Retry, q.HandlerTimeout, q.Prefetch, q.Concurrency, q.MaxAttempts = []time.Duration{500 * time.Millisecond}, 2*time.Second, 10, 3, 4
	}
	if err := s.topology(ctx, m.spec); err != nil {
		return nil, err
	}
	s.onClose(func(context.Context) error { return m.simulator.SetRules() }) // lets go of what hangs
	direct, err := s.serve(ctx, m.providerAt.wrap(m.simulator))
	if err != nil {
		return nil, err
	}
	if m.providerNet, m.providerURL, err = s.network(direct); err != nil {
		return nil, err
	}
	if m.provider, err = provider.NewClient(provider.ClientOptions{URL: m.providerURL, Timeout: 500 * time.Millisecond, Transport: s.transport()}); err != nil {
		return nil, err
	}
	o := shop.Options{
		Pool: pool, AMQPURL: s.url, ManagementURL: s.o.ManagementURL, TLS: s.o.TLS, Provider: m.provider, Prefix: s.schema, Schema: s.schema, Topology: m.spec,
		Drain: 2 * time.Second, Host: s.o.Host, Version: s.o.Version, Logger: s.logger,
	}
	if change != nil {
		change(&o)
	}
	if m.shop, err = shop.New(o); err != nil {
		return nil, err
	}
	if err := m.shop.Migrate(ctx); err != nil {
		return nil, err
	}
	people := []customers.Customer{}
	for _, name := range []string{tenant, "bazaar"} {
		people = append(people, customers.Customer{Tenant: name, ID: "c1", Customer: buyer()})
	}
	items := []catalog.Item{{SKU: tea, Name: "Thé", UnitPriceCents: 1290, Currency: "EUR"}}
	return m, errors.Join(m.shop.Seed(ctx, m.stock), m.shop.SeedCatalog(ctx, items, people))
}

func buyer() event.Customer { return event.Customer{Name: "Zoë", Email: "zoe@mail.example"} }

// order is one of the market's.
func (m *market) order(key string) orders.Order {
	return orders.Order{
		Tenant: tenant, IdempotencyKey: key, Customer: buyer(), Card: provider.CardGood,
		Lines: []event.Line{{SKU: tea, Name: "Thé", Quantity: 2, UnitPriceCents: 1290}},
	}
}

// keyOf is the idempotency key of an order.
func keyOf(i int) string { return fmt.Sprintf("order-%d", i) }

// submit takes n orders whose sagas then run.
func (m *market) submit(ctx context.Context, n int) (ids []string, err error) {
	for i := range n {
		submitted, err := m.shop.Submit(ctx, m.order(keyOf(i)))
		if err != nil {
			return ids, err
		}
		ids = append(ids, submitted.ID)
	}
	return ids, nil
}

// work runs relay and services; between stands around the handlers of a queue.
func (m *market) work(ctx context.Context, between map[string]consumer.Middleware) error {
	if _, err := m.relay(ctx, "relay", nil); err != nil {
		return err
	}
	for _, role := range m.shop.Roles() {
		queue, known := m.spec.Find(role.Queue)
		if !known {
			return fmt.Errorf("there is no queue %s", role.Queue)
		}
		handler := role.Handler
		if around := between[role.Queue]; around != nil {
			handler = around(handler)
		}
		part, err := m.consume(ctx, queue, handler, func(o *consumer.Options) { o.Concurrency = 3 })
		if err != nil {
			return err
		}
		m.parts[role.Queue] = part
	}
	return nil
}

// account compares all books.
func (m *market) account(ctx context.Context) (*shop.Account, error) {
	return m.shop.Account(ctx, m.provider, m.stock)
}

// settled waits until all orders have come to their end, and every event to its.
func (m *market) settled(ctx context.Context, limit time.Duration) (*shop.Account, error) {
	var account *shop.Account
	err := eventually(ctx, limit, "the orders to end", func(ctx context.Context) (bool, error) {
		left, err := m.count(ctx, waiting)
		if err != nil || left > 0 {
			return false, err
		}
		account, err = m.account(ctx)
		return err == nil && account.Pending == 0, err
	})
	return account, err
}

// leaks are reservations that are active for orders which have ended without them.
const leaks pg.SQL = `
SELECT count(*) FROM @schema@_inventory.reservations AS r LEFT JOIN @schema@_orders.orders AS o ON o.id = r.order_id
WHERE r.status = 'ACTIVE' AND (o.id IS NULL OR o.status = 'CANCELLED')`

// containedMarket notes what every drill of containment shows, of the shop.
func (m *market) containedMarket(ctx context.Context, maxConcurrency, shed int) error {
	leaked, err := m.count(ctx, leaks)
	if err != nil {
		return err
	}
	charges := m.simulator.Ledger().Charges
	byKey := map[string]int{}
	for _, c := range charges {
		byKey[c.Key]++
	}
	m.contained(maxConcurrency, shed, leaked, len(charges)-len(byKey))
	return nil
}

// counter counts and disturbs the requests of a service.
type counter struct {
	meter
	next http.Handler

	mu        sync.Mutex
	dropAfter int           // so many requests are handled and their answers dropped
	hold      chan struct{} // closed: requests pass; nil: they pass
}

// ServeHTTP implements http.Handler.
func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer c.begin()()
	c.mu.Lock()
	drop := c.dropAfter > 0
	if drop {
		c.dropAfter--
	}
	hold := c.hold
	c.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	if drop {
		c.next.ServeHTTP(nowhere{http.Header{}}, r)
		panic(http.ErrAbortHandler)
	}
	c.next.ServeHTTP(w, r)
}

// drop has the next n answers lost.
func (c *counter) drop(n int) { c.mu.Lock(); defer c.mu.Unlock(); c.dropAfter = n }

// close holds requests until open.
func (c *counter) close() (open func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	hold := make(chan struct{})
	c.hold = hold
	return sync.OnceFunc(func() { close(hold) })
}

// quickLimits are the shop's, with times for a drill.
func quickLimits() shop.Limits {
	l := shop.DefaultLimits()
	l.Payments.Deadline, l.Payments.Timeout = 1500*time.Millisecond, 1500*time.Millisecond
	l.Provider.Deadline, l.Provider.Timeout, l.Provider.Retry = 900*time.Millisecond, 300*time.Millisecond, resilience.Retry{Attempts: 1}
	l.Inventory.Deadline, l.Inventory.Timeout, l.Inventory.Retry.Base = 2*time.Second, time.Second, 10*time.Millisecond
	l.Inventory.Breaker.Open, l.Payments.Breaker.Open = 200*time.Millisecond, 100*time.Millisecond
	return l
}

// open serves the shop over HTTP, with a network that can fail in front of its catalog.
func (m *market) open(ctx context.Context, limits shop.Limits) (err error) {
	m.desk, err = m.shop.Desk(shop.DeskOptions{
		Client: m.provider, Limits: &limits.Provider, Reconcile: payments.ReconcilerOptions{After: time.Nanosecond, Wait: time.Nanosecond, MaxWait: time.Nanosecond},
	})
	if err != nil {
		return err
	}
	metered := func(routes func(*http.ServeMux)) (*counter, string, error) {
		mux := http.NewServeMux()
		routes(mux)
		c := &counter{next: mux}
		url, err := m.serve(ctx, c)
		return c, url, err
	}
	var o shop.ClientsOptions
	var catalog string
	var faults [4]error
	m.catalogAt, catalog, faults[0] = metered(m.shop.Catalog.Routes)
	m.inventoryAt, o.Inventory, faults[1] = metered(m.shop.InventoryRoutes)
	_, o.Payments, faults[2] = metered(m.desk.Routes)
	_, o.Customers, faults[3] = metered(m.shop.Customers.Routes)
	if err := errors.Join(faults[:]...); err != nil {
		return err
	}
	if m.catalogNet, o.Catalog, err = m.network(catalog); err != nil {
		return err
	}
	o.Limits, m.inventoryURL = &limits, o.Inventory
	if m.clients, err = m.shop.Clients(o); err != nil {
		return err
	}
	m.onClose(func(context.Context) error { m.clients.Close(); return nil })
	api, err := m.shop.API(shop.APIOptions{Clients: m.clients})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	api.Routes(mux) //nolint:contextcheck // requests have their own
	m.front, err = m.serve(ctx, mux)
	return err
}

// bought is an answer of the shop to an order.
type bought struct {
	answer
	OrderID string `json:"orderId"`
	Status  string `json:"status"`
	Code    string `json:"code"`
}

// buy orders two teas, with "checkout" given; the whole order is asked for by its key.
func (m *market) buy(ctx context.Context, client naive, tenant, key, checkout string) (b bought, err error) {
	body := map[string]any{"customerId": "c1", "lines": []map[string]any{{"sku": tea, "quantity": 2}}, "card": provider.CardGood, "checkout": checkout}
	r, err := newPost(ctx, m.front+"/v1/orders", key, body)
	if err != nil {
		return b, err
	}
	r.Header.Set(web.HeaderTenant, tenant)
	r.Header.Set(httpclient.HeaderRequestID, "drill-"+key)
	if b.answer, err = client.send(r); err != nil {
		return b, err
	}
	b.json(&b)
	return b, nil
}
