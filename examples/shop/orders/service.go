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

// Tables of the service. status_at is the watchdog's clock. Of an order that was taken with "checkout": "sync", answered_at is when
// its final answer was known; until then it is somebody's to finish.
var Tables = store.SQL(`
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
);
ALTER TABLE @schema@.orders ADD COLUMN IF NOT EXISTS checkout text NOT NULL DEFAULT 'saga' CHECK (checkout IN ('saga', 'sync'));
ALTER TABLE @schema@.orders ADD COLUMN IF NOT EXISTS request_id text NOT NULL DEFAULT '';
ALTER TABLE @schema@.orders ADD COLUMN IF NOT EXISTS answered_at timestamptz;
CREATE INDEX IF NOT EXISTS orders_unanswered ON @schema@.orders (created_at) WHERE checkout = 'sync' AND answered_at IS NULL;
CREATE TABLE IF NOT EXISTS @schema@.recovery_cases (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant    text NOT NULL,
    order_id  text NOT NULL REFERENCES @schema@.orders (id) ON DELETE CASCADE,
    state     text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'accepted', 'compensated', 'manual')),
    version   integer NOT NULL DEFAULT 0,
    reason    text NOT NULL,
    evidence  jsonb NOT NULL DEFAULT '{}',
    asked     integer NOT NULL DEFAULT 0,
    next_at   timestamptz NOT NULL DEFAULT now(),
    opened_at timestamptz NOT NULL DEFAULT now(),
    since     timestamptz NOT NULL DEFAULT now(),
    closed_at timestamptz,
    CHECK ((closed_at IS NOT NULL) = (state IN ('accepted', 'compensated')))
);
CREATE UNIQUE INDEX IF NOT EXISTS recovery_cases_open ON @schema@.recovery_cases (tenant, order_id) WHERE closed_at IS NULL;
CREATE INDEX IF NOT EXISTS recovery_cases_due ON @schema@.recovery_cases (next_at) WHERE state = 'open';
CREATE INDEX IF NOT EXISTS recovery_cases_order ON @schema@.recovery_cases (order_id);
CREATE TABLE IF NOT EXISTS @schema@.order_attempts (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id   text NOT NULL REFERENCES @schema@.orders (id) ON DELETE CASCADE,
    tenant     text NOT NULL,
    case_id    bigint,
    operation  text NOT NULL,
    dependency text NOT NULL,
    number     integer NOT NULL,
    class      text NOT NULL,
    started_at timestamptz NOT NULL,
    took_ms    bigint NOT NULL,
    left_ms    bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS order_attempts_order ON @schema@.order_attempts (order_id);
CREATE INDEX IF NOT EXISTS order_attempts_at ON @schema@.order_attempts (started_at);`) + store.AppendOnly("order_attempts")

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
