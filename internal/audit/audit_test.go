package audit_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type entry struct {
	Operation, Who, Action, Target, Reason, MessageID, Outcome string
	Detail                                                     map[string]any
}

func entries(t *testing.T, db testkit.DB) []entry {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), `SELECT operation::text, who, action, target, reason, message_id, outcome, detail FROM `+db.Schema+`.audit ORDER BY id`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[entry])
	require.NoError(t, err)
	return all
}

func TestWriteKeepsEverythingInOrder(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	op := audit.NewOperation("ann@box", "dlq redrive", "orders.saga.dlq", "cause gone")
	require.NoError(t, audit.Write(t.Context(), db.Pool, db.Schema, op))
	require.Empty(t, entries(t, db))
	require.NoError(t, audit.Write(t.Context(), db.Pool, db.Schema, op,
		audit.Entry{Outcome: "3 redriven", Detail: map[string]any{"n": 3.0}}, audit.Entry{MessageID: "b", Outcome: "redriven"}, audit.Entry{MessageID: "a", Outcome: "kept"}))
	id := op.ID.String()
	require.Equal(t, []entry{
		{id, "ann@box", "dlq redrive", "orders.saga.dlq", "cause gone", "", "3 redriven", map[string]any{"n": 3.0}},
		{id, "ann@box", "dlq redrive", "orders.saga.dlq", "cause gone", "b", "redriven", nil},
		{id, "ann@box", "dlq redrive", "orders.saga.dlq", "cause gone", "a", "kept", nil},
	}, entries(t, db))
	require.NotEqual(t, op.ID, audit.NewOperation("a", "b", "", "").ID)
}

// What stands in ids and errors came from messages: it must not be able to keep the audit from being written.
func TestHostileTextIsWrittenInBounds(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	hostile := "\x00\xff" + strings.Repeat("ü", 2000)
	op := audit.NewOperation("w"+hostile, "a"+hostile, hostile, hostile)
	require.NoError(t, audit.Write(t.Context(), db.Pool, db.Schema, op,
		audit.Entry{MessageID: hostile, Outcome: hostile, Detail: map[string]any{"k\x00": hostile, "literal": `\u0000`, "slash": `a\\u0000b`}}))
	got := entries(t, db)[0]
	for _, text := range []string{got.Who, got.Action, got.Target, got.MessageID} {
		require.LessOrEqual(t, len(text), 255)
		require.Contains(t, text, "ü")
	}
	require.LessOrEqual(t, len(got.Reason), 1024)
	require.LessOrEqual(t, len(got.Outcome), 1024)
	op = audit.NewOperation("ann\x1b[31m", "b", "c\u202ed", "two\nlines")
	require.Equal(t, []string{`ann\x1b[31m`, `c\u202ed`, `two\nlines`}, []string{op.Who, op.Target, op.Reason}, "nothing that a terminal obeys")
	require.Equal(t, `\u0000`, got.Detail["literal"], "only a NUL goes, not the text that looks like one")
	require.Equal(t, `a\\u0000b`, got.Detail["slash"])
}

func TestEntriesStandAndFallWithTheTransaction(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	tx, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, audit.Write(t.Context(), tx, db.Schema, audit.NewOperation("a", "b", "c", "d"), audit.Entry{Outcome: "x"}))
	require.NoError(t, tx.Rollback(t.Context()))
	require.Empty(t, entries(t, db))
}

func TestEntriesCannotChange(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	require.NoError(t, audit.Write(t.Context(), db.Pool, db.Schema, audit.NewOperation("a", "b", "c", "d"), audit.Entry{Outcome: "x"}))
	for _, sql := range []string{`UPDATE @.audit SET who = 'mallory'`, `TRUNCATE @.audit`} {
		_, err := db.Pool.Exec(t.Context(), strings.ReplaceAll(sql, "@", db.Schema))
		var server *pgconn.PgError
		require.ErrorAs(t, err, &server, sql)
		require.Equal(t, "42501", server.Code, sql)
	}
	require.Len(t, entries(t, db), 1)
}

func TestAnonymousActsAreRefused(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	require.Error(t, audit.Write(t.Context(), db.Pool, db.Schema, audit.NewOperation("", "b", "c", "d"), audit.Entry{}))
	require.Error(t, audit.Write(t.Context(), db.Pool, db.Schema, audit.NewOperation("a", "", "c", "d"), audit.Entry{}))
}

func TestExpireIsBoundedAndKeepsWhatIsYoung(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	_, err := db.Pool.Exec(t.Context(), `INSERT INTO `+db.Schema+`.audit (operation, at, who, action, target, reason, message_id, outcome)
		SELECT gen_random_uuid(), now() - make_interval(days => d), 'a', 'b', '', '', '', d::text FROM generate_series(395, 405) AS d`)
	require.NoError(t, err)
	for _, want := range []int64{3, 3, 0} {
		n, err := audit.Expire(t.Context(), db.Pool, db.Schema, 3)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	require.Len(t, entries(t, db), 5)
}
