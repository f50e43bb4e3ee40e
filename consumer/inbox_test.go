package consumer

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

func TestKeysAreTheSameInSQL(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.OneOf(
			rapid.StringMatching(`[0-9a-fA-F]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\n?`),
			rapid.StringMatching(`[^\x00]{1,40}`), rapid.Just(message.NewID()),
		).Draw(t, "id")
		var key string
		require.NoError(t, db.Pool.QueryRow(context.Background(), `SELECT `+db.Schema+`.inbox_key($1)::text`, id).Scan(&key))
		require.Equal(t, key, pg.InboxKey(id).String(), "%q", id)
	})
}

func TestTheInboxForgetsByEachConsumersRetention(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	o := Options{Pool: db.Pool, Schema: db.Schema}
	for _, c := range []struct {
		name      string
		retention time.Duration
	}{{"short", time.Hour}, {"long", 7 * 24 * time.Hour}} {
		b := newInbox(db.Pool, db.Schema)
		require.NoError(t, b.register(t.Context(), Options{Name: c.name, Queue: c.name, InboxRetention: c.retention}))
		_, err := db.Pool.Exec(t.Context(), `INSERT INTO `+db.Schema+`.inbox (consumer, message, handled_at)
			SELECT $1, gen_random_uuid(), now() - i * interval '1 minute' FROM generate_series(1, 300) i`, b.id)
		require.NoError(t, err)
		again := newInbox(db.Pool, db.Schema)
		require.NoError(t, again.register(t.Context(), Options{Name: c.name, Queue: c.name, InboxRetention: c.retention}))
		require.Equal(t, b.id, again.id, "a name keeps its number")
	}
	removed, err := expireInbox(t.Context(), o, 100)
	require.NoError(t, err)
	require.InDelta(t, 240, removed, 1)
	var left int
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+db.Schema+`.inbox`).Scan(&left))
	require.InDelta(t, 360, left, 1)
}

func TestATransactionLeavesAllOrNothing(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	b := newInbox(db.Pool, db.Schema)
	require.NoError(t, b.register(t.Context(), Options{Name: "c", Queue: "q", InboxRetention: time.Hour}))
	key := pg.InboxKey("m1")
	ran := 0
	handle := func(tx pgx.Tx) error { ran++; return nil }
	require.Error(t, b.inTx(t.Context(), &key, func(pgx.Tx) error { return context.Canceled }))
	require.NoError(t, b.inTx(t.Context(), &key, handle))
	for range 20 { // no connection is lost or left in a transaction
		require.ErrorIs(t, b.inTx(t.Context(), &key, handle), errDuplicate)
	}
	require.Equal(t, 1, ran)
	require.Equal(t, int32(1), db.Pool.Stat().TotalConns())

	other := pg.InboxKey("m2")
	require.ErrorContains(t, b.inTx(t.Context(), &other, func(tx pgx.Tx) error {
		_, _ = tx.Exec(t.Context(), `SELECT 1/0`)
		return misuse(tx)
	}), "one of its statements had failed")
	require.ErrorContains(t, b.inTx(t.Context(), &other, func(tx pgx.Tx) error { return tx.Rollback(t.Context()) }), "ended the transaction")
	require.Equal(t, int32(1), db.Pool.Stat().TotalConns())
	known, err := b.knows(t.Context(), other)
	require.NoError(t, err)
	require.False(t, known)
}

func TestMarksCountRunsThatNeverEnded(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	b := newInbox(db.Pool, db.Schema)
	require.NoError(t, b.register(t.Context(), Options{Name: "c", Queue: "q", InboxRetention: time.Hour}))
	key := pg.InboxKey("m1")
	mark := func(lap string) int {
		crashes, err := b.mark(t.Context(), key, lap)
		require.NoError(t, err)
		return crashes
	}
	require.Equal(t, 0, mark("0/"))
	require.Equal(t, 1, mark("0/"))
	require.NoError(t, b.unmark(t.Context(), key))
	require.Equal(t, 1, mark("0/"), "a run that ended is taken back")
	require.Equal(t, 0, mark("0/redriven"), "a redrive begins anew")
	require.NoError(t, b.clear(t.Context(), db.Pool, key))
	require.Equal(t, 0, mark("0/redriven"))
	require.NoError(t, b.remember(t.Context(), key))
	_, err := b.mark(t.Context(), key, "0/")
	require.ErrorIs(t, err, errDuplicate)
}

// A pool whose hooks drop prepared statements costs the plan of an insert, and no message.
func TestStatementsThatDoNotStayPreparedCostNothing(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	cfg, err := pgxpool.ParseConfig(db.Direct)
	require.NoError(t, err)
	cfg.MaxConns = 1
	cfg.AfterRelease = func(conn *pgx.Conn) bool {
		_, err := conn.Exec(context.Background(), "DISCARD ALL")
		return err == nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	b := newInbox(pool, db.Schema)
	require.NoError(t, b.register(t.Context(), Options{Name: "c", Queue: "q", InboxRetention: time.Hour}))
	for _, id := range []string{"a", "b", "c"} {
		key := pg.InboxKey(id)
		require.NoError(t, b.inTx(t.Context(), &key, func(pgx.Tx) error { return nil }), id)
		require.ErrorIs(t, b.inTx(t.Context(), &key, func(pgx.Tx) error { return nil }), errDuplicate, id)
	}
	require.True(t, b.dropped.Load(), "they were prepared")
}
