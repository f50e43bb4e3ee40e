//go:build crash

package crash_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// Each test takes the database of a working fleet back in time, while load goes on: to a standby that lagged, or to a dump. What the new
// server has must be delivered, and have its effect once. What it does not have any more is read from the former server afterwards, and
// nothing but that may be missing, published without a commit, or sent twice.

// TestFailoverByURL promotes the standby that the clients' URL names as its second host.
func TestFailoverByURL(t *testing.T) {
	primary := testkit.PrivatePostgres(t)
	replication := testkit.Proxy(t, primary.URL)
	standby := primary.Standby(t, replication.Through(t, primary.URL))
	hosts := testkit.PostgresServer{URL: bothHosts(t, primary.URL, standby.URL)}
	h := newHarnessOn(t, newSeed(t), hosts.Database(t), testkit.Broker(t))
	h.failOver(t, primary, standby, replication, func() {})
}

// TestFailoverByProxy has one address that leads to the standby already before it is promoted: everything is then readable, and nothing
// can be written.
func TestFailoverByProxy(t *testing.T) {
	primary := testkit.PrivatePostgres(t)
	replication, front := testkit.Proxy(t, primary.URL), testkit.Proxy(t, primary.URL)
	standby := primary.Standby(t, replication.Through(t, primary.URL))
	address := testkit.PostgresServer{URL: front.Through(t, primary.URL)}
	h := newHarnessOn(t, newSeed(t), address.Database(t), testkit.Broker(t))
	h.failOver(t, primary, standby, replication, func() {
		front.Redirect(t, standby.URL)
		pauseFor(t, 5*time.Second)
	})
}

// TestRestoreUnderARunningFleet restores a dump, taken while everything was writing, into a fresh cluster, and lets the same processes
// go on with it.
func TestRestoreUnderARunningFleet(t *testing.T) {
	former, fresh := testkit.PrivatePostgres(t), testkit.PrivatePostgres(t)
	front := testkit.Proxy(t, former.URL)
	address := testkit.PostgresServer{URL: front.Through(t, former.URL)}
	h := newHarnessOn(t, newSeed(t), address.Database(t), testkit.Broker(t))
	h.load.patient = true
	h.load.begin(t.Context(), 2)
	h.flows(t)
	require.NoError(t, h.feed(t.Context()))
	h.flows(t)
	handled, release := h.unsettled(t)
	dump := former.Dump(t)
	release()
	h.flows(t) // and this is not in the dump
	front.Cut()
	fresh.Restore(t, dump)
	present := h.knowledgeOf(t, fresh)
	_, err := fresh.Connect(t).Exec(t.Context(), `ALTER USER surefoot PASSWORD '`+h.db.Pool.Config().ConnConfig.Password+`'`)
	require.NoError(t, err)
	begun := time.Now()
	front.Redirect(t, fresh.URL)
	h.flows(t)
	h.goesBack(t, former, present)
	t.Logf("after the restore, messages flow within %s; %d rows were handled but not settled when the dump was taken", time.Since(begun).Round(time.Millisecond), len(handled))
	h.finish(t)
	for _, id := range handled {
		require.True(t, h.moved.repeated[id], "message %s was sent again, and absorbed by the inbox", id)
	}
}

// failOver cuts the replication, lets traffic go on, kills the primary, and promotes.
func (h *harness) failOver(t *testing.T, primary, standby *testkit.PostgresServer, replication *testkit.FaultyNetwork, pointOn func()) {
	t.Helper()
	h.load.patient = true
	h.load.begin(t.Context(), 2)
	h.flows(t)
	require.NoError(t, h.feed(t.Context()))
	h.flows(t)
	h.replicated(t, standby.Connect(t))
	replication.Cut()
	h.flows(t) // and this never reaches the standby
	primary.Kill(t)
	begun := time.Now()
	pointOn()
	present := h.knowledgeOf(t, standby)
	standby.Promote(t)
	promoted := time.Now()
	h.flows(t)
	t.Logf("promoted %s after the kill, messages flow within %s of that", promoted.Sub(begun).Round(time.Millisecond), time.Since(promoted).Round(time.Millisecond))
	primary.StartReadOnly(t)
	h.goesBack(t, primary, present)
	require.NotEmpty(t, h.moved.ghosts, "the standby lacked something")
	h.finish(t)
}

// replicated waits until the standby has all that is written now.
func (h *harness) replicated(t *testing.T, standby *pgxpool.Pool) {
	t.Helper()
	var position string
	require.NoError(t, h.db.Pool.QueryRow(t.Context(), `SELECT pg_current_wal_lsn()::text`).Scan(&position))
	testkit.Eventually(t, time.Minute, "the standby to catch up", func() bool {
		var there bool
		require.NoError(t, standby.QueryRow(t.Context(), `SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn`, position).Scan(&there))
		return there
	})
}

// unsettled keeps rows from being settled that are published and handled, and returns their ids.
func (h *harness) unsettled(t *testing.T) (ids []string, release func()) {
	t.Helper()
	tx, err := h.db.Pool.Begin(t.Context())
	require.NoError(t, err)
	release = func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) } // ended already, or without effect
	t.Cleanup(release)
	testkit.Eventually(t, time.Minute, "rows to lock", func() bool {
		rows, err := tx.Query(t.Context(), `SELECT message_id FROM `+h.db.Schema+`.outbox WHERE key LIKE 'key-%' FOR UPDATE SKIP LOCKED`)
		require.NoError(t, err)
		ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return len(ids) > 0
	})
	testkit.Eventually(t, time.Minute, "the messages of locked rows to be handled", func() bool {
		var handled int
		require.NoError(t, h.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+h.db.Schema+`.crash_effects WHERE message_id = ANY ($1)`, ids).Scan(&handled))
		return handled == len(ids)
	})
	return ids, release
}

// knowledge is what a server has, by message id, and of orders by theirs.
type knowledge struct {
	committed, effects, rows, waiting map[string]bool
}

func (h *harness) knowledgeOf(t *testing.T, server *testkit.PostgresServer) knowledge {
	t.Helper()
	pool := server.Connect(t)
	k := knowledge{
		committed: h.idsOf(t, pool, "crash_sent", "crash_emitted"), effects: h.idsOf(t, pool, "crash_effects"),
		rows: h.idsOf(t, pool, "outbox", "outbox_parked"), waiting: map[string]bool{},
	}
	rows, err := pool.Query(t.Context(), `SELECT id FROM `+h.db.Schema+`.crash_orders WHERE status = 'WAITING'`)
	require.NoError(t, err)
	orders, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	for _, id := range orders {
		k.waiting[id] = true
	}
	return k
}

// inFlight is more than the load has in flight at a time.
const inFlight = 40

// move is a database that went back in time.
type move struct {
	knowledge // of the new server before it was used
	// ghosts were committed and are no more. taken were settled and had their effect, which is no more.
	ghosts, taken map[string]bool
	repeated      map[string]bool // published more than once
}

// goesBack notes for the account what the former server knew and the new one did not.
func (h *harness) goesBack(t *testing.T, former *testkit.PostgresServer, present knowledge) {
	t.Helper()
	past := h.knowledgeOf(t, former)
	m := &move{knowledge: present, ghosts: map[string]bool{}, taken: map[string]bool{}}
	for id := range past.committed {
		if !present.committed[id] {
			m.ghosts[id] = true
		}
	}
	for id := range past.effects {
		if !present.effects[id] && !present.rows[id] && present.committed[id] {
			m.taken[id] = true
		}
	}
	for table, ids := range map[string]map[string]bool{"crash_ghosts": m.ghosts, "crash_taken": m.taken} {
		_, err := h.db.Pool.Exec(t.Context(), `INSERT INTO `+h.db.Schema+`.`+table+` SELECT unnest($1::text[])`, slices.Collect(maps.Keys(ids)))
		require.NoError(t, err)
	}
	h.moved = m
}

// account checks what was published against what was forgotten.
func (m *move) account(t *testing.T, seen, repeated map[string]bool) {
	t.Helper()
	m.repeated = repeated
	published, again, other := 0, 0, 0
	for id := range m.ghosts {
		if seen[id] {
			published++
		}
	}
	for id := range repeated {
		switch {
		case m.rows[id]:
			again++
		case !m.ghosts[id]:
			other++
		}
	}
	t.Logf("gone with the former server: %d commits, of which %d had been published, and %d effects of settled messages; "+
		"rows waiting in the new one: %d, of which %d were sent again; published twice besides: %d",
		len(m.ghosts), published, len(m.taken), len(m.rows), again, other)
	// A shard that is given up takes the connection with it, and with that what other shards have in flight.
	require.LessOrEqual(t, other, inFlight, "messages published twice whose settling was not forgotten")
}

func bothHosts(t *testing.T, first, second string) string {
	t.Helper()
	_, at, found := strings.Cut(second, "@")
	require.True(t, found)
	other, _, found := strings.Cut(at, "/")
	require.True(t, found)
	before, after, found := strings.Cut(first, "/surefoot?")
	require.True(t, found)
	return before + "," + other + "/surefoot?" + after + "&target_session_attrs=read-write"
}
