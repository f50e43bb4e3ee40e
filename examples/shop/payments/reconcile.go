package payments

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
)

// dueSQL takes payments whose outcome is not known, and writes down when each is asked for next before it is asked for now:
// whatever happens meanwhile, it is not forgotten, and not asked for without end.
const dueSQL store.SQL = `
UPDATE @schema@.payments SET checks = checks + 1, next_check_at = now() + least($2::interval * power(2, least(checks, 20)), $3::interval)
WHERE order_id IN (
    SELECT order_id FROM @schema@.payments
    WHERE status = 'CHARGING' AND status_at <= now() - $1::interval AND next_check_at <= now()
    ORDER BY next_check_at LIMIT $4 FOR UPDATE SKIP LOCKED)
RETURNING order_id, tenant`

// ReconcilerOptions of a reconciler.
type ReconcilerOptions struct {
	// Pool of the service's database. Required.
	Pool *pgxpool.Pool
	// Provider that is asked, with a policy. Required.
	Provider Provider
	// After is how old a charge must be: a younger one may still be answered. Default: 30 s.
	After time.Duration
	// Every is the time between two rounds. Default: 5 s.
	Every time.Duration
	// Wait before a payment is asked for a second time; it doubles up to MaxWait. Default: 10 s, 10 min.
	Wait, MaxWait time.Duration
	// Batch is how many are asked for in a round, and Parallel how many at a time. Default: 100, 4.
	Batch, Parallel int
	// Logger takes a line for each payment whose outcome was learned, and for each round that failed. Default: none.
	Logger zerolog.Logger
}

// Reconciler asks the provider what became of payments whose outcome is not known. It asks, and never charges; an answer that
// is still unknown leaves the payment pending, with its next check due. Several may run. It is safe for concurrent use.
type Reconciler struct {
	desk    desk
	options ReconcilerOptions
}

// Reconciler returns a reconciler of the service's payments. It does no I/O.
func (s *Service) Reconciler(o ReconcilerOptions) (*Reconciler, error) {
	if o.Pool == nil || o.Provider == nil {
		return nil, errors.New("payments: a reconciler needs Pool and Provider")
	}
	o.After, o.Every = cmp.Or(o.After, 30*time.Second), cmp.Or(o.Every, 5*time.Second)
	o.Wait, o.MaxWait = cmp.Or(o.Wait, 10*time.Second), cmp.Or(o.MaxWait, 10*time.Minute)
	o.Batch, o.Parallel = cmp.Or(o.Batch, 100), cmp.Or(o.Parallel, 4)
	return &Reconciler{desk: desk{service: s, pool: o.Pool, provider: o.Provider}, options: o}, nil
}

// Reconciled counts what a round learned.
type Reconciled struct {
	// Checks are the payments that the provider was asked for.
	Checks int `json:"checks"`
	// Charged and Declined are known now; Pending are still not.
	Charged  int `json:"charged"`
	Declined int `json:"declined"`
	Pending  int `json:"pending"`
}

// Run asks in rounds until ctx ends; then it returns nil. A round that fails is logged and tried again.
func (r *Reconciler) Run(ctx context.Context) error {
	ticker := time.NewTicker(r.options.Every)
	defer ticker.Stop()
	for {
		if _, err := r.Once(ctx); err != nil && ctx.Err() == nil {
			r.options.Logger.Warn().Err(err).Msg("payments not reconciled, tried again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Once asks for every payment that is due, up to Batch.
func (r *Reconciler) Once(ctx context.Context) (Reconciled, error) {
	o := r.options
	rows, _ := o.Pool.Query(ctx, dueSQL.In(r.desk.service.schema), o.After, o.Wait, o.MaxWait, o.Batch) // its error is that of the rows
	due, err := pgx.CollectRows(rows, pgx.RowToStructByPos[event.Ref])
	if err != nil {
		return Reconciled{}, fmt.Errorf("find payments that are due: %w", err)
	}
	total, mu := Reconciled{Checks: len(due)}, sync.Mutex{}
	var group errgroup.Group // one that cannot be written down does not end the others' asking
	group.SetLimit(o.Parallel)
	for _, ref := range due {
		group.Go(func() error {
			p, err := r.desk.ask(ctx, ref)
			mu.Lock()
			defer mu.Unlock()
			return r.learned(&total, p, err)
		})
	}
	err = group.Wait()
	return total, err
}

// learned counts one payment. An answer that the database does not take is an error, and is asked for again.
func (r *Reconciler) learned(total *Reconciled, p Payment, err error) error {
	switch {
	case p.Status == StatusCharging && err != nil && p.Currency == "":
		return err
	case p.Status == StatusCharging:
		total.Pending++
		return nil
	case p.Status == StatusDeclined:
		total.Declined++
	default:
		total.Charged++
	}
	r.options.Logger.Info().Str("order", p.OrderID).Str("status", p.Status).Msg("payment reconciled")
	return nil
}
