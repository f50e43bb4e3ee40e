package watchdog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/usertable"
)

const (
	recordSQL pg.SQL = `
INSERT INTO @schema@.watchdog_failures AS f (rule, key_hash, since, key, tries, error, next_try)
VALUES ($1, sha256(convert_to($2::text, 'UTF8')), $3, $4, 1, $5, clock_timestamp() + least($6::interval, $7::interval))
ON CONFLICT (rule, key_hash) DO UPDATE SET
    since = excluded.since, key = excluded.key, error = excluded.error, last_failed_at = clock_timestamp(),
    tries = CASE WHEN f.since = excluded.since THEN f.tries + 1 ELSE 1 END,
    first_failed_at = CASE WHEN f.since = excluded.since THEN f.first_failed_at ELSE clock_timestamp() END,
    next_try = clock_timestamp() + CASE WHEN f.since = excluded.since
        THEN least($7::interval, $6::interval * power(2, least(f.tries, 16))) ELSE least($6::interval, $7::interval) END
RETURNING tries, next_try`

	forgiveSQL pg.SQL = `
DELETE FROM @schema@.watchdog_failures WHERE rule = $1 AND key_hash = sha256(convert_to($2::text, 'UTF8'))`

	// A row that is still stuck is tried soon after next_try and gets another one. A record whose time passed
	// long ago belongs to a row that is stuck no more, or to a rule that is gone.
	expireSQL pg.SQL = `
DELETE FROM @schema@.watchdog_failures WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM @schema@.watchdog_failures WHERE next_try < now() - $1::interval ORDER BY next_try LIMIT $2 FOR UPDATE SKIP LOCKED))`

	countFailingSQL pg.SQL = `
SELECT count(*) FROM (SELECT FROM @schema@.watchdog_failures WHERE rule = $1 LIMIT $2) AS failing`
)

const (
	// failureRetention is counted from next_try, which the database keeps moving while the row is stuck.
	failureRetention = 24 * time.Hour
	expireBatch      = 1000
	maxError         = 1024
	maxKeyShown      = 255
)

// failure is a row that could not be changed.
type failure struct {
	claimed
	err     error
	tries   int
	nextTry time.Time
}

// record writes a failure in the transaction of the batch, outside of the row's savepoint.
func (w *Watchdog) record(ctx context.Context, tx pgx.Tx, r *compiled, f *failure) error {
	err := tx.QueryRow(ctx, recordSQL.In(w.options.Schema), r.Name, f.Key, f.Since, clipKey(f.Key),
		usertable.Bounded(f.err), w.options.Backoff, w.options.MaxBackoff).Scan(&f.tries, &f.nextTry)
	if err != nil {
		return fmt.Errorf("record watchdog failure: %w", err)
	}
	return nil
}

func (w *Watchdog) forgive(ctx context.Context, tx pgx.Tx, r *compiled, row claimed) error {
	if _, err := tx.Exec(ctx, forgiveSQL.In(w.options.Schema), r.Name, row.Key); err != nil {
		return fmt.Errorf("remove watchdog failure: %w", err)
	}
	return nil
}

func (w *Watchdog) expireFailures(ctx context.Context) error {
	if _, err := w.options.Pool.Exec(ctx, expireSQL.In(w.options.Schema), failureRetention, expireBatch); err != nil {
		return fmt.Errorf("expire watchdog failures: %w", err)
	}
	return nil
}
