package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

const (
	// passSQL reads the rows of lagging keys again. The condition on the hash is kept from becoming a join,
	// which could turn the plan around, by IS TRUE.
	passSQL pg.SQL = `
SELECT ` + rowColumns + ` FROM (
    SELECT x.*, x.ctid AS at, coalesce(sum(` + rowSize + `) OVER (ORDER BY x.shard, x.id ` + before + `), 0) AS before
    FROM @schema@.outbox x
    WHERE (x.shard, x.id) > ($1, $2) AND x.shard <= $1 AND (x.shard, x.id) <= ($1, $3)
      AND ((x.hash IN (SELECT unnest($4::bigint[]))) IS TRUE AND x.key <> '' OR $5 AND x.key = '')
    ORDER BY x.shard, x.id LIMIT $6) x
WHERE x.before < $7`

	// marksSQL finds the keys of late rows, when these are more than a page, and the first id of each.
	marksSQL pg.SQL = `
WITH now AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot),
committed AS MATERIALIZED (
    SELECT t.xid FROM now CROSS JOIN LATERAL pg_snapshot_xip($3::text::pg_snapshot) AS t(xid)
    WHERE pg_visible_in_snapshot(t.xid, now.snapshot)
), late AS (
    SELECT x.hash, x.id, x.keyed FROM committed c CROSS JOIN LATERAL (
        SELECT o.hash, o.id, o.key <> '' AS keyed FROM @schema@.outbox o
        WHERE (o.xid, o.shard, o.id) > (c.xid, $1, 0) AND (o.xid, o.shard, o.id) <= (c.xid, $1, $2)) x
    UNION ALL
    SELECT o.hash, o.id, o.key <> '' FROM @schema@.outbox o
    WHERE (o.xid, o.shard, o.id) >= (pg_snapshot_xmax($3::text::pg_snapshot), 0, 0)
      AND o.xid < (SELECT pg_snapshot_xmax(snapshot) FROM now) AND o.shard = $1 AND o.id <= $2
), marks AS (
    SELECT CASE WHEN keyed THEN hash ELSE 0 END AS hash, min(id) AS id, keyed FROM late
    GROUP BY 1, 3 LIMIT $4
)
SELECT m.hash, m.id, m.keyed, n.snapshot::text FROM now n LEFT JOIN marks m ON true`

	// sweepSQL looks at what is there below the cursor and was visible when the cursor passed.
	sweepSQL pg.SQL = `
SELECT x.id, x.hash, x.key <> '', pg_visible_in_snapshot(x.xid, $4::text::pg_snapshot) FROM @schema@.outbox x
WHERE (x.shard, x.id) > ($1, $2) AND x.shard <= $1 AND (x.shard, x.id) <= ($1, $3)
ORDER BY x.shard, x.id LIMIT $5`

	// sweepPage is how many rows one statement of the sweep looks at.
	sweepPage = 10_000
	// slowTimeout bounds a statement of the slow lane at first; it doubles each time it is hit.
	slowTimeout    = time.Minute
	maxSlowTimeout = 16 * time.Minute
)

// slowStore carries out the reads that may take long. They never share a connection with the main lane. It is
// stateless.
type slowStore struct {
	pool   *pgxpool.Pool
	schema string
}

func newSlowStore(o Options) *slowStore { return &slowStore{pool: o.Pool, schema: o.Schema} }

// query runs sql with a timeout of the server's own replaced by the context's: the walk over dead rows after a
// takeover can be longer than the pool's statement_timeout.
func (s *slowStore) query(ctx context.Context, timeout time.Duration, use func(pgx.Rows) error, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf(settings+"; set local statement_timeout = %d", timeout.Milliseconds())); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		return use(rows)
	})
}

// passAnswer is one statement of a pass of the second lane.
type passAnswer struct {
	rows    []*row
	reached bool
	err     error
}

func (s *slowStore) pass(ctx context.Context, timeout time.Duration, shard int16, p lagPass, hashes []int64, n, bytes int) passAnswer {
	var a passAnswer
	began := time.Now()
	a.err = s.query(ctx, timeout, func(rows pgx.Rows) (err error) {
		a.rows, err = collectRows(rows, began)
		return err
	}, passSQL.In(s.schema), shard, p.pos, p.to, hashes, p.loose, n, int64(bytes))
	size := 0
	for _, r := range a.rows {
		size += r.size()
	}
	a.reached = a.err == nil && len(a.rows) < n && (len(a.rows) == 0 || size < bytes)
	return a
}

type marksAnswer struct {
	marks      []mark
	snapshot   string
	generation int
	err        error
}

func (s *slowStore) marks(ctx context.Context, timeout time.Duration, a ask, limit int) marksAnswer {
	answer := marksAnswer{generation: a.generation}
	answer.err = s.query(ctx, timeout, func(rows pgx.Rows) error {
		defer rows.Close()
		for rows.Next() {
			var hash, id *int64
			var keyed *bool
			if err := rows.Scan(&hash, &id, &keyed, &answer.snapshot); err != nil {
				return err
			}
			if id != nil {
				answer.marks = append(answer.marks, mark{*hash, *id, *keyed})
			}
		}
		return rows.Err()
	}, marksSQL.In(s.schema), a.shard, a.cursor, a.snapshot, limit)
	return answer
}

// sweepAnswer is one page of a sweep.
type sweepAnswer struct {
	rows []found
	last int64 // all up to here were looked at
	more bool
	err  error
}

func (s *slowStore) sweep(ctx context.Context, timeout time.Duration, shard int16, from, to int64, snapshot string) sweepAnswer {
	a := sweepAnswer{last: to}
	a.err = s.query(ctx, timeout, func(rows pgx.Rows) error {
		defer rows.Close()
		for rows.Next() {
			var f found
			if err := rows.Scan(&f.id, &f.hash, &f.keyed, &f.visible); err != nil {
				return err
			}
			a.rows = append(a.rows, f)
		}
		return rows.Err()
	}, sweepSQL.In(s.schema), shard, from, to, snapshot, sweepPage)
	if a.more = len(a.rows) == sweepPage; a.more {
		a.last = a.rows[len(a.rows)-1].id
	}
	return a
}
