package orders

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/store"
)

// Retention of the service's tables. An order goes with everything of it, and not before it has ended.
var Retention = []store.Retention{
	store.Old("order_attempts", "started_at", "true", 30*24*time.Hour),
	store.Old("recovery_cases", "closed_at", "closed_at IS NOT NULL", 90*24*time.Hour),
	store.Old("orders", "status_at", "status IN ('CONFIRMED', 'CANCELLED') AND (checkout = 'saga' OR answered_at IS NOT NULL)", 400*24*time.Hour),
}

const (
	busySQL store.SQL = `
SELECT count(*) FROM @schema@.orders WHERE tenant = $1 AND (status IN ('PENDING', 'STOCK_RESERVED') OR checkout = 'sync' AND answered_at IS NULL)`

	eraseSQL store.SQL = `DELETE FROM @schema@.orders WHERE tenant = $1`
)

// Busy counts a tenant's orders that are still on their way.
func (s *Service) Busy(ctx context.Context, tx pgx.Tx, tenant string) (int64, error) {
	n, _, err := store.One[int64](ctx, tx, busySQL.In(s.schema), tenant)
	if err != nil {
		return 0, fmt.Errorf("count orders on their way: %w", err)
	}
	return n, nil
}

// Erase removes everything of a tenant.
func (s *Service) Erase(ctx context.Context, tx pgx.Tx, tenant string) error {
	_, err := s.update(ctx, tx, eraseSQL, tenant)
	return err
}
