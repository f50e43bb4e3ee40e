package inventory

import (
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	// An order that is cancelled before it was seen here leaves a tombstone: its order.created, should it still
	// come, finds it and holds nothing.
	tombstoneSQL store.SQL = `
INSERT INTO @schema@.reservations (order_id, tenant, status, reason, expires_at, ended_at)
VALUES ($1, $2, 'RELEASED', $3, now(), now()) ON CONFLICT (order_id) DO NOTHING`

	releaseSQL store.SQL = `
UPDATE @schema@.reservations SET status = 'RELEASED', reason = $2, ended_at = now()
WHERE order_id = $1 AND tenant = $4 AND status = ANY ($3)`

	lockLinesSQL store.SQL = `
SELECT FROM @schema@.stock WHERE sku IN (SELECT sku FROM @schema@.reservation_lines WHERE order_id = $1) ORDER BY sku FOR UPDATE`

	giveBackSQL store.SQL = `
UPDATE @schema@.stock AS s SET available = s.available + l.quantity
FROM @schema@.reservation_lines AS l WHERE l.order_id = $1 AND s.sku = l.sku`

	commitSQL store.SQL = `
UPDATE @schema@.reservations SET status = 'COMMITTED', ended_at = now()
WHERE order_id = $1 AND tenant = $2 AND status IN ('ACTIVE', 'EXPIRED')`

	takeAgainSQL store.SQL = `
UPDATE @schema@.stock AS s SET available = s.available - l.quantity
FROM @schema@.reservation_lines AS l WHERE l.order_id = $1 AND s.sku = l.sku AND s.available >= l.quantity`

	countLinesSQL store.SQL = `SELECT count(*) FROM @schema@.reservation_lines WHERE order_id = $1`

	recommitSQL store.SQL = `
UPDATE @schema@.reservations SET status = 'COMMITTED', reason = NULL, ended_at = now()
WHERE order_id = $1 AND tenant = $2 AND status = 'RELEASED'`
)

func (s *Service) orderCancelled(ctx context.Context, tx pgx.Tx, _ message.Message, e event.OrderCancelled) error {
	tag, err := tx.Exec(ctx, tombstoneSQL.In(s.schema), e.OrderID, e.Tenant, e.Reason)
	if err != nil {
		return fmt.Errorf("note cancelled order: %w", err)
	}
	if tag.RowsAffected() > 0 {
		return nil
	}
	return s.release(ctx, tx, e.Ref, e.Reason, "ACTIVE", "EXPIRED")
}

// stockExpired follows the watchdog, or the reconciliation, which has moved the reservation to EXPIRED and says why.
func (s *Service) stockExpired(ctx context.Context, tx pgx.Tx, _ message.Message, e event.StockExpired) error {
	return s.release(ctx, tx, e.Ref, cmp.Or(e.Reason, event.ReasonReservationExpired), "EXPIRED")
}

// release gives back what a reservation holds, once: only the step out of one of the given statuses does it.
func (s *Service) release(ctx context.Context, tx pgx.Tx, ref event.Ref, reason string, from ...string) error {
	tag, err := tx.Exec(ctx, releaseSQL.In(s.schema), ref.OrderID, reason, from, ref.Tenant)
	if err != nil {
		return fmt.Errorf("release reservation: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, lockLinesSQL.In(s.schema), ref.OrderID); err != nil {
		return fmt.Errorf("lock stock: %w", err)
	}
	if _, err := tx.Exec(ctx, giveBackSQL.In(s.schema), ref.OrderID); err != nil {
		return fmt.Errorf("give stock back: %w", err)
	}
	return s.emit(ctx, tx, event.TypeStockReleased, ref.OrderID, event.StockReleased{Ref: ref, Reason: reason})
}

// orderConfirmed takes what is held out of stock for good. A reservation that was given back meanwhile is taken
// again if it can; if not, a person must decide, and the message becomes a dead letter that says so.
func (s *Service) orderConfirmed(ctx context.Context, tx pgx.Tx, _ message.Message, e event.OrderConfirmed) error {
	tag, err := tx.Exec(ctx, commitSQL.In(s.schema), e.OrderID, e.Tenant)
	if err != nil {
		return fmt.Errorf("commit reservation: %w", err)
	}
	if tag.RowsAffected() > 0 {
		return nil
	}
	tag, err = tx.Exec(ctx, recommitSQL.In(s.schema), e.OrderID, e.Tenant)
	if err != nil {
		return fmt.Errorf("commit reservation: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return nil // committed before
	}
	return s.takeAgain(ctx, tx, e.OrderID)
}

func (s *Service) takeAgain(ctx context.Context, tx pgx.Tx, orderID string) error {
	if _, err := tx.Exec(ctx, lockLinesSQL.In(s.schema), orderID); err != nil {
		return fmt.Errorf("lock stock: %w", err)
	}
	lines, _, err := store.One[int64](ctx, tx, countLinesSQL.In(s.schema), orderID)
	if err != nil {
		return fmt.Errorf("count lines: %w", err)
	}
	tag, err := tx.Exec(ctx, takeAgainSQL.In(s.schema), orderID)
	if err != nil {
		return fmt.Errorf("take stock again: %w", err)
	}
	if lines == 0 || tag.RowsAffected() != lines {
		return consumer.Permanent(fmt.Errorf("order %s is confirmed, but its reservation has expired and the stock is gone: buy more or cancel it",
			message.Clip(orderID, 64)))
	}
	return nil
}
