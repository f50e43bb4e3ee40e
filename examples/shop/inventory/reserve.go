package inventory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	openSQL store.SQL = `
INSERT INTO @schema@.reservations (order_id, tenant, status, expires_at) VALUES ($1, $2, 'ACTIVE', now() + $3::interval)
ON CONFLICT (order_id) DO NOTHING RETURNING expires_at`

	// In the order of the items, so that two orders of the same items cannot deadlock.
	lockStockSQL store.SQL = `SELECT sku, available FROM @schema@.stock WHERE sku = ANY ($1) ORDER BY sku FOR UPDATE`

	takeSQL store.SQL = `
UPDATE @schema@.stock AS s SET available = s.available - l.quantity
FROM unnest($1::text[], $2::integer[]) AS l(sku, quantity) WHERE s.sku = l.sku`

	holdLinesSQL store.SQL = `
INSERT INTO @schema@.reservation_lines (order_id, tenant, sku, quantity)
SELECT $1, $2, sku, quantity FROM unnest($3::text[], $4::integer[]) AS l(sku, quantity)`

	rejectSQL store.SQL = `UPDATE @schema@.reservations SET status = 'REJECTED', reason = $2, ended_at = now() WHERE order_id = $1`
)

// orderCreated holds every line of an order, or none. An order that is known already, be it as cancelled, is
// left alone.
func (s *Service) orderCreated(ctx context.Context, tx pgx.Tx, _ message.Message, e event.OrderCreated) error {
	wanted := map[string]int{}
	for _, line := range e.Lines {
		wanted[line.SKU] += line.Quantity
	}
	h, opened, err := s.open(ctx, tx, e.Ref, wanted)
	if err != nil || !opened {
		return err
	}
	if h.reason != "" {
		return s.emit(ctx, tx, event.TypeStockRejected, e.OrderID, event.StockRejected{Ref: e.Ref, Reason: h.reason, SKU: h.missing})
	}
	return s.emit(ctx, tx, event.TypeStockReserved, e.OrderID, event.StockReserved{Ref: e.Ref, ExpiresAt: h.expires.UTC(), Payment: e.Payment})
}

// holding is what came of a reservation: a reason when nothing is held.
type holding struct {
	expires         time.Time
	reason, missing string
}

// open makes a reservation that holds everything, or is rejected; false when the order has one already.
func (s *Service) open(ctx context.Context, tx pgx.Tx, ref event.Ref, wanted map[string]int) (h holding, opened bool, err error) {
	h.expires, opened, err = store.One[time.Time](ctx, tx, openSQL.In(s.schema), ref.OrderID, ref.Tenant, s.hold)
	if err != nil {
		return h, false, fmt.Errorf("open reservation: %w", err)
	}
	if !opened {
		return h, false, nil
	}
	if h.missing, h.reason, err = s.missing(ctx, tx, wanted); err != nil {
		return h, false, err
	}
	if h.reason == "" {
		return h, true, s.take(ctx, tx, ref, wanted)
	}
	if _, err := tx.Exec(ctx, rejectSQL.In(s.schema), ref.OrderID, h.reason); err != nil {
		return h, false, fmt.Errorf("reject reservation: %w", err)
	}
	return h, true, nil
}

// missing locks the items and names the first of which there is not enough.
func (s *Service) missing(ctx context.Context, tx pgx.Tx, wanted map[string]int) (sku, reason string, err error) {
	skus := slices.Sorted(maps.Keys(wanted))
	rows, _ := tx.Query(ctx, lockStockSQL.In(s.schema), skus) // its error is that of the rows
	type item struct {
		SKU       string
		Available int
	}
	items, err := pgx.CollectRows(rows, pgx.RowToStructByPos[item])
	if err != nil {
		return "", "", fmt.Errorf("lock stock: %w", err)
	}
	available := map[string]int{}
	for _, i := range items {
		available[i.SKU] = i.Available
	}
	for _, sku := range skus {
		have, known := available[sku]
		switch {
		case !known:
			return sku, event.ReasonUnknownItem, nil
		case have < wanted[sku]:
			return sku, event.ReasonOutOfStock, nil
		}
	}
	return "", "", nil
}

func (s *Service) take(ctx context.Context, tx pgx.Tx, ref event.Ref, wanted map[string]int) error {
	skus := slices.Sorted(maps.Keys(wanted))
	quantities := make([]int, len(skus))
	for i, sku := range skus {
		quantities[i] = wanted[sku]
	}
	if _, err := tx.Exec(ctx, takeSQL.In(s.schema), skus, quantities); err != nil {
		return fmt.Errorf("take stock: %w", err)
	}
	if _, err := tx.Exec(ctx, holdLinesSQL.In(s.schema), ref.OrderID, ref.Tenant, skus, quantities); err != nil {
		return fmt.Errorf("note reservation: %w", err)
	}
	return nil
}
