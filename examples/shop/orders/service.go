package orders

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

// Name of the service, of its schema, and of its events' source.
const Name = "orders"

// Queue that the service consumes.
const Queue = "orders.saga"

// Tables of the service. status_at is the watchdog's clock.
const Tables store.SQL = `
CREATE TABLE IF NOT EXISTS @schema@.orders (
    id              text PRIMARY KEY,
    tenant          text NOT NULL,
    idempotency_key text NOT NULL,
    request_hash    bytea NOT NULL,
    customer_name   text NOT NULL,
    customer_email  text NOT NULL,
    total_cents     bigint NOT NULL CHECK (total_cents > 0),
    currency        text NOT NULL,
    card            text NOT NULL,
    note            text NOT NULL,
    status          text NOT NULL CHECK (status IN ('PENDING', 'STOCK_RESERVED', 'CONFIRMED', 'CANCELLED')),
    reason          text,
    status_at       timestamptz NOT NULL DEFAULT now(),
    reserved_until  timestamptz,
    charge_id       text,
    refund_id       text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant, idempotency_key)
);
CREATE INDEX IF NOT EXISTS orders_status ON @schema@.orders (status, status_at);
CREATE TABLE IF NOT EXISTS @schema@.order_lines (
    order_id         text NOT NULL REFERENCES @schema@.orders (id) ON DELETE CASCADE,
    line             integer NOT NULL,
    sku              text NOT NULL,
    name             text NOT NULL,
    quantity         integer NOT NULL CHECK (quantity > 0),
    unit_price_cents bigint NOT NULL CHECK (unit_price_cents >= 0),
    PRIMARY KEY (order_id, line)
);`

// Options of the service.
type Options struct {
	// Prefix of the shop's schemas. Default: "shop".
	Prefix string
	// Outbox that takes the events. Default: one with all defaults.
	Outbox *outbox.Outbox
}

// Service is the orders service. It is safe for concurrent use.
type Service struct {
	schema string
	outbox *outbox.Outbox
}

// New returns the service. It does no I/O.
func New(o Options) (*Service, error) {
	if err := store.CheckPrefix(o.Prefix); err != nil {
		return nil, fmt.Errorf("orders: %w", err)
	}
	if o.Outbox == nil {
		o.Outbox = new(outbox.Outbox)
	}
	return &Service{schema: store.Schema(o.Prefix, Name), outbox: o.Outbox}, nil
}

// Schema is the service's own.
func (s *Service) Schema() string { return s.schema }

// emit enqueues an event in the transaction of the change that it tells of.
func (s *Service) emit(ctx context.Context, tx pgx.Tx, eventType, orderID string, payload any) error {
	m, err := event.New(eventType, orderID, payload)
	if err != nil {
		return err
	}
	m.Source = Name
	return s.enqueue(ctx, tx, m)
}

func (s *Service) enqueue(ctx context.Context, tx pgx.Tx, m message.Message) error {
	_, err := s.outbox.Enqueue(ctx, tx, m)
	return err
}
