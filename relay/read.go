package relay

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/pg"
)

// farBehind is how many transactions a snapshot may lie behind before reading starts from the first row
// instead of looking at all of them for late rows.
const farBehind = 100_000

var (
	// errStandby says that the database is a standby: its rows may be old, so it is never read.
	errStandby = errors.New("the database is in recovery (a standby, or not yet promoted); waiting for the primary")
	// errNewServer says that another server answered than before. The rows in memory are not its: after a failover or a restore
	// their ids may be those of others.
	errNewServer = errors.New("the database server was restarted or replaced; taking the shard anew")
)

// readSQL reads for all shards that asked, in one snapshot. The first row of the result is about the statement
// itself: the doorbell, the sequence's last value, the snapshot, whether this is a standby, when the server started.
//
// The forms of the row comparisons are what keeps the plan: only one index can serve each of them, also when
// the statistics claim that the table is empty, which for a queue they mostly do. "x.shard <= a.shard" ends a
// scan at the end of the shard. A snapshot's list is filtered before it is joined, for a bulk import that is
// still open would be scanned by every poll otherwise. Sizes are summed before a value is fetched: large ones are elsewhere.
const readSQL pg.SQL = `
WITH now AS MATERIALIZED (
    SELECT pg_current_snapshot() AS snapshot, (SELECT last_value FROM @schema@.outbox_id_seq) AS last
), given AS MATERIALIZED (
    SELECT a.shard, a.cursor, nullif(a.snapshot, '')::pg_snapshot AS snapshot, a.n, a.bytes
    FROM unnest($1::smallint[], $2::bigint[], $3::text[], $4::integer[], $5::bigint[]) AS a(shard, cursor, snapshot, n, bytes)
), asked AS MATERIALIZED (
    SELECT a.shard, a.n, a.bytes, CASE WHEN far.behind THEN 0 ELSE a.cursor END AS cursor,
           CASE WHEN far.behind THEN NULL ELSE a.snapshot END AS snapshot,
           pg_snapshot_xmax(a.snapshot) AS since, pg_snapshot_xmax(now.snapshot) AS until
    FROM given a CROSS JOIN now CROSS JOIN LATERAL (
        SELECT pg_snapshot_xmax(now.snapshot)::text::bigint - pg_snapshot_xmax(a.snapshot)::text::bigint > ` + farBehindText + ` AS behind) far
), committed AS MATERIALIZED (
    SELECT a.shard, a.cursor, a.n, a.bytes, t.xid
    FROM asked a CROSS JOIN now CROSS JOIN LATERAL pg_snapshot_xip(a.snapshot) AS t(xid)
    WHERE a.snapshot IS NOT NULL AND pg_visible_in_snapshot(t.xid, now.snapshot)
), late AS (
    SELECT c.bytes, x.* FROM committed c CROSS JOIN LATERAL (
        SELECT x.*, x.ctid AS at FROM @schema@.outbox x
        WHERE (x.xid, x.shard, x.id) > (c.xid, c.shard, 0) AND (x.xid, x.shard, x.id) <= (c.xid, c.shard, c.cursor)
        ORDER BY x.xid, x.shard, x.id LIMIT c.n + 1) x
    UNION ALL
    SELECT a.bytes, x.* FROM asked a CROSS JOIN LATERAL (
        SELECT x.*, x.ctid AS at FROM @schema@.outbox x
        WHERE (x.xid, x.shard, x.id) >= (a.since, 0, 0) AND x.xid < a.until AND x.shard = a.shard AND x.id <= a.cursor
        ORDER BY x.xid, x.shard, x.id LIMIT a.n + 1) x
    WHERE a.snapshot IS NOT NULL
)
SELECT 0::smallint AS kind, (SELECT last_value FROM @schema@.outbox_doorbell)::smallint, now.last, pg_is_in_recovery()::integer::bigint, '(0,0)'::tid, pg_postmaster_start_time(), clock_timestamp(),
       now.snapshot::text, '', '', '', '', '', '', '', '', '', '', '', NULL::json, ''::bytea FROM now
UNION ALL
SELECT 1::smallint, ` + rowColumns + ` FROM (
    SELECT x.*, coalesce(sum(` + rowSize + `) OVER (PARTITION BY x.shard ORDER BY x.id ` + before + `), 0) AS before
    FROM late x) x
WHERE x.before < x.bytes
UNION ALL
SELECT 2::smallint, ` + rowColumns + ` FROM asked a CROSS JOIN LATERAL (
    SELECT x.*, x.ctid AS at, coalesce(sum(` + rowSize + `) OVER (ORDER BY x.shard, x.id ` + before + `), 0) AS before
    FROM @schema@.outbox x
    WHERE (x.shard, x.id) > (a.shard, a.cursor) AND x.shard <= a.shard
    ORDER BY x.shard, x.id LIMIT a.n) x
WHERE x.before < a.bytes`

const farBehindText = "100000"

// The kinds of rows in readSQL's result.
const (
	kindHead = iota
	kindLate
	kindTail
)

// ask is what a shard wants to read.
type ask struct {
	shard      int16
	generation int
	cursor     int64
	snapshot   string
	n          int       // rows at most, of late ones and of the tail each
	bytes      int       // of late rows and of the tail each; one row always passes
	server     time.Time // start time of the server that cursor and snapshot come from; zero: any
	urgent     bool      // there is more to read, as far as is known
	reply      chan<- answer
}

// answer is the result of an ask.
type answer struct {
	generation int
	page       page
	server     time.Time
	err        error
}

// head is what the first row of a result says.
type head struct {
	last     int64
	snapshot string
	server   time.Time
	armed    bool // the doorbell is
}

// read carries out the asks in one statement.
func read(ctx context.Context, pool *pgxpool.Pool, sql string, asks []ask) (head, map[int16]*page, error) {
	shards, cursors, snapshots := make([]int16, len(asks)), make([]int64, len(asks)), make([]string, len(asks))
	counts, sizes := make([]int32, len(asks)), make([]int64, len(asks))
	pages := make(map[int16]*page, len(asks))
	for i, a := range asks {
		shards[i], cursors[i], snapshots[i], counts[i], sizes[i] = a.shard, a.cursor, a.snapshot, int32(a.n), int64(a.bytes)
		pages[a.shard] = &page{}
	}
	var h head
	began := time.Now()
	err := planned(ctx, pool, sql, func(rows pgx.Rows) (err error) {
		h, err = scanPages(rows, pages, began)
		return err
	}, shards, cursors, snapshots, counts, sizes)
	if err != nil {
		return head{}, nil, fmt.Errorf("read outbox: %w", err)
	}
	for _, a := range asks {
		finishPage(pages[a.shard], a, h)
	}
	return h, pages, fault.Point("relay.after-read")
}

func scanPages(rows pgx.Rows, pages map[int16]*page, began time.Time) (head, error) {
	defer rows.Close()
	var h head
	s := scanner{from: 1}
	for rows.Next() {
		kind, r, err := s.scan(rows, began)
		if err != nil {
			return h, err
		}
		if kind == kindHead {
			if h = (head{last: r.id, snapshot: r.msg.text(textID), server: time.UnixMicro(r.created), armed: r.shard == bellArmed}); r.hash != 0 {
				return h, errStandby
			}
			continue
		}
		r.late = kind == kindLate
		pages[r.shard].rows = append(pages[r.shard].rows, r)
	}
	return h, rows.Err()
}

// finishPage derives what the counts of rows say.
func finishPage(p *page, a ask, h head) {
	late, lateBytes, tail, tailBytes := 0, 0, 0, 0
	for _, r := range p.rows {
		if r.late {
			late++
			lateBytes += r.size()
			continue
		}
		tail++
		tailBytes += r.size()
	}
	p.snapshot, p.last = h.snapshot, h.last
	p.overflow = late > a.n || late > 0 && lateBytes >= a.bytes
	p.full = tail >= a.n || tail > 0 && tailBytes >= a.bytes
	p.fresh = a.snapshot != "" && snapshotEnd(h.snapshot)-snapshotEnd(a.snapshot) > farBehind
}

// snapshotEnd returns xmax of a snapshot's text form xmin:xmax:list.
func snapshotEnd(snapshot string) int64 {
	parts := strings.SplitN(snapshot, ":", 3)
	if len(parts) < 2 {
		return 0
	}
	end, _ := strconv.ParseInt(parts[1], 10, 64)
	return end
}
