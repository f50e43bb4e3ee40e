package outbox_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

func TestSummary(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	s, err := outbox.Summarize(t.Context(), db.Pool, db.Schema)
	require.NoError(t, err)
	require.Equal(t, outbox.Summary{}, s)
	tx := begin(t, db)
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		_, err := newOutbox(t, db, outbox.Options{}).Enqueue(t.Context(), tx, event(key, key))
		require.NoError(t, err)
	}
	commit(t, tx)
	// The first row of every shard is looked at, not only that of the first shard.
	_, err = db.Pool.Exec(t.Context(), `UPDATE `+db.Schema+`.outbox SET created_at = now() - interval '1 hour'
		WHERE (shard, id) = (SELECT shard, min(id) FROM `+db.Schema+`.outbox GROUP BY shard ORDER BY shard DESC LIMIT 1)`)
	require.NoError(t, err)
	_, err = db.Pool.Exec(t.Context(), `INSERT INTO `+db.Schema+`.outbox_members (id, name, ttl, expires_at)
		VALUES (gen_random_uuid(), 'alive', '10 s', now() + interval '9 s'), (gen_random_uuid(), 'dead', '10 s', now() - interval '1 s')`)
	require.NoError(t, err)
	s, err = outbox.Summarize(t.Context(), db.Pool, db.Schema)
	require.NoError(t, err)
	require.InDelta(t, time.Hour.Seconds(), s.Oldest, 60)
	s.Oldest = 0
	require.Equal(t, outbox.Summary{Pending: 7, Relays: 1}, s)
}

func TestFindReadsBothTables(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	tx := begin(t, db)
	m := message.Message{ID: "1", Type: "a", Payload: []byte("x"), Headers: message.Headers{"n": int64(1)}, OccurredAt: time.Unix(5, 0), ContentType: "t"}
	_, err := newOutbox(t, db, outbox.Options{}).Enqueue(t.Context(), tx, m, m, event("2", ""))
	require.NoError(t, err)
	commit(t, tx)
	_, err = db.Pool.Exec(t.Context(), `WITH moved AS (DELETE FROM `+db.Schema+`.outbox WHERE id = (SELECT min(id) FROM `+db.Schema+`.outbox) RETURNING *)
		INSERT INTO `+db.Schema+`.outbox_parked SELECT moved.*, 'dead', 3, 'refused', 'no', now(), now(), NULL FROM moved`)
	require.NoError(t, err)
	found, err := outbox.Find(t.Context(), db.Pool, db.Schema, "1")
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.Equal(t, "pending", found[0].State)
	require.Equal(t, outbox.StateDead, found[1].State)
	for _, f := range found {
		require.True(t, f.Message.OccurredAt.Equal(m.OccurredAt))
		f.Message.OccurredAt = m.OccurredAt
		require.Equal(t, m, f.Message)
	}
	parked, err := outbox.ListParked(t.Context(), db.Pool, db.Schema, outbox.Filter{IDs: []string{"1", "2"}, Limit: 10})
	require.NoError(t, err)
	require.Len(t, parked, 1)
	require.Equal(t, []any{"1", 3, "refused", "no", 1}, []any{parked[0].ID, parked[0].Attempts, parked[0].Reason, parked[0].Error, parked[0].PayloadBytes})
}

func TestAskAndAwait(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	rows := []outbox.Parked{{Shard: 1, Row: 2, ID: "a"}, {Shard: 3, Row: 4, ID: "b"}}
	_, err := outbox.Ask(t.Context(), db.Pool, db.Schema, outbox.Request{Action: outbox.ActionDiscard, Who: "ann"}, rows)
	require.ErrorContains(t, err, "a reason is needed")
	operation, err := outbox.Ask(t.Context(), db.Pool, db.Schema, outbox.Request{Action: outbox.ActionRetry, Who: "ann"}, rows)
	require.NoError(t, err)
	got, err := outbox.Await(t.Context(), db.Pool, db.Schema, operation, 0)
	require.NoError(t, err)
	require.Equal(t, []outbox.Outcome{{ID: "a", Shard: 1, Row: 2, State: "pending"}, {ID: "b", Shard: 3, Row: 4, State: "pending"}}, got)

	type answer struct {
		outcomes []outbox.Outcome
		err      error
	}
	answers := make(chan answer, 1)
	go func() {
		outcomes, err := outbox.Await(t.Context(), db.Pool, db.Schema, operation, patience)
		answers <- answer{outcomes, err}
	}()
	for _, id := range []string{"a", "b"} {
		_, err = db.Pool.Exec(t.Context(), `UPDATE `+db.Schema+`.outbox_requests SET state = 'done', outcome = 'ok' WHERE message_id = $1`, id)
		require.NoError(t, err)
	}
	done := <-answers
	require.NoError(t, done.err)
	for _, o := range done.outcomes {
		require.Equal(t, "done", o.State)
	}
}

func TestQueriesNameTheMissingSchema(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		_, err := outbox.Summarize(t.Context(), tx, "no_such_schema")
		return err
	})
	require.ErrorContains(t, err, "surefoot migrate up")
}

func TestPendingRowsSayWhatTheyWaitFor(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	tx := begin(t, db)
	box := newOutbox(t, db, outbox.Options{})
	for _, m := range [][3]string{{"p1", "a", "k1"}, {"p2", "a", "k1"}, {"s1", "stopped", "k2"}, {"s2", "a", "k2"}, {"n", "a", ""}, {"o", "a", "k3"}} {
		_, err := box.Enqueue(t.Context(), tx, message.Message{ID: m[0], Type: m[1], Key: m[2], Payload: []byte("{}")})
		require.NoError(t, err)
	}
	commit(t, tx)
	list := func(f outbox.Filter) map[string][]string {
		t.Helper()
		f.Limit = 10
		rows, err := outbox.ListPending(t.Context(), db.Pool, db.Schema, f)
		require.NoError(t, err)
		got := map[string][]string{}
		for _, r := range rows {
			got[r.ID] = []string{r.State, r.Reason, r.Error}
		}
		return got
	}
	require.Len(t, list(outbox.Filter{}), 6)
	require.Empty(t, list(outbox.Filter{State: outbox.StateWaiting}))
	_, err := db.Pool.Exec(t.Context(), `WITH moved AS (DELETE FROM `+db.Schema+`.outbox WHERE message_id = 'p1' RETURNING *)
		INSERT INTO `+db.Schema+`.outbox_parked SELECT moved.*, 'dead', 3, 'refused', 'no', now(), now(), NULL FROM moved`)
	require.NoError(t, err)
	_, err = db.Pool.Exec(t.Context(), `INSERT INTO `+db.Schema+`.outbox_stopped (shard, exchange, routing_key, whole_exchange, is_default, since, error)
		SELECT shard, 'shop', 'stopped', false, true, now(), 'no queue is bound' FROM generate_series(0, 7) AS shard`)
	require.NoError(t, err)
	waiting := map[string][]string{
		"p2": {"waiting", outbox.ReasonBehindParked, "p1"}, "s1": {"waiting", outbox.ReasonRoute, "no queue is bound"},
		"s2": {"waiting", outbox.ReasonBehindRoute, "s1"},
	}
	require.Equal(t, waiting, list(outbox.Filter{State: outbox.StateWaiting}))
	waiting["n"], waiting["o"] = []string{"pending", outbox.ReasonTurn, ""}, []string{"pending", outbox.ReasonTurn, ""}
	require.Equal(t, waiting, list(outbox.Filter{State: outbox.StatePending}))
	require.Len(t, list(outbox.Filter{Key: "k2"}), 2)
	require.Len(t, list(outbox.Filter{Type: "stopped"}), 1)
	require.Len(t, list(outbox.Filter{IDs: []string{"n", "p2"}}), 2)
}
