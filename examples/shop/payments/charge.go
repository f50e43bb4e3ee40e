package payments

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	intendSQL store.SQL = `
INSERT INTO @schema@.payments (order_id, tenant, amount_cents, currency, card, status)
VALUES ($1, $2, $3, $4, $5, 'CHARGING') ON CONFLICT (order_id) DO NOTHING`

	intentSQL store.SQL = `SELECT tenant, amount_cents, currency, card FROM @schema@.payments WHERE order_id = $1 AND tenant = $2 AND status = 'CHARGING'`

	chargedSQL store.SQL = `
UPDATE @schema@.payments SET status = 'CHARGED', charge_id = $2, status_at = now() WHERE order_id = $1 AND status = 'CHARGING'`

	declinedSQL store.SQL = `
UPDATE @schema@.payments SET status = 'DECLINED', status_at = now() WHERE order_id = $1 AND status = 'CHARGING'`
)

// stockReserved writes down the intent to charge. For an order that is known already, be it as cancelled, there
// is none.
func (s *Service) stockReserved(ctx context.Context, tx pgx.Tx, _ message.Message, e event.StockReserved) error {
	fresh, err := s.update(ctx, tx, intendSQL, e.OrderID, e.Tenant, e.Payment.AmountCents, e.Payment.Currency, e.Payment.Card)
	if err != nil || !fresh {
		return err
	}
	return s.emit(ctx, tx, event.TypeChargeRequested, e.OrderID, event.ChargeRequested{Ref: e.Ref})
}

// chargeRequested calls the provider. The row is not locked meanwhile: an order that is cancelled during the call
// is reversed at the provider, which is right whichever of the two gets there first.
//
// After a failed attempt the provider is asked first: what it has charged is not asked for a second time.
func (s *Service) chargeRequested(ctx context.Context, tx pgx.Tx, m message.Message, e event.ChargeRequested) error {
	rows, _ := tx.Query(ctx, intentSQL.In(s.schema), e.OrderID, e.Tenant) // its error is that of the rows
	type intent struct {
		Tenant         string
		AmountCents    int64
		Currency, Card string
	}
	i, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[intent])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // charged, declined or cancelled before
	}
	if err != nil {
		return fmt.Errorf("read intent: %w", err)
	}
	charge, err := provider.Charge{}, provider.ErrUnknownKey
	if m.Attempts > 0 {
		charge, err = s.provider.Check(ctx, e.OrderID)
	}
	if errors.Is(err, provider.ErrUnknownKey) {
		charge, err = s.provider.Charge(ctx, e.OrderID, provider.ChargeRequest{
			OrderID: e.OrderID, Tenant: i.Tenant, AmountCents: i.AmountCents, Currency: i.Currency, Card: i.Card,
		})
	}
	switch {
	case errors.Is(err, provider.ErrDeclined):
		return s.declined(ctx, tx, e.Ref)
	case errors.Is(err, provider.ErrReversed):
		return nil // the reversal's message does the rest
	case err != nil:
		return err
	}
	return s.charged(ctx, tx, e.Ref, charge)
}

func (s *Service) charged(ctx context.Context, tx pgx.Tx, ref event.Ref, charge provider.Charge) error {
	changed, err := s.update(ctx, tx, chargedSQL, ref.OrderID, charge.ID)
	if err != nil || !changed {
		return err
	}
	return s.emit(ctx, tx, event.TypePaymentConfirmed, ref.OrderID, event.PaymentConfirmed{
		Ref: ref, ChargeID: charge.ID, AmountCents: charge.AmountCents,
	})
}

func (s *Service) declined(ctx context.Context, tx pgx.Tx, ref event.Ref) error {
	changed, err := s.update(ctx, tx, declinedSQL, ref.OrderID)
	if err != nil || !changed {
		return err
	}
	return s.emit(ctx, tx, event.TypePaymentRejected, ref.OrderID, event.PaymentRejected{Ref: ref, Reason: event.ReasonCardDeclined})
}
