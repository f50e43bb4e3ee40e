package inventory

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/store"
)

// Retention of the service's tables. What a reservation that goes has sold stays in the books of the stock.
var Retention = []store.Retention{{
	Table: "reservations", Keep: 400 * 24 * time.Hour,
	Delete: `
WITH old AS (
    SELECT order_id FROM @schema@.reservations WHERE status IN ('COMMITTED', 'RELEASED', 'REJECTED') AND ended_at < now() - $1::interval
    LIMIT 1000 FOR UPDATE SKIP LOCKED
)` + goneSQL,
}}

// goneSQL deletes the reservations that are in "old".
const goneSQL store.SQL = `, sold AS (
    SELECT sku, sum(quantity) AS quantity FROM @schema@.reservation_lines JOIN @schema@.reservations USING (order_id) JOIN old USING (order_id)
    WHERE status = 'COMMITTED' GROUP BY sku
), kept AS (
    UPDATE @schema@.stock AS s SET sold = s.sold + sold.quantity FROM sold WHERE s.sku = sold.sku
)
DELETE FROM @schema@.reservations WHERE order_id IN (SELECT order_id FROM old)`

const (
	busySQL store.SQL = `SELECT count(*) FROM @schema@.reservations WHERE tenant = $1 AND status IN ('ACTIVE', 'EXPIRED')`

	eraseSQL store.SQL = `WITH old AS (SELECT order_id FROM @schema@.reservations WHERE tenant = $1)` + goneSQL
)

// Busy counts a tenant's reservations that hold stock.
func (s *Service) Busy(ctx context.Context, tx pgx.Tx, tenant string) (int64, error) {
	n, _, err := store.One[int64](ctx, tx, busySQL.In(s.schema), tenant)
	if err != nil {
		return 0, fmt.Errorf("count reservations: %w", err)
	}
	return n, nil
}

// Erase removes everything of a tenant.
func (s *Service) Erase(ctx context.Context, tx pgx.Tx, tenant string) error {
	if _, err := tx.Exec(ctx, eraseSQL.In(s.schema), tenant); err != nil {
		return fmt.Errorf("erase reservations: %w", err)
	}
	return nil
}
