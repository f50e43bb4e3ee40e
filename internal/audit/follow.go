package audit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
)

const (
	followSQL pg.SQL = `
SELECT id, operation, at, who, origin, action, target, reason, message_id, outcome, detail FROM @schema@.audit
WHERE id > $1 AND id <> ALL ($2::bigint[]) ORDER BY id LIMIT $3`

	startSQL pg.SQL = `SELECT coalesce(CASE WHEN $1::timestamptz IS NULL THEN max(id) ELSE min(id) FILTER (WHERE at >= $1) - 1 END, max(id), 0) FROM @schema@.audit`

	snapshotSQL = `SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() AS s`

	followPage = 1000
	// heldMost bounds what is remembered above a gap.
	heldMost = 100_000
)

// Follower reads entries as they become visible, each once. Entries are numbered when they are written and visible when they are committed, so a
// number may come late. A gap is passed when no transaction is left that was open when it was seen: then nobody can fill it. For one goroutine.
type Follower struct {
	pool     *pgxpool.Pool
	schema   string
	interval time.Duration
	low      int64              // all up to here were read, or will never be
	above    map[int64]struct{} // read, above low
	gap      bool               // there was one at the last look
	until    int64              // it ends when every older transaction has; 0: not known yet
}

// NewFollower begins behind an entry. interval is how long it waits when nothing is new.
func NewFollower(pool *pgxpool.Pool, schema string, after int64, interval time.Duration) *Follower {
	return &Follower{pool: pool, schema: schema, interval: interval, low: after, above: map[int64]struct{}{}}
}

// Start returns the entry behind which a follower begins: the last one, or with since the one before the first of that time.
func Start(ctx context.Context, pool *pgxpool.Pool, schema string, since time.Time) (after int64, err error) {
	var from *time.Time
	if !since.IsZero() {
		from = &since
	}
	if err := pool.QueryRow(ctx, startSQL.In(schema), from).Scan(&after); err != nil {
		return 0, fmt.Errorf("read audit: %w", err)
	}
	return after, nil
}

// Next returns what is new, in the order of the numbers, and waits until something is. It fails when ctx ends or the database cannot be asked, and may be
// called again then: nothing is passed over.
func (f *Follower) Next(ctx context.Context) ([]Item, error) {
	for {
		items, err := f.look(ctx)
		if err != nil || len(items) > 0 {
			return items, err
		}
		if !pause.For(ctx, f.interval) {
			return nil, context.Cause(ctx)
		}
	}
}

func (f *Follower) look(ctx context.Context) ([]Item, error) {
	settled, err := f.settled(ctx) // before the look: what commits in between is seen by it
	if err != nil {
		return nil, err
	}
	known := slices.AppendSeq(make([]int64, 0, len(f.above)), maps.Keys(f.above)) // not NULL
	rows, _ := f.pool.Query(ctx, followSQL.In(f.schema), f.low, known, followPage)
	items, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Item])
	if err != nil {
		return nil, fmt.Errorf("read audit: %w", err)
	}
	for _, i := range items {
		f.above[i.ID] = struct{}{}
	}
	if !f.advance() && settled {
		f.low = slices.Min(slices.Collect(maps.Keys(f.above))) - 1
		f.advance()
	}
	f.gap = len(f.above) > 0
	return items, nil
}

// advance moves low over what was read without a gap, and says whether it moved.
func (f *Follower) advance() (moved bool) {
	for {
		if _, read := f.above[f.low+1]; !read {
			return moved
		}
		delete(f.above, f.low+1)
		f.low++
		f.until, moved = 0, true
	}
}

// settled says whether nobody can fill the gap any more. It asks from the look after the one that found the gap: by then whoever has drawn its number has
// a transaction's number too.
func (f *Follower) settled(ctx context.Context) (bool, error) {
	if !f.gap {
		return false, nil
	}
	var oldest, next int64
	if err := f.pool.QueryRow(ctx, snapshotSQL).Scan(&oldest, &next); err != nil {
		return false, fmt.Errorf("read audit: %w", err)
	}
	if f.until == 0 {
		f.until = next
		return false, nil
	}
	return oldest >= f.until || len(f.above) >= heldMost, nil
}
