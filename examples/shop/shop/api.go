package shop

import (
	"context"
	"errors"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/examples/shop/catalog"
	"github.com/surefoot-mq/surefoot/examples/shop/customers"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/storefront"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// lookup bounds the calls of an order: with their retries they fit into the 3 s that it has for them.
var lookup = resilience.Settings{Deadline: 2800 * time.Millisecond, Timeout: 800 * time.Millisecond}

// API is the front of the shop: orders and a page of items over HTTP, with what they need from catalog and customers.
type API struct {
	store    *idempotency.Store
	orders   *orders.API
	front    *storefront.Storefront
	policies []*policy.Policy
	clients  []*httpclient.Client
}

// API returns the front, which asks catalog and customers at their URLs. It does no I/O. Close lets its connections go.
func (s *Shop) API(catalogURL, customersURL string) (*API, error) {
	a := new(API)
	prices, err := a.client(s.options, catalog.Name)
	if err != nil {
		return nil, err
	}
	people, err := a.client(s.options, customers.Name)
	if err != nil {
		return nil, err
	}
	o := s.options
	a.store, err = idempotency.New(idempotency.Options{Pool: o.Pool, Schema: o.Schema, Caller: orders.Tenant, Logger: o.Logger, Metrics: o.Metrics})
	if err != nil {
		return nil, err
	}
	items := catalog.NewClient(catalogURL, prices)
	a.orders = s.Orders.API(orders.APIOptions{Pool: o.Pool, Store: a.store, Catalog: items, Customers: customers.NewClient(customersURL, people)})
	a.front, err = storefront.New(items, s.Inventory.Stock(o.Pool))
	return a, err
}

func (a *API) client(o Options, dependency string) (*httpclient.Client, error) {
	guard, err := policy.New(policy.Options{
		Name: dependency, Settings: lookup, Pool: o.Pool, Schema: o.Schema, Host: o.Host, Logger: o.Logger, Metrics: o.Metrics,
	})
	if err != nil {
		return nil, err
	}
	client, err := httpclient.New(httpclient.Options{Policy: guard})
	if err != nil {
		return nil, err
	}
	a.policies, a.clients = append(a.policies, guard), append(a.clients, client)
	return client, nil
}

// Routes registers the front's requests.
func (a *API) Routes(mux *http.ServeMux) {
	a.orders.Routes(mux)
	a.front.Routes(mux)
}

// Run forgets old keys and writes down the state of the circuits until ctx ends.
func (a *API) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.store.Run(ctx) })
	for _, p := range a.policies {
		group.Go(func() error { return p.Run(ctx) })
	}
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Close lets idle connections go.
func (a *API) Close() {
	for _, c := range a.clients {
		c.Close()
	}
}
