package shop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/examples/shop/catalog"
	"github.com/surefoot-mq/surefoot/examples/shop/customers"
	"github.com/surefoot-mq/surefoot/examples/shop/inventory"
	"github.com/surefoot-mq/surefoot/examples/shop/payments"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/web"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// Names of dependencies that are no services with a name of their own.
const (
	ProviderName = "payment-provider"
	MailName     = "mail"
)

// Limits of the calls to each dependency; docs/resilience.md says why they are what they are. A zero value has the defaults of
// package resilience.
type Limits struct{ Catalog, Customers, Inventory, Payments, Provider, Mail resilience.Settings }

// DefaultLimits are the shop's. Those of catalog and customers fit with their retries into the 3 s that an order has for them;
// payments are tried again by the payment service, which knows the provider, and so not by whoever calls it.
func DefaultLimits() Limits {
	lookup := resilience.Settings{Deadline: 2800 * time.Millisecond, Timeout: 800 * time.Millisecond}
	return Limits{
		Catalog: lookup, Customers: lookup,
		Inventory: resilience.Settings{
			Deadline: 1200 * time.Millisecond, Timeout: 300 * time.Millisecond,
			Breaker:  resilience.Breaker{Failures: 8, Consecutive: true, Probes: 2},
			Bulkhead: resilience.Bulkhead{Active: 20, Queue: 40, PerTenant: 4, Reserve: 2},
		},
		Payments: resilience.Settings{
			Deadline: 8 * time.Second, Timeout: 8 * time.Second, Retry: resilience.Retry{Attempts: 1},
			Breaker:  resilience.Breaker{Failures: 8, Consecutive: true, Open: 10 * time.Second, Probes: 2},
			Bulkhead: resilience.Bulkhead{Active: 20, Queue: 40, PerTenant: 4, Reserve: 2},
		},
		Provider: resilience.Settings{
			Deadline: 25 * time.Second, Timeout: 5 * time.Second,
			Retry:    resilience.Retry{Attempts: 3, Base: 500 * time.Millisecond, Max: 5 * time.Second},
			Breaker:  resilience.Breaker{Failures: 5, Window: 30 * time.Second, Open: time.Minute},
			Bulkhead: resilience.Bulkhead{Active: 10, Reserve: 1},
		},
		Mail: resilience.Settings{Retry: resilience.Retry{Attempts: 1}},
	}
}

// ClientsOptions say where the services are. A URL that is left out is one that nobody calls.
type ClientsOptions struct {
	Catalog, Customers, Inventory, Payments string
	// Limits of the calls. Default: [DefaultLimits].
	Limits *Limits
}

// Clients are one process's calls to the shop's services over HTTP: one policy for each. Those without a URL are nil. They are safe
// for concurrent use.
type Clients struct {
	Catalog   *catalog.Client
	Customers *customers.Client
	Inventory *inventory.Client
	Payments  *payments.Client

	policies map[string]*policy.Policy
	http     []*httpclient.Client
}

// Clients returns clients of the services. They do no I/O. There must be one of them in a process; Close lets their connections go.
func (s *Shop) Clients(o ClientsOptions) (*Clients, error) {
	limits := DefaultLimits()
	if o.Limits != nil {
		limits = *o.Limits
	}
	c := &Clients{policies: map[string]*policy.Policy{}}
	var faults []error
	dial := func(url, name string, settings resilience.Settings, use func(*httpclient.Client)) {
		if url == "" {
			return
		}
		client, err := s.dial(c, name, settings)
		use(client)
		faults = append(faults, err)
	}
	dial(o.Catalog, catalog.Name, limits.Catalog, func(h *httpclient.Client) { c.Catalog = catalog.NewClient(o.Catalog, h) })
	dial(o.Customers, customers.Name, limits.Customers, func(h *httpclient.Client) { c.Customers = customers.NewClient(o.Customers, h) })
	dial(o.Inventory, inventory.Name, limits.Inventory, func(h *httpclient.Client) { c.Inventory = inventory.NewClient(o.Inventory, h) })
	dial(o.Payments, payments.Name, limits.Payments, func(h *httpclient.Client) { c.Payments = payments.NewClient(o.Payments, h) })
	return c, errors.Join(faults...)
}

func (s *Shop) dial(c *Clients, dependency string, settings resilience.Settings) (*httpclient.Client, error) {
	guard, err := s.guard(dependency, settings)
	if err != nil {
		return nil, err
	}
	client, err := httpclient.New(httpclient.Options{Policy: guard, Describe: web.Describe})
	if err != nil {
		return nil, err
	}
	c.policies[dependency], c.http = guard, append(c.http, client)
	return client, nil
}

// guard returns the policy of a dependency.
func (s *Shop) guard(dependency string, settings resilience.Settings) (*policy.Policy, error) {
	o := s.options
	return policy.New(policy.Options{
		Name: dependency, Settings: settings, Pool: o.Pool, Schema: o.Schema, Host: o.Host, Logger: o.Logger, Metrics: o.Metrics,
	})
}

// Policy returns the policy of a service by its name, such as inventory.Name; nil when there is none.
func (c *Clients) Policy(service string) *policy.Policy { return c.policies[service] }

// Run writes down the state of the circuits until ctx ends; then it returns nil. Calls do not need it.
func (c *Clients) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range c.policies {
		group.Go(func() error { return p.Run(ctx) })
	}
	return group.Wait()
}

// Close lets idle connections go.
func (c *Clients) Close() {
	for _, client := range c.http {
		client.Close()
	}
}

// DeskOptions of the payments over HTTP.
type DeskOptions struct {
	// Client of the provider; the desk puts a policy around it. Required.
	Client *provider.Client
	// Limits of the calls to the provider. Default: those of [DefaultLimits].
	Limits *resilience.Settings
	// Reconcile says when the provider is asked for what is not known; its Pool, Provider and Logger are the shop's.
	Reconcile payments.ReconcilerOptions
}

// Desk is the payment service over HTTP, with the reconciler that asks the provider for outcomes.
type Desk struct {
	*payments.API
	// Reconciler asks, and never charges.
	Reconciler *payments.Reconciler
	// Policy guards the provider.
	Policy *policy.Policy
}

// Desk returns the payment service over HTTP. It does no I/O.
func (s *Shop) Desk(o DeskOptions) (*Desk, error) {
	if o.Client == nil {
		return nil, errors.New("shop: the desk's Client is missing")
	}
	limits := DefaultLimits().Provider
	if o.Limits != nil {
		limits = *o.Limits
	}
	guard, err := s.guard(ProviderName, limits)
	if err != nil {
		return nil, err
	}
	guarded := provider.Guard(o.Client, guard)
	o.Reconcile.Pool, o.Reconcile.Provider, o.Reconcile.Logger = s.options.Pool, guarded, s.options.Logger
	reconciler, err := s.Payments.Reconciler(o.Reconcile)
	if err != nil {
		return nil, fmt.Errorf("shop: %w", err)
	}
	return &Desk{API: s.Payments.API(s.options.Pool, guarded), Reconciler: reconciler, Policy: guard}, nil
}

// Run reconciles payments and writes down the state of the circuit until ctx ends; then it returns nil.
func (d *Desk) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.Reconciler.Run(ctx) })
	group.Go(func() error { return d.Policy.Run(ctx) })
	return group.Wait()
}

// InventoryRoutes registers the inventory's requests over HTTP.
func (s *Shop) InventoryRoutes(mux *http.ServeMux) { s.Inventory.API(s.options.Pool).Routes(mux) }
