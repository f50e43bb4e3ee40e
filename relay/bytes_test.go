package relay

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

const (
	// padSQL makes the rows of a shard large: half by their headers, half by their payload.
	padSQL pg.SQL = `
UPDATE @schema@.outbox SET headers = json_build_object('a', repeat('x', 50000)), payload = convert_to(repeat('x', 50000), 'UTF8') WHERE shard = $1`
	parkAllSQL pg.SQL = `
WITH moved AS (DELETE FROM @schema@.outbox RETURNING *)
INSERT INTO @schema@.outbox_parked SELECT moved.*, 'retry', 1, 'refused', '', now(), now(), now() FROM moved`
)

func sizes(rows []*row) (bytes int) {
	for _, r := range rows {
		bytes += r.size()
	}
	return bytes
}

// Whatever is read, in whatever lane: never more than was asked for, headers included.
func TestEveryReadIsCutByBytes(t *testing.T) {
	t.Parallel()
	const shard, each, limit = 3, 100_000, 450_000
	db := testkit.Database(t)
	var before string
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT pg_current_snapshot()::text`).Scan(&before))
	fill(t, db, 160)
	_, err := db.Pool.Exec(t.Context(), padSQL.In(db.Schema), shard)
	require.NoError(t, err)
	requireCut := func(rows []*row) {
		t.Helper()
		require.Len(t, rows, 5, "the last one may begin below the limit")
		require.Greater(t, sizes(rows), 5*each)
		require.Less(t, sizes(rows), 5*(each+2*rowOverhead))
	}

	for name, cursor := range map[string]int64{"late rows": 1000, "tail": 0} {
		a := ask{shard: shard, cursor: cursor, snapshot: before, n: 100, bytes: limit}
		_, pages, err := read(t.Context(), db.Pool, readSQL.In(db.Schema), []ask{a})
		require.NoError(t, err)
		p := pages[shard]
		requireCut(p.rows)
		require.Equal(t, name == "late rows", p.overflow, "%s: not all late rows are there", name)
		require.Equal(t, name == "tail", p.full, "%s: the tail goes on", name)
	}

	slow := newSlowStore(Options{Pool: db.Pool, Schema: db.Schema})
	pass := slow.pass(t.Context(), time.Minute, shard, lagPass{to: 1000, loose: true}, hashes(1000), 100, limit)
	require.NoError(t, pass.err)
	requireCut(pass.rows)
	require.False(t, pass.reached)

	_, err = db.Pool.Exec(t.Context(), parkAllSQL.In(db.Schema))
	require.NoError(t, err)
	var ids []int64
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT array_agg(id ORDER BY id) FROM `+db.Schema+`.outbox_parked WHERE shard = $1`, shard).Scan(&ids))
	require.Len(t, ids, 20)
	parking := newParkStore(Options{Pool: db.Pool, Schema: db.Schema})
	f, err := parking.fetch(t.Context(), shard, ids, limit)
	require.NoError(t, err)
	require.Len(t, f.rows, 4)
	require.Equal(t, ids[4:], f.left)
	f, err = parking.fetch(t.Context(), shard, append(ids, 10_000), 1)
	require.NoError(t, err)
	require.Len(t, f.rows, 1, "one always passes")
	require.Len(t, f.left, 19, "what is not there is not left")
}

func hashes(n int64) (all []int64) {
	for hash := range n {
		all = append(all, hash)
	}
	return all
}

// What counts against no limit any more must not hold memory.
func TestOnlyWhatMayBePublishedHoldsItsPayload(t *testing.T) {
	t.Parallel()
	b := newLaneBench()
	take := func(id int64) *row {
		r := b.row(id, "")
		r.msg.payload, r.headers = []byte(strings.Repeat("x", 100)), []byte("{}")
		b.applyPage(page{snapshot: "1", last: id, rows: []*row{r}})
		return r
	}
	settling := take(1)
	require.Same(t, settling, b.fly())
	b.confirmed(settling)
	parking := take(2)
	require.Same(t, parking, b.next(b.now))
	b.bad(parking, reasonRefused, errNoQueue)
	for _, r := range []*row{settling, parking} {
		require.Empty(t, r.msg.payload)
		require.Empty(t, r.headers)
	}
	require.Zero(t, b.waitingBytes+b.flyingBytes)

	// Rows whose confirms are late may fill the window once more, and no further.
	b.windowBytes = 2 * (rowOverhead + 102)
	for id := int64(3); id <= 4; id++ {
		take(id)
		b.fly()
	}
	b.now = b.now.Add(time.Minute)
	b.expire(b.now)
	require.Zero(t, b.flyingBytes)
	r := b.row(5, "")
	r.msg = contentOf(r.msg.text(textID), r.msg.text(textKey), "another route")
	b.applyPage(page{snapshot: "1", last: 5, rows: []*row{r}})
	require.Nil(t, b.next(b.now))
}
