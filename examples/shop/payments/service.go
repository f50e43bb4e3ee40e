// Package payments charges for orders and pays back, through the payment provider. A payment's states:
//
//	CHARGING --charged--> CHARGED
//	   | '-----declined-> DECLINED
//	   |                     CHARGED --refund.requested or order.cancelled--> REFUNDING --> REFUNDED
//	   '--order.cancelled--> REFUNDING --> REFUNDED, or CANCELLED when nothing had been charged
//	(none) --order.cancelled--> CANCELLED: never charged, whatever comes later
//
// The intent to charge is committed before the provider is called, and the call is made by the message that was
// committed with it. A call whose outcome is unknown is made again with the same key, the order's id, after the provider was
// asked by that key. A reversal settles every uncertainty: the provider pays back what it charged under the key, or never
// charges under it.
//
// Over HTTP ([API]) a doubt is never charged again: it is asked for, by whoever asks next and by the [Reconciler].
package payments

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/outbox"
)

// Name of the service, of its schema, and of its events' source.
const Name = "payments"

// Queue that the service consumes.
const Queue = "payments.saga"

// Tables of the service.
var Tables = store.SQL(`
CREATE TABLE IF NOT EXISTS @schema@.payments (
    order_id     text PRIMARY KEY,
    tenant       text NOT NULL,
    amount_cents bigint NOT NULL CHECK (amount_cents >= 0),
    currency     text NOT NULL,
    card         text NOT NULL,
    status       text NOT NULL CHECK (status IN ('CHARGING', 'CHARGED', 'DECLINED', 'REFUNDING', 'REFUNDED', 'CANCELLED')),
    status_at    timestamptz NOT NULL DEFAULT now(),
    charge_id    text,
    refund_id    text,
    created_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS payments_status ON @schema@.payments (status, status_at);
ALTER TABLE @schema@.payments ADD COLUMN IF NOT EXISTS checks integer NOT NULL DEFAULT 0;
ALTER TABLE @schema@.payments ADD COLUMN IF NOT EXISTS next_check_at timestamptz NOT NULL DEFAULT now();
CREATE UNIQUE INDEX IF NOT EXISTS payments_authorisation ON @schema@.payments (tenant, order_id);
CREATE INDEX IF NOT EXISTS payments_due ON @schema@.payments (next_check_at) WHERE status = 'CHARGING';
CREATE TABLE IF NOT EXISTS @schema@.payment_attempts (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id  text NOT NULL REFERENCES @schema@.payments (order_id) ON DELETE CASCADE,
    tenant    text NOT NULL,
    operation text NOT NULL CHECK (operation IN ('charge', 'check')),
    outcome   text NOT NULL CHECK (outcome IN ('STARTED', 'CHARGED', 'DECLINED', 'REVERSED', 'NOT_FOUND', 'UNKNOWN')),
    class     text NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS payment_attempts_order ON @schema@.payment_attempts (order_id);
CREATE INDEX IF NOT EXISTS payment_attempts_at ON @schema@.payment_attempts (at);`) + store.AppendOnly("payment_attempts")

// Provider charges, pays back, and tells what became of a key. [*provider.Client] is one, and [*provider.Guarded].
type Provider interface {
	Charge(ctx context.Context, key string, req provider.ChargeRequest) (provider.Charge, error)
	Reverse(ctx context.Context, key string) (provider.Reversal, error)
	Check(ctx context.Context, key string) (provider.Charge, error)
}

// Statuses of a payment.
const (
	StatusCharging  = "CHARGING"
	StatusCharged   = "CHARGED"
	StatusDeclined  = "DECLINED"
	StatusRefunding = "REFUNDING"
	StatusRefunded  = "REFUNDED"
	StatusCancelled = "CANCELLED"
)

// Options of the service.
type Options struct {
	// Prefix of the shop's schemas. Default: "shop".
	Prefix string
	// Provider of payments. Required.
	Provider Provider
	// Outbox that takes the events. Default: one with all defaults.
	Outbox *outbox.Outbox
}

// Service is the payments service. It is safe for concurrent use.
type Service struct {
	schema   string
	provider Provider
	outbox   *outbox.Outbox
}

// New returns the service. It does no I/O.
func New(o Options) (*Service, error) {
	if err := store.CheckPrefix(o.Prefix); err != nil {
		return nil, fmt.Errorf("payments: %w", err)
	}
	if o.Provider == nil {
		return nil, errors.New("payments: Provider is missing")
	}
	if o.Outbox == nil {
		o.Outbox = new(outbox.Outbox)
	}
	return &Service{schema: store.Schema(o.Prefix, Name), provider: o.Provider, outbox: o.Outbox}, nil
}

// Schema is the service's own.
func (s *Service) Schema() string { return s.schema }

// Routes registers the service's handlers.
func (s *Service) Routes(mux *consumer.Mux) {
	consumer.On(mux, event.TypeStockReserved, s.stockReserved)
	consumer.On(mux, event.TypeChargeRequested, s.chargeRequested)
	consumer.On(mux, event.TypeOrderCancelled, s.orderCancelled)
	consumer.On(mux, event.TypeRefundRequested, s.refundRequested)
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

func (s *Service) update(ctx context.Context, tx pgx.Tx, sql store.SQL, args ...any) (bool, error) {
	tag, err := tx.Exec(ctx, sql.In(s.schema), args...)
	if err != nil {
		return false, fmt.Errorf("update payment: %w", err)
	}
	return tag.RowsAffected() > 0, nil
}
