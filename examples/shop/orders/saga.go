package orders

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	reserveSQL store.SQL = `
UPDATE @schema@.orders SET status = 'STOCK_RESERVED', reserved_until = $2, status_at = now()
WHERE id = $1 AND tenant = $3 AND status = 'PENDING'`

	// PENDING too: the news of the reservation may have been overtaken on a retry.
	confirmSQL store.SQL = `
UPDATE @schema@.orders SET status = 'CONFIRMED', charge_id = $2, status_at = now()
WHERE id = $1 AND tenant = $3 AND status IN ('PENDING', 'STOCK_RESERVED') RETURNING customer_name, customer_email`

	cancelSQL store.SQL = `
UPDATE @schema@.orders SET status = 'CANCELLED', reason = $2, status_at = now()
WHERE id = $1 AND tenant = $3 AND status IN ('PENDING', 'STOCK_RESERVED')`

	// The charge is noted also on an order that was cancelled before: for the books.
	chargedSQL store.SQL = `UPDATE @schema@.orders SET charge_id = $2 WHERE id = $1 AND charge_id IS NULL`

	refundedSQL store.SQL = `UPDATE @schema@.orders SET refund_id = $2 WHERE id = $1 AND tenant = $3 AND refund_id IS NULL`

	statusSQL store.SQL = `SELECT status FROM @schema@.orders WHERE id = $1 AND tenant = $2`
)

// Routes registers the service's handlers.
func (s *Service) Routes(mux *consumer.Mux) {
	consumer.On(mux, event.TypeStockReserved, s.stockReserved)
	consumer.On(mux, event.TypeStockRejected, s.stockRejected)
	consumer.On(mux, event.TypePaymentConfirmed, s.paymentConfirmed)
	consumer.On(mux, event.TypePaymentRejected, s.paymentRejected)
	consumer.On(mux, event.TypeStockReleased, s.stockReleased)
	consumer.On(mux, event.TypePaymentRefunded, s.paymentRefunded)
}

func (s *Service) stockReserved(ctx context.Context, tx pgx.Tx, _ message.Message, e event.StockReserved) error {
	changed, err := s.update(ctx, tx, reserveSQL, e.OrderID, e.ExpiresAt, e.Tenant)
	if err != nil || changed {
		return err
	}
	_, err = s.status(ctx, tx, e.Ref)
	return err
}

func (s *Service) stockRejected(ctx context.Context, tx pgx.Tx, _ message.Message, e event.StockRejected) error {
	return s.cancel(ctx, tx, e.Ref, e.Reason)
}

func (s *Service) paymentRejected(ctx context.Context, tx pgx.Tx, _ message.Message, e event.PaymentRejected) error {
	return s.cancel(ctx, tx, e.Ref, e.Reason)
}

// stockReleased matters only when nobody asked for it: the reservation has expired.
func (s *Service) stockReleased(ctx context.Context, tx pgx.Tx, _ message.Message, e event.StockReleased) error {
	if e.Reason != event.ReasonReservationExpired {
		return nil
	}
	return s.cancel(ctx, tx, e.Ref, e.Reason)
}

func (s *Service) paymentConfirmed(ctx context.Context, tx pgx.Tx, _ message.Message, e event.PaymentConfirmed) error {
	return s.confirm(ctx, tx, e)
}

// confirm ends an order well, unless it has ended already.
func (s *Service) confirm(ctx context.Context, tx pgx.Tx, e event.PaymentConfirmed) error {
	rows, _ := tx.Query(ctx, confirmSQL.In(s.schema), e.OrderID, e.ChargeID, e.Tenant) // its error is that of the rows
	customer, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[event.Customer])
	switch {
	case err == nil:
		return s.emit(ctx, tx, event.TypeOrderConfirmed, e.OrderID, event.OrderConfirmed{Ref: e.Ref, Customer: customer})
	case errors.Is(err, pgx.ErrNoRows):
		return s.latePayment(ctx, tx, e)
	default:
		return fmt.Errorf("confirm order: %w", err)
	}
}

// latePayment asks the money of a cancelled order back. A confirmed order keeps its payment.
func (s *Service) latePayment(ctx context.Context, tx pgx.Tx, e event.PaymentConfirmed) error {
	status, err := s.status(ctx, tx, e.Ref)
	if err != nil || status != StatusCancelled {
		return err
	}
	if _, err := s.update(ctx, tx, chargedSQL, e.OrderID, e.ChargeID); err != nil {
		return err
	}
	return s.emit(ctx, tx, event.TypeRefundRequested, e.OrderID, event.RefundRequested{Ref: e.Ref, Reason: event.ReasonLatePayment})
}

func (s *Service) paymentRefunded(ctx context.Context, tx pgx.Tx, _ message.Message, e event.PaymentRefunded) error {
	_, err := s.update(ctx, tx, refundedSQL, e.OrderID, e.RefundID, e.Tenant)
	return err
}

// cancel ends an order that is not ended yet, and says so. On one that is, it does nothing.
func (s *Service) cancel(ctx context.Context, tx pgx.Tx, ref event.Ref, reason string) error {
	changed, err := s.update(ctx, tx, cancelSQL, ref.OrderID, reason, ref.Tenant)
	if err != nil {
		return err
	}
	if !changed {
		_, err := s.status(ctx, tx, ref)
		return err
	}
	return s.emit(ctx, tx, event.TypeOrderCancelled, ref.OrderID, event.OrderCancelled{Ref: ref, Reason: reason})
}

func (s *Service) update(ctx context.Context, tx pgx.Tx, sql store.SQL, args ...any) (bool, error) {
	tag, err := tx.Exec(ctx, sql.In(s.schema), args...)
	if err != nil {
		return false, fmt.Errorf("update order: %w", err)
	}
	return tag.RowsAffected() > 0, nil
}

// status of a tenant's order. One that is not known is no matter of time: orders are there before their events.
func (s *Service) status(ctx context.Context, tx pgx.Tx, ref event.Ref) (string, error) {
	status, found, err := store.One[string](ctx, tx, statusSQL.In(s.schema), ref.OrderID, ref.Tenant)
	if err != nil {
		return "", fmt.Errorf("read order: %w", err)
	}
	if !found {
		return "", consumer.Permanent(fmt.Errorf("there is no order %q", message.Clip(ref.OrderID, 64)))
	}
	return status, nil
}
