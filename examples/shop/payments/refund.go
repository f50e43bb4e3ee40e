package payments

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	// A payment that was never begun gets its end before its beginning: a stock.reserved that is redriven later
	// finds it and charges nothing.
	tombstoneSQL store.SQL = `
INSERT INTO @schema@.payments (order_id, tenant, amount_cents, currency, card, status)
VALUES ($1, $2, 0, '', '', 'CANCELLED') ON CONFLICT (order_id) DO NOTHING`

	// CHARGING too: the provider may have charged without our knowing.
	refundingSQL store.SQL = `
UPDATE @schema@.payments SET status = 'REFUNDING', status_at = now()
WHERE order_id = $1 AND tenant = $2 AND status IN ('CHARGING', 'CHARGED')`

	// No guard by CHARGED: a reversal asked for by two messages is one at the provider, and noted once here.
	refundedSQL store.SQL = `
UPDATE @schema@.payments SET status = 'REFUNDED', charge_id = $2, refund_id = $3, status_at = now()
WHERE order_id = $1 AND status <> 'REFUNDED'`

	tenantSQL store.SQL = `SELECT tenant FROM @schema@.payments WHERE order_id = $1`

	neverChargedSQL store.SQL = `
UPDATE @schema@.payments SET status = 'CANCELLED', status_at = now() WHERE order_id = $1 AND status IN ('CHARGING', 'REFUNDING')`
)

// orderCancelled asks back what was, or may have been, charged, in a message of its own: the intent is committed
// before the provider is called, as for a charge.
func (s *Service) orderCancelled(ctx context.Context, tx pgx.Tx, _ message.Message, e event.OrderCancelled) error {
	fresh, err := s.update(ctx, tx, tombstoneSQL, e.OrderID, e.Tenant)
	if err != nil || fresh {
		return err
	}
	refunding, err := s.update(ctx, tx, refundingSQL, e.OrderID, e.Tenant)
	if err != nil || !refunding {
		return err
	}
	return s.emit(ctx, tx, event.TypeRefundRequested, e.OrderID, event.RefundRequested(e))
}

// refundRequested settles the payment at the provider, for good. Asked for again, it changes nothing.
func (s *Service) refundRequested(ctx context.Context, tx pgx.Tx, _ message.Message, e event.RefundRequested) error {
	tenant, found, err := store.One[string](ctx, tx, tenantSQL.In(s.schema), e.OrderID)
	if err != nil {
		return fmt.Errorf("read payment: %w", err)
	}
	if found && tenant != e.Tenant {
		return consumer.Permanent(fmt.Errorf("order %q is another tenant's", message.Clip(e.OrderID, 64)))
	}
	reversal, err := s.provider.Reverse(ctx, e.OrderID)
	if err != nil {
		return err
	}
	if reversal.RefundID == "" {
		_, err := s.update(ctx, tx, neverChargedSQL, e.OrderID)
		return err
	}
	return s.refunded(ctx, tx, e.Ref, reversal)
}

func (s *Service) refunded(ctx context.Context, tx pgx.Tx, ref event.Ref, r provider.Reversal) error {
	changed, err := s.update(ctx, tx, refundedSQL, ref.OrderID, r.ChargeID, r.RefundID)
	if err != nil || !changed {
		return err
	}
	return s.emit(ctx, tx, event.TypePaymentRefunded, ref.OrderID, event.PaymentRefunded{
		Ref: ref, RefundID: r.RefundID, AmountCents: r.AmountCents,
	})
}
