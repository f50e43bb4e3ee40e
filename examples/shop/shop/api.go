package shop

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/inventory"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/storefront"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
)

// APIOptions of the shop's front.
type APIOptions struct {
	// Clients ask the services. Required; the caller runs and closes them.
	Clients *Clients
	// Checkout is the budget of an order with "checkout": "sync". Default: 10 s.
	Checkout time.Duration
	// Storefront is what a client may ask of it. Default: 300 requests a minute.
	Storefront httpserver.Rate
	// Retention of idempotency keys. Default: 24 h.
	Retention time.Duration
}

// API is the front of the shop: orders and a page of items over HTTP.
type API struct {
	// Store remembers requests and their answers.
	Store *idempotency.Store

	orders *orders.API
	front  *storefront.Storefront
}

// API returns the front. It does no I/O.
func (s *Shop) API(o APIOptions) (*API, error) {
	if o.Clients == nil || o.Clients.Catalog == nil || o.Clients.Customers == nil {
		return nil, errors.New("shop: the API needs Clients of catalog and customers")
	}
	a, c := new(API), o.Clients
	var err error
	if a.Store, err = s.store(o.Retention); err != nil {
		return nil, err
	}
	with := orders.APIOptions{Pool: s.options.Pool, Store: a.Store, Catalog: c.Catalog, Customers: c.Customers, Checkout: o.Checkout}
	if c.Inventory != nil && c.Payments != nil {
		with.Inventory, with.Payments = c.Inventory, c.Payments
	}
	a.orders = s.Orders.API(with)
	a.front, err = storefront.New(c.Catalog, s.Inventory.Stock(s.options.Pool), o.Storefront)
	return a, err
}

func (s *Shop) store(retention time.Duration) (*idempotency.Store, error) {
	o := s.options
	return idempotency.New(idempotency.Options{
		Pool: o.Pool, Schema: o.Schema, Caller: orders.Tenant, Retention: retention, Logger: o.Logger, Metrics: o.Metrics,
	})
}

// Recovery returns the worker that finishes orders whose outcome is not known. Pool, Inventory, Payments, Store and Logger of the
// options are the shop's. It does no I/O. Limits that do not fit together are logged as a warning.
func (s *Shop) Recovery(c *Clients, o orders.RecoveryOptions) (*orders.Recovery, error) {
	if c == nil || c.Inventory == nil || c.Payments == nil {
		return nil, errors.New("shop: a recovery needs Clients of inventory and payments")
	}
	remembered, err := s.store(0)
	if err != nil {
		return nil, err
	}
	o.Pool, o.Inventory, o.Payments, o.Store, o.Logger = s.options.Pool, c.Inventory, c.Payments, remembered, s.options.Logger
	hold := cmp.Or(s.options.Hold, inventory.DefaultHold)
	for _, warning := range resilience.CheckNested(resilience.Limit{Name: "Hold", Value: hold}, resilience.Limit{Name: "FinishWithin", Value: cmp.Or(o.FinishWithin, orders.DefaultFinishWithin)}) {
		s.options.Logger.Warn().Str("warning", warning).Msg("times do not fit together")
	}
	return s.Orders.Recovery(o)
}

// Routes registers the front's requests.
func (a *API) Routes(mux *http.ServeMux) {
	a.orders.Routes(mux)
	a.front.Routes(mux)
}

// Run forgets old keys until ctx ends; then it returns nil.
func (a *API) Run(ctx context.Context) error { return a.Store.Run(ctx) }

// Cases lists the recovery cases that are not closed, the oldest first.
func (s *Shop) Cases(ctx context.Context) ([]orders.Case, error) {
	return s.Orders.Cases(ctx, s.options.Pool)
}

// Reopen has a case that was left to a person tried again; false when the tenant's order has none.
func (s *Shop) Reopen(ctx context.Context, tenant, orderID string) (done bool, err error) {
	err = pgx.BeginFunc(ctx, s.options.Pool, func(tx pgx.Tx) error {
		done, err = s.Orders.Reopen(ctx, tx, tenant, orderID)
		return err
	})
	return done, err
}
