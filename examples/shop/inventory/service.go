// Package inventory holds stock for orders, gives it back, and takes it out of stock for good. A
// reservation's states:
//
//	ACTIVE ---order.confirmed--> COMMITTED
//	   |
//	   |---order.cancelled-----> RELEASED
//	   '---expires_at passes---> EXPIRED ---stock.expired--> RELEASED
//
// and REJECTED when there was not enough: then nothing is held. Releasing is idempotent: stock goes back in
// the same transaction as the step to RELEASED, which happens once.
//
// Over HTTP the same reservations are made, asked for and released, each tenant its own: see [API].
package inventory

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/outbox"
)

// Name of the service, of its schema, and of its events' source.
const Name = "inventory"

// Queue that the service consumes.
const Queue = "inventory.orders"

// DefaultHold is how long a reservation is held.
const DefaultHold = 15 * time.Minute

// Tables of the service. Available never falls below 0: the database refuses to sell what is not there.
const Tables store.SQL = `
CREATE TABLE IF NOT EXISTS @schema@.stock (
    sku       text PRIMARY KEY,
    available integer NOT NULL CHECK (available >= 0)
);
CREATE TABLE IF NOT EXISTS @schema@.reservations (
    order_id   text PRIMARY KEY,
    tenant     text NOT NULL,
    status     text NOT NULL CHECK (status IN ('ACTIVE', 'COMMITTED', 'EXPIRED', 'RELEASED', 'REJECTED')),
    reason     text,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    ended_at   timestamptz
);
CREATE INDEX IF NOT EXISTS reservations_status ON @schema@.reservations (status, expires_at);
CREATE TABLE IF NOT EXISTS @schema@.reservation_lines (
    order_id text NOT NULL REFERENCES @schema@.reservations (order_id) ON DELETE CASCADE,
    sku      text NOT NULL,
    quantity integer NOT NULL CHECK (quantity > 0),
    PRIMARY KEY (order_id, sku)
);
ALTER TABLE @schema@.stock ADD COLUMN IF NOT EXISTS sold bigint NOT NULL DEFAULT 0;
ALTER TABLE @schema@.reservation_lines ADD COLUMN IF NOT EXISTS tenant text NOT NULL DEFAULT '';
CREATE UNIQUE INDEX IF NOT EXISTS reservation_lines_item ON @schema@.reservation_lines (tenant, order_id, sku);`

// Options of the service.
type Options struct {
	// Prefix of the shop's schemas. Default: "shop".
	Prefix string
	// Hold is how long a reservation is held; keep it above the watchdog's limit for orders. Default: 15 min.
	Hold time.Duration
	// Outbox that takes the events. Default: one with all defaults.
	Outbox *outbox.Outbox
}

// Service is the inventory service. It is safe for concurrent use.
type Service struct {
	schema string
	hold   time.Duration
	outbox *outbox.Outbox
}

// New returns the service. It does no I/O.
func New(o Options) (*Service, error) {
	if err := store.CheckPrefix(o.Prefix); err != nil {
		return nil, fmt.Errorf("inventory: %w", err)
	}
	if o.Hold <= 0 {
		o.Hold = DefaultHold
	}
	if o.Outbox == nil {
		o.Outbox = new(outbox.Outbox)
	}
	return &Service{schema: store.Schema(o.Prefix, Name), hold: o.Hold, outbox: o.Outbox}, nil
}

// Schema is the service's own.
func (s *Service) Schema() string { return s.schema }

// Routes registers the service's handlers.
func (s *Service) Routes(mux *consumer.Mux) {
	consumer.On(mux, event.TypeOrderCreated, s.orderCreated)
	consumer.On(mux, event.TypeOrderConfirmed, s.orderConfirmed)
	consumer.On(mux, event.TypeOrderCancelled, s.orderCancelled)
	consumer.On(mux, event.TypeStockExpired, s.stockExpired)
}

const seedSQL store.SQL = `
INSERT INTO @schema@.stock (sku, available) SELECT * FROM unnest($1::text[], $2::integer[]) ON CONFLICT (sku) DO NOTHING`

// Seed puts items into stock. An item that is there already keeps its figure.
func (s *Service) Seed(ctx context.Context, tx pgx.Tx, stock map[string]int) error {
	skus, figures := make([]string, 0, len(stock)), make([]int, 0, len(stock))
	for sku, available := range stock {
		skus, figures = append(skus, sku), append(figures, available)
	}
	if _, err := tx.Exec(ctx, seedSQL.In(s.schema), skus, figures); err != nil {
		return fmt.Errorf("seed stock: %w", err)
	}
	return nil
}

func (s *Service) emit(ctx context.Context, tx pgx.Tx, eventType, orderID string, payload any) error {
	m, err := event.New(eventType, orderID, payload)
	if err != nil {
		return err
	}
	m.Source = Name
	_, err = s.outbox.Enqueue(ctx, tx, m)
	return err
}
