package relay

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// settings make the transaction's statements keep one plan, which does not look at parameters. Otherwise the planner makes one anew for every run of
// a statement whose parameters are short arrays (1 ms of CPU for a read of the main lane, more than the read itself), and by statistics that
// for a queue are mostly wrong. The forms of the relay's statements are such that the generic plan is the right one, and that is what is tested. A plan that was made while
// the table had a page or two, which to read whole is the cheapest, is kept when it has many.
const settings = "select set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true)"

// planned runs one statement with its generic plan, in a transaction of its own and in one round trip: nothing is left in the session, so
// that a pooler may be behind the pool. After an error nobody knows whether it was committed.
func planned(ctx context.Context, pool *pgxpool.Pool, sql string, use func(pgx.Rows) error, args ...any) (err error) {
	batch := &pgx.Batch{}
	batch.Queue("begin isolation level read committed")
	batch.Queue(settings)
	batch.Queue(sql, args...)
	batch.Queue("commit")
	results := pool.SendBatch(ctx, batch)
	defer func() { err = errors.Join(err, results.Close()) }()
	for range 2 {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	if err := use(rows); err != nil {
		return err
	}
	_, err = results.Exec()
	return err
}
