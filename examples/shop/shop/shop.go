// Package shop puts the shop together: its services in one program or in several, their queues, the rules that
// watch over them, and the books that tell whether everything came out right.
package shop

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/examples/shop/catalog"
	"github.com/surefoot-mq/surefoot/examples/shop/customers"
	"github.com/surefoot-mq/surefoot/examples/shop/inventory"
	"github.com/surefoot-mq/surefoot/examples/shop/notifications"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/payments"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/topology"
)

// Options of the shop.
type Options struct {
	// Pool of the database. It must offer at least 10 connections for each role that runs. Required; the caller
	// closes it.
	Pool *pgxpool.Pool
	// AMQPURL of the broker. Required by Run.
	AMQPURL string
	// ManagementURL of the broker's API, for the check that no dead-letter path is lossy. Default: not checked.
	ManagementURL string
	// TLS trusted for amqps and https. Default: the system's authorities.
	TLS *tls.Config
	// Provider of payments. Required.
	Provider payments.Provider
	// Mailer takes the mails; see [NewMailer]. Default: none, a row stands for each.
	Mailer notifications.Mailer
	// Prefix of the services' schemas. Default: "shop".
	Prefix string
	// Schema of Surefoot. Default: "surefoot".
	Schema string
	// Hold is how long stock is reserved. Default: 15 min.
	Hold time.Duration
	// Topology of the queues. Default: [Topology] with its defaults.
	Topology topology.Spec
	// Drain is how long handlers may go on at a stop. Default: 15 s.
	Drain time.Duration
	// Host and Version name this process to the broker. Default: "unknown" and "dev".
	Host, Version string
	// Logger takes the consumers' events. Default: none.
	Logger zerolog.Logger
	// Metrics registry. Default: none.
	Metrics prometheus.Registerer
	// Ready is told each role's state. Default: nobody is told.
	Ready func(role string, reason error)
}

// Shop is the whole shop. It is safe for concurrent use.
type Shop struct {
	options Options

	Orders        *orders.Service
	Inventory     *inventory.Service
	Payments      *payments.Service
	Notifications *notifications.Service
	Catalog       *catalog.Service
	Customers     *customers.Service
}

// New returns the shop. It does no I/O.
func New(o Options) (*Shop, error) {
	if o.Pool == nil {
		return nil, errors.New("shop: Pool is missing")
	}
	box, err := outbox.New(outbox.Options{Schema: o.Schema})
	if err != nil {
		return nil, fmt.Errorf("shop: %w", err)
	}
	if o.Ready == nil {
		o.Ready = func(string, error) {}
	}
	if len(o.Topology.Queues) == 0 {
		o.Topology = Topology()
	}
	s := &Shop{options: o}
	var faults [6]error
	s.Orders, faults[0] = orders.New(orders.Options{Prefix: o.Prefix, Outbox: box})
	s.Inventory, faults[1] = inventory.New(inventory.Options{Prefix: o.Prefix, Outbox: box, Hold: o.Hold})
	s.Payments, faults[2] = payments.New(payments.Options{Prefix: o.Prefix, Outbox: box, Provider: o.Provider})
	s.Notifications, faults[3] = notifications.New(notifications.Options{Prefix: o.Prefix, Mailer: o.Mailer})
	s.Catalog, faults[4] = catalog.New(catalog.Options{Pool: o.Pool, Prefix: o.Prefix})
	s.Customers, faults[5] = customers.New(o.Pool, o.Prefix)
	return s, errors.Join(faults[:]...)
}

// Migrate creates the services' schemas and tables; doing it again changes nothing. Surefoot's own schema is
// made by `surefoot migrate up`.
func (s *Shop) Migrate(ctx context.Context) error {
	for _, service := range s.schemas() {
		if err := store.Create(ctx, s.options.Pool, service.schema, service.tables); err != nil {
			return err
		}
	}
	return nil
}

// serviceSchema is what one service has in the database.
type serviceSchema struct {
	schema string
	tables store.SQL
}

func (s *Shop) schemas() []serviceSchema {
	return []serviceSchema{
		{s.Orders.Schema(), orders.Tables},
		{s.Inventory.Schema(), inventory.Tables},
		{s.Payments.Schema(), payments.Tables},
		{s.Notifications.Schema(), notifications.Tables},
		{s.Catalog.Schema(), catalog.Tables},
		{s.Customers.Schema(), customers.Tables},
	}
}

// Drop removes the services' schemas with everything in them.
func (s *Shop) Drop(ctx context.Context) error {
	for _, service := range s.schemas() {
		if _, err := s.options.Pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+service.schema+" CASCADE"); err != nil {
			return fmt.Errorf("drop schema %s: %w", service.schema, err)
		}
	}
	return nil
}

// Seed puts items into stock that are not there yet.
func (s *Shop) Seed(ctx context.Context, stock map[string]int) error {
	return pgx.BeginFunc(ctx, s.options.Pool, func(tx pgx.Tx) error { return s.Inventory.Seed(ctx, tx, stock) })
}

// SeedCatalog adds items and customers that are not there yet.
func (s *Shop) SeedCatalog(ctx context.Context, items []catalog.Item, all []customers.Customer) error {
	return pgx.BeginFunc(ctx, s.options.Pool, func(tx pgx.Tx) error {
		return errors.Join(s.Catalog.Seed(ctx, tx, items), s.Customers.Seed(ctx, tx, all))
	})
}

// Submit takes one order in a transaction of its own.
func (s *Shop) Submit(ctx context.Context, o orders.Order) (orders.Submitted, error) {
	var submitted orders.Submitted
	err := pgx.BeginFunc(ctx, s.options.Pool, func(tx pgx.Tx) (err error) {
		submitted, err = s.Orders.Submit(ctx, tx, o)
		return err
	})
	return submitted, err
}

// Role is one service with its queue.
type Role struct {
	Name, Queue string
	// Handler handles the queue's messages.
	Handler consumer.Handler
}

// Roles are the services that consume.
func (s *Shop) Roles() []Role {
	role := func(name, queue string, routes func(*consumer.Mux)) Role {
		mux := consumer.NewMux(consumer.MuxOptions{})
		routes(mux)
		return Role{Name: name, Queue: queue, Handler: mux.Serve}
	}
	return []Role{
		role(orders.Name, orders.Queue, s.Orders.Routes),
		role(inventory.Name, inventory.Queue, s.Inventory.Routes),
		role(payments.Name, payments.Queue, s.Payments.Routes),
		role(notifications.Name, notifications.Queue, s.Notifications.Routes),
	}
}
