package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

const fillSQL pg.SQL = `
INSERT INTO @schema@.outbox (occurred_at, hash, shard, message_id, type, key, exchange, routing_key, content_type, source, correlation_id,
    causation_id, request_id, traceparent, tracestate, payload)
SELECT now(), g % 1000, g % 8, 'm' || g, 't', 'k' || g % 1000, '', '', '', '', '', '', '', '', '', '\x00' FROM generate_series(1, $1::integer) g`

func fill(t *testing.T, db testkit.DB, rows int) {
	t.Helper()
	_, err := db.Pool.Exec(t.Context(), fillSQL.In(db.Schema), rows)
	require.NoError(t, err)
}

func (l *leaseStore) takeAll(t *testing.T) {
	t.Helper()
	_, err := l.take(t.Context(), 8)
	require.NoError(t, err)
}

func TestSettlingTwiceNeverDeletesTheNeighbour(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	fill(t, db, 64)
	(&leaseStore{pool: db.Pool, schema: db.Schema, ttl: time.Minute}).takeAll(t)
	s := newSettler(Options{Pool: db.Pool, Schema: db.Schema})
	batch := []settlement{{shard: 3, epoch: 1, rows: []*row{{shard: 3, id: 3}, {shard: 3, id: 59}}}}
	for range 2 {
		held, err := s.delete(t.Context(), batch)
		require.NoError(t, err)
		require.True(t, held[3])
		require.Equal(t, 62, rowsLeft(t, db))
	}
	batch[0].epoch = 7
	batch[0].rows = []*row{{shard: 3, id: 11}}
	held, err := s.delete(t.Context(), batch)
	require.NoError(t, err)
	require.False(t, held[3], "another epoch settles nothing")
	require.Equal(t, 62, rowsLeft(t, db))
}

// TestSettlingFindsMovedRows has rows that are not where they were read, and other rows in their places.
func TestSettlingFindsMovedRows(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	fill(t, db, 64)
	(&leaseStore{pool: db.Pool, schema: db.Schema, ttl: time.Minute}).takeAll(t)
	table := db.Schema + ".outbox"
	_, err := db.Pool.Exec(t.Context(), `DELETE FROM `+table+` WHERE id = 3`) // so that the rewrite moves what follows
	require.NoError(t, err)
	rows, err := db.Pool.Query(t.Context(), `SELECT `+rowColumns+` FROM (SELECT *, ctid AS at FROM `+table+`) x WHERE id IN (11, 19, 27) ORDER BY id`)
	require.NoError(t, err)
	read, err := collectRows(rows, time.Now())
	require.NoError(t, err)
	require.True(t, read[0].at().Valid)
	_, err = db.Pool.Exec(t.Context(), `VACUUM FULL `+table)
	require.NoError(t, err)
	s := newSettler(Options{Pool: db.Pool, Schema: db.Schema})
	_, err = s.delete(t.Context(), []settlement{{shard: 3, epoch: 1, rows: read[:2]}})
	require.NoError(t, err)
	require.Equal(t, 61, rowsLeft(t, db))
	_, err = db.Pool.Exec(t.Context(), `UPDATE `+table+` SET headers = '{}'`)
	require.NoError(t, err)
	_, err = s.delete(t.Context(), []settlement{{shard: 3, epoch: 1, rows: read}})
	require.NoError(t, err)
	require.Equal(t, 60, rowsLeft(t, db))
	var left int
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+table+` WHERE id IN (3, 11, 19, 27)`).Scan(&left))
	require.Zero(t, left)
}

func rowsLeft(t *testing.T, db testkit.DB) (n int) {
	t.Helper()
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+db.Schema+`.outbox`).Scan(&n))
	return n
}

// buffers returns the pages that a statement touches, planned anew as a generic plan.
func buffers(t *testing.T, tx pgx.Tx, types, sql, args string) int {
	t.Helper()
	ctx := t.Context()
	for _, statement := range []string{"DEALLOCATE ALL", settings, "PREPARE probe(" + types + ") AS " + sql} {
		_, err := tx.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err, statement)
	}
	return touched(t, tx, "EXECUTE probe("+args+")")
}

func touched(t *testing.T, tx pgx.Tx, statement string) int {
	t.Helper()
	var out string
	require.NoError(t, tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+statement, pgx.QueryExecModeSimpleProtocol).Scan(&out))
	var plans []struct{ Plan node }
	require.NoError(t, json.Unmarshal([]byte(out), &plans))
	return plans[0].Plan.most()
}

// node is a part of a plan. A DELETE in a WITH runs after the rest and is not in the sum of the top node.
type node struct {
	Hit   int    `json:"Shared Hit Blocks"`
	Read  int    `json:"Shared Read Blocks"`
	Plans []node `json:"Plans"`
}

func (n node) most() int {
	most := n.Hit + n.Read
	for _, part := range n.Plans {
		most = max(most, part.most())
	}
	return most
}

// TestPlansHoldWhenStatisticsSayEmpty is about the main risk of a queue: it is mostly empty when autovacuum looks,
// and then every index looks equally cheap.
func TestPlansHoldWhenStatisticsSayEmpty(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	_, err := db.Pool.Exec(t.Context(), `ALTER TABLE `+db.Schema+`.outbox SET (autovacuum_enabled = off)`)
	require.NoError(t, err)
	var before, after string
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT pg_current_snapshot()::text`).Scan(&before))
	fill(t, db, 300_000)
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT pg_current_snapshot()::text`).Scan(&after))
	(&leaseStore{pool: db.Pool, schema: db.Schema, ttl: time.Minute}).takeAll(t)
	eight := func(v string) string { return "'{" + strings.TrimSuffix(strings.Repeat(v+",", 8), ",") + "}'" }
	const shards = "'{0,1,2,3,4,5,6,7}'"
	readTypes := "smallint[], bigint[], text[], integer[], bigint[]"
	ids := make([]string, 500)
	of := make([]string, 500)
	for i := range ids {
		ids[i], of[i] = strconv.Itoa(3+8*i*20), "3"
	}
	const settleTypes = "smallint[], bigint[], smallint[], bigint[], tid[]"
	var places string
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT array_agg(ctid ORDER BY id)::text FROM `+db.Schema+`.outbox WHERE id = ANY ($1::text::bigint[])`,
		"{"+strings.Join(ids, ",")+"}").Scan(&places))
	settle := fmt.Sprintf("'{3}', '{1}', '{%s}', '{%s}', '%s'", strings.Join(of, ","), strings.Join(ids, ","), places)
	settleMoved := fmt.Sprintf("'{3}', '{1}', '{%s}', '{%s}', '{}'", strings.Join(of, ","), strings.Join(ids, ","))
	hashes := "'{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}'"
	for _, tuples := range []string{"0", "-1", "300000"} {
		tx, err := db.Pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		_, err = tx.Exec(t.Context(), fmt.Sprintf(`UPDATE pg_class SET reltuples = %s, relpages = CASE WHEN %s > 0 THEN 5000 ELSE 0 END
			WHERE relnamespace = '%s'::regnamespace AND relname LIKE 'outbox%%'`, tuples, tuples, db.Schema))
		require.NoError(t, err)
		for name, c := range map[string]struct {
			types, sql, args string
			most             int
		}{
			"tail, nothing there": {readTypes, readSQL.In(db.Schema), fmt.Sprintf("%s, %s, %s, %s, %s", shards, eight("400000"), eight(`"`+after+`"`), eight("500"), eight("1000000")), 200},
			"tail, full page":     {readTypes, readSQL.In(db.Schema), fmt.Sprintf("%s, %s, %s, %s, %s", shards, eight("150000"), eight(`"`+after+`"`), eight("100"), eight("1000000")), 2000},
			"late rows":           {readTypes, readSQL.In(db.Schema), fmt.Sprintf("%s, %s, %s, %s, %s", shards, eight("400000"), eight(`"`+before+`"`), eight("100"), eight("1000000")), 12000},
			"settle 500":          {settleTypes, settleSQL.In(db.Schema), settle, 500 * 8},
			"settle 500 moved":    {settleTypes, settleSQL.In(db.Schema), settleMoved, 500 * 8},
			"pass":                {"smallint, bigint, bigint, bigint[], boolean, integer, bigint", passSQL.In(db.Schema), "'3', '100000', '100400', " + hashes + ", 'true', '100', '1000000'", 200},
			"sweep":               {"smallint, bigint, bigint, text, integer", sweepSQL.In(db.Schema), "'3', '100000', '100800', '" + after + "', '1000'", 300},
		} {
			got := buffers(t, tx, c.types, c.sql, c.args)
			require.LessOrEqual(t, got, c.most, "%s with reltuples = %s", name, tuples)
			t.Logf("%s with reltuples = %s: %d pages", name, tuples, got)
		}
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

// Where the system identifier is kept from the relay, the fences still tell databases and schemas apart.
func TestFencesOfAClusterThatHidesItsIdentity(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t)
	db := server.Database(t)
	leases := &leaseStore{pool: db.Pool, schema: "s"}
	known, err := leases.fences(t.Context())
	require.NoError(t, err)
	require.Regexp(t, `^surefoot\.fence\.\d+\.surefoot\.s\.$`, known)

	for _, sql := range []string{"CREATE ROLE guest LOGIN PASSWORD 'x'", "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC"} {
		_, err := db.Pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	u.User = url.UserPassword("guest", "x")
	leases.pool, err = pg.Open(t.Context(), pg.Options{URL: u.String(), Name: "guest", MaxConns: 1})
	require.NoError(t, err)
	defer leases.pool.Close()
	known, err = leases.fences(t.Context())
	require.NoError(t, err)
	require.Equal(t, "surefoot.fence.surefoot.s.", known)
}

// The janitor's turn comes too late for the tests of a whole relay.
func TestTheJanitorNeedsNoMoreRights(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	guest := testkit.Name("guest")
	for _, sql := range []string{"CREATE ROLE " + guest, "GRANT USAGE ON SCHEMA " + db.Schema + " TO " + guest} {
		_, err := db.Pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	defer func() {
		_, err := db.Pool.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+guest+"; DROP ROLE "+guest)
		require.NoError(t, err)
	}()
	limited, err := pg.Open(t.Context(), pg.Options{URL: db.Direct + "&role=" + guest, Name: "guest", MaxConns: 2})
	require.NoError(t, err)
	defer limited.Close()
	var lacking *RightsError
	require.ErrorAs(t, CheckRights(t.Context(), limited, db.Schema), &lacking)
	for _, grant := range lacking.Grants {
		_, err := db.Pool.Exec(t.Context(), grant)
		require.NoError(t, err)
	}
	require.NoError(t, CheckRights(t.Context(), limited, db.Schema))
	j := &janitor{pool: limited, schema: db.Schema, metrics: newMetrics()}
	require.NoError(t, j.figures(t.Context()))
	require.NoError(t, j.clean(t.Context()))
}

// What the plans above are tested for is what runs: no statement of the hot path is planned for its parameters.
func TestHotStatementsKeepTheirGenericPlan(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	pool, err := pg.Open(t.Context(), pg.Options{URL: db.Direct, MaxConns: 1})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	fill(t, db, 100)
	settler := &settler{pool: pool, sql: settleSQL.In(db.Schema)}
	for range 10 {
		_, _, err := read(t.Context(), pool, readSQL.In(db.Schema), []ask{{shard: 3, n: 10, bytes: 1 << 20}})
		require.NoError(t, err)
		_, err = settler.delete(t.Context(), []settlement{{shard: 3, epoch: 1, rows: []*row{{shard: 3, id: 3}}}})
		require.NoError(t, err)
		_, err = (&slowStore{pool: pool, schema: db.Schema}).check(t.Context(), 3, []int64{3})
		require.NoError(t, err)
	}
	var statements, custom int
	require.NoError(t, pool.QueryRow(t.Context(),
		`SELECT count(*), sum(custom_plans) FROM pg_prepared_statements WHERE statement ~ 'outbox' AND statement !~ 'pg_prepared'`).Scan(&statements, &custom))
	require.Equal(t, 3, statements)
	require.Zero(t, custom)
	var mode string
	require.NoError(t, pool.QueryRow(t.Context(), `SHOW plan_cache_mode`).Scan(&mode))
	require.Equal(t, "auto", mode, "nothing is left in the session")
}

// TestThePlanOfAnEmptyTableServesAFullOne has a plan that was made when to read the whole table would have been the cheapest.
func TestThePlanOfAnEmptyTableServesAFullOne(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	table := db.Schema + ".outbox"
	_, err := db.Pool.Exec(t.Context(), `ALTER TABLE `+table+` SET (autovacuum_enabled = off)`)
	require.NoError(t, err)
	fill(t, db, 8)
	_, err = db.Pool.Exec(t.Context(), `VACUUM ANALYZE `+table)
	require.NoError(t, err)
	(&leaseStore{pool: db.Pool, schema: db.Schema, ttl: time.Minute}).takeAll(t)
	tx, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), settings)
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "PREPARE early(smallint[], bigint[], smallint[], bigint[], tid[]) AS "+settleSQL.In(db.Schema), pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	explain := func() int {
		return touched(t, tx, "EXECUTE early('{3}', '{1}', '{3}', '{3}', '{\"(0,3)\"}')")
	}
	require.LessOrEqual(t, explain(), 20)
	_, err = tx.Exec(t.Context(), fillSQL.In(db.Schema), 100_000)
	require.NoError(t, err)
	require.LessOrEqual(t, explain(), 20)
}
