package payments

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/store"
)

// Retention of the service's tables. What is not known yet is kept for as long as it takes.
var Retention = []store.Retention{
	store.Old("payment_attempts", "at", "true", 90*24*time.Hour),
	store.Old("payments", "status_at", "status IN ('CHARGED', 'DECLINED', 'REFUNDED', 'CANCELLED')", 400*24*time.Hour),
}

const (
	busySQL store.SQL = `SELECT count(*) FROM @schema@.payments WHERE tenant = $1 AND status IN ('CHARGING', 'REFUNDING')`

	eraseSQL store.SQL = `DELETE FROM @schema@.payments WHERE tenant = $1`
)

// Busy counts a tenant's payments whose outcome is not known.
func (s *Service) Busy(ctx context.Context, tx pgx.Tx, tenant string) (int64, error) {
	n, _, err := store.One[int64](ctx, tx, busySQL.In(s.schema), tenant)
	if err != nil {
		return 0, fmt.Errorf("count payments: %w", err)
	}
	return n, nil
}

// Erase removes everything of a tenant.
func (s *Service) Erase(ctx context.Context, tx pgx.Tx, tenant string) error {
	_, err := s.update(ctx, tx, eraseSQL, tenant)
	return err
}
