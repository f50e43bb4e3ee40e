package shop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/inventory"
	"github.com/surefoot-mq/surefoot/examples/shop/notifications"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/payments"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
)

// cleanEvery is the time between two rounds of [Shop.RunClean].
const cleanEvery = time.Hour

// Clean removes what is older than the retention of its table, in batches, and returns how many rows of each.
func (s *Shop) Clean(ctx context.Context) (map[string]int64, error) {
	all := map[string]int64{}
	for _, of := range []struct {
		schema string
		rules  []store.Retention
	}{
		{s.Orders.Schema(), orders.Retention},
		{s.Payments.Schema(), payments.Retention},
		{s.Inventory.Schema(), inventory.Retention},
		{s.Notifications.Schema(), notifications.Retention},
	} {
		deleted, err := store.Clean(ctx, s.options.Pool, of.schema, of.rules)
		maps.Copy(all, deleted)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// RunClean cleans once an hour until ctx ends; then it returns nil. A round that fails is logged and tried again.
func (s *Shop) RunClean(ctx context.Context) error {
	ticker := time.NewTicker(cleanEvery)
	defer ticker.Stop()
	for {
		if _, err := s.Clean(ctx); err != nil && ctx.Err() == nil {
			s.options.Logger.Warn().Err(err).Msg("old rows not removed, tried again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// BusyError says that a tenant cannot be erased yet.
type BusyError struct {
	Tenant string
	// Orders, Reservations and Payments that are still on their way.
	Orders, Reservations, Payments int64
}

// Error implements error.
func (e *BusyError) Error() string {
	return fmt.Sprintf("tenant %q cannot be erased yet: %d orders, %d reservations and %d payments are on their way; wait until they have ended",
		e.Tenant, e.Orders, e.Reservations, e.Payments)
}

// Erase removes everything of a tenant from the services' books and from the remembered requests, in one transaction; what the
// tenant has sold stays in the figures of the stock, which name nobody. It is refused with a [*BusyError] while an order of the
// tenant is on its way; one that is taken meanwhile is left alone. Messages in queues are not reached: what lies in a dead-letter
// queue is discarded by its operator.
func (s *Shop) Erase(ctx context.Context, tenant string) error {
	remembered, err := s.store(0)
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		err := s.erase(ctx, remembered, tenant)
		if try == eraseTries || resilience.Classify(err) != resilience.ClassDatabaseRetry {
			return err
		}
	}
}

// eraseTries are for what changes the same stock at the same time.
const eraseTries = 5

// erase sees one state of the books throughout: what was not counted is not removed. What others have changed since then ends it.
func (s *Shop) erase(ctx context.Context, remembered *idempotency.Store, tenant string) error {
	return pgx.BeginTxFunc(ctx, s.options.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		busy := &BusyError{Tenant: tenant}
		var faults [3]error
		busy.Orders, faults[0] = s.Orders.Busy(ctx, tx, tenant)
		busy.Reservations, faults[1] = s.Inventory.Busy(ctx, tx, tenant)
		busy.Payments, faults[2] = s.Payments.Busy(ctx, tx, tenant)
		if err := errors.Join(faults[:]...); err != nil {
			return err
		}
		if busy.Orders+busy.Reservations+busy.Payments > 0 {
			return busy
		}
		_, err := remembered.Erase(ctx, tx, tenant)
		return errors.Join(err, s.Orders.Erase(ctx, tx, tenant), s.Inventory.Erase(ctx, tx, tenant), s.Payments.Erase(ctx, tx, tenant),
			s.Notifications.Erase(ctx, tx, tenant), s.Customers.Erase(ctx, tx, tenant))
	})
}
