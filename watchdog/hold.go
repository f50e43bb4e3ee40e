package watchdog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	// An infinite time skips the row.
	setHoldSQL pg.SQL = `
INSERT INTO @schema@.watchdog_holds (rule, key_hash, since, key, until, who, reason)
VALUES ($1, sha256(convert_to($2::text, 'UTF8')), $3, $4, coalesce($5::timestamptz, 'infinity'), $6, $7)
ON CONFLICT (rule, key_hash) DO UPDATE SET
    since = excluded.since, key = excluded.key, until = excluded.until, at = clock_timestamp(), who = excluded.who, reason = excluded.reason`

	dropHoldSQL pg.SQL = `
DELETE FROM @schema@.watchdog_holds WHERE rule = $1 AND key_hash = sha256(convert_to($2::text, 'UTF8'))`

	countHeldSQL pg.SQL = `
SELECT count(*) FROM (SELECT FROM @schema@.watchdog_holds WHERE rule = $1 AND until > now() LIMIT $2) AS held`

	// One that has ended is of no use; one that has not goes after a while all the same, for the row may be gone.
	expireHoldsSQL pg.SQL = `
DELETE FROM @schema@.watchdog_holds WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM @schema@.watchdog_holds WHERE until < now() - $1::interval OR at < now() - $2::interval LIMIT $3 FOR UPDATE SKIP LOCKED))`
)

// HoldRetention is how long a hold lasts at most: that of a skipped row, too.
const HoldRetention = 400 * 24 * time.Hour

func (w *Watchdog) hold(ctx context.Context, tx pgx.Tx, r *compiled, row claimed, until *time.Time, who, reason string) error {
	_, err := tx.Exec(ctx, setHoldSQL.In(w.options.Schema), r.Name, row.Key, row.Since, message.Storable(row.Key, maxKeyShown), until, who, reason)
	if err != nil {
		return fmt.Errorf("hold row: %w", err)
	}
	return nil
}

func (w *Watchdog) release(ctx context.Context, tx pgx.Tx, r *compiled, row claimed) error {
	if _, err := tx.Exec(ctx, dropHoldSQL.In(w.options.Schema), r.Name, row.Key); err != nil {
		return fmt.Errorf("release row: %w", err)
	}
	return nil
}

func (w *Watchdog) expireHolds(ctx context.Context) error {
	if _, err := w.options.Pool.Exec(ctx, expireHoldsSQL.In(w.options.Schema), failureRetention, HoldRetention, expireBatch); err != nil {
		return fmt.Errorf("expire watchdog holds: %w", err)
	}
	return nil
}
