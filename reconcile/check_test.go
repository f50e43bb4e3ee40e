package reconcile_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/reconcile"
)

func connect(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pg.Open(t.Context(), pg.Options{URL: url})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func TestNewListsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := reconcile.New(reconcile.Options{Schema: "NO", Rules: []reconcile.Rule{
		{
			Name: "a b", Table: "orders", Suspects: []string{"X"}, Columns: map[string]string{"key": "id", "a'b": "x", "c": ""}, ReasonColumn: "r", ChangedColumn: "r",
			Interval: -1, Subject: "\x00", Keep: []string{"A", ""}, Answers: map[string]reconcile.Action{"A": {NewStatus: "X"}},
		},
		{Name: "a b", Query: "SELECT 1", Age: time.Minute},
	}})
	require.Error(t, err)
	for _, part := range []string{
		`schema "NO"`, "Pool is missing", `rule "a b" is there twice`, "Name must be", "Subject", "schema.table", "Age is 0s", "Interval is -1ns",
		`Key names column "", which is empty`, `Clock names column ""`, `Columns has the name "key"`, `Columns has the name "a'b"`, `Columns "c" names column ""`,
		`column "r" cannot be set twice`, `NewStatus "X" is one of Suspects`, "Reason is empty", "EventType", `answer "A" is both`, `Keep has the answer ""`,
		"do not go with Query", "must be an answer", "the Authority is missing",
	} {
		require.ErrorContains(t, err, part)
	}
}

func TestAPlaceholderNeedsAColumn(t *testing.T) {
	b := newBench(t)
	rule := b.rule()
	rule.Columns = nil
	_, err := reconcile.New(b.options(rule))
	require.ErrorContains(t, err, "the Authority names {orderId}")
}

// Names that are SQL do nothing but name; those that cannot be a name are refused.
func TestHostileIdentifiersAreQuoted(t *testing.T) {
	b := newBench(t)
	evil := pgx.Identifier{`x"; DROP TABLE orders; --`}.Sanitize()
	key, status, clock, more := `k"`, `{table}`, `@schema@s'$1`, `{query}'; --`
	quote := func(name string) string { return pgx.Identifier{name}.Sanitize() }
	b.exec(`CREATE TABLE @.` + evil + ` (` + quote(key) + ` uuid PRIMARY KEY DEFAULT gen_random_uuid(), ` + quote(status) + ` text NOT NULL, ` +
		quote(clock) + ` timestamptz NOT NULL, ` + quote(more) + ` text)`)
	b.exec(`INSERT INTO @.` + evil + ` (` + quote(status) + `, ` + quote(clock) + `, ` + quote(more) + `) VALUES ('it''s', now() - interval '1 h', ''' OR true; --')`)
	rule := b.rule()
	rule.Table, rule.Key, rule.Status, rule.Clock, rule.ReasonColumn, rule.ChangedColumn = b.Schema+`.`+evil, key, status, clock, more, ""
	rule.Suspects, rule.Columns = []string{"it's"}, map[string]string{"orderId": more}
	rule.Answers[reconcile.NotFound] = reconcile.Action{NewStatus: `'); DROP TABLE orders; --`, Reason: `'"; $1`, EventType: "x.released"}
	r := b.reconciler(rule)
	require.Equal(t, reconcile.Result{Rule: "reservations", Checked: 1, Mismatches: 1}, b.once(r), "a hostile value finds no order")
	require.Equal(t, `'); DROP TABLE orders; --`, one[string](b, `SELECT `+quote(status)+` FROM @.`+evil))
	require.Equal(t, 0, one[int](b, `SELECT count(*) FROM @.orders`), "it is still there")

	for _, hostile := range []string{`orders; DROP TABLE x`, `a.b.c`, `"open.x`, `a."b"c`, `.`, "a.\x00"} {
		rule.Table = hostile
		_, err := reconcile.New(b.options(rule))
		require.ErrorContains(t, err, "Table", hostile)
	}
}

func TestRulesThatDoNotFitEndRun(t *testing.T) {
	b := newBench(t)
	b.exec(`CREATE TYPE @.state AS ENUM ('ACTIVE'); CREATE TABLE @.typed (id int PRIMARY KEY, status @.state NOT NULL, since timestamp NOT NULL);
		CREATE VIEW @.seen AS SELECT * FROM @.reservations`)
	for want, change := range map[string]func(*reconcile.Rule){
		"does not exist; write it":            func(r *reconcile.Rule) { r.Table = b.Schema + ".nowhere" },
		"is not a table":                      func(r *reconcile.Rule) { r.Table = b.Schema + ".seen" },
		`column "nr" (Key) does not exist`:    func(r *reconcile.Rule) { r.Key = "nr" },
		`column "tenant" (ChangedColumn) has`: func(r *reconcile.Rule) { r.ChangedColumn = "tenant" },
		"which does not take \"RELEASED\"": func(r *reconcile.Rule) {
			r.Table, r.Clock, r.ReasonColumn, r.ChangedColumn, r.Columns = b.Schema+".typed", "", "", "", nil
			r.Suspects, r.Age, r.Query = nil, 0, b.in(`SELECT id AS key, status, now() AS since, id AS "orderId" FROM @.typed`)
		},
		`(Clock) has the type timestamp without`: func(r *reconcile.Rule) {
			r.Table, r.ReasonColumn, r.ChangedColumn, r.Columns = b.Schema+".typed", "", "", map[string]string{"orderId": "id"}
		},
		`what finds its suspects cannot be run: find suspects: ERROR: column q.since`: func(r *reconcile.Rule) {
			r.Suspects, r.Age, r.Columns, r.Query = nil, 0, nil, b.in(`SELECT id AS key, status FROM @.reservations`)
		},
		"the authority's query cannot be run": func(r *reconcile.Rule) {
			r.Authority, _ = reconcile.NewSQL(reconcile.SQLOptions{Pool: b.Pool, Query: `SELECT stat FROM ` + b.Schema + `.orders`})
		},
	} {
		rule := b.rule()
		change(&rule)
		err := b.reconciler(rule).Run(t.Context())
		var fault *reconcile.FaultError
		require.ErrorAs(t, err, &fault, want)
		require.ErrorContains(t, err, want)
	}
}

// Whoever writes a rule's SQL cannot change anything with it, by mistake or not.
func TestQueriesOnlyRead(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 1, "CANCELLED")
	for name, sql := range map[string]string{
		"a function":         `SELECT @.write() AS key, 'ACTIVE' AS status, now() AS since`,
		"a second statement": `SELECT id AS key, status, since FROM @.reservations) AS q; DELETE FROM @.orders; SELECT * FROM (SELECT 1 AS key, 'x' AS status, now() AS since`,
		"a CTE":              `WITH gone AS (DELETE FROM @.orders RETURNING id) SELECT id AS key, 'ACTIVE' AS status, now() AS since FROM gone`,
	} {
		b.exec(`CREATE OR REPLACE FUNCTION @.write() RETURNS text LANGUAGE sql AS $$ DELETE FROM @.orders RETURNING id $$`)
		rule := b.rule()
		rule.Suspects, rule.Age, rule.Columns, rule.Query = nil, 0, nil, b.in(sql)
		_, err := b.reconciler(rule).Once(t.Context())
		require.Error(t, err, name)
		require.Equal(t, 1, one[int](b, `SELECT count(*) FROM @.orders`), name)
	}
	rule := b.rule()
	var err error
	rule.Authority, err = reconcile.NewSQL(reconcile.SQLOptions{Pool: b.Pool, Query: b.in(`SELECT @.write()`)})
	require.NoError(t, err)
	require.Equal(t, 1, b.once(b.reconciler(rule)).Unanswered)
	require.Equal(t, 1, one[int](b, `SELECT count(*) FROM @.orders`))
}

// An answer in SQL is one row with one value.
func TestWhatIsNoAnswerInSQL(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 1, "CANCELLED")
	for _, sql := range []string{`SELECT NULL::text`, `SELECT 'CANCELLED' UNION ALL SELECT 'CANCELLED'`, `SELECT 'CANCELLED', 1`, `SELECT 1/0`, `SELECT {nothing}`} {
		rule := b.rule()
		var err error
		rule.Authority, err = reconcile.NewSQL(reconcile.SQLOptions{Pool: b.Pool, Query: sql})
		require.NoError(t, err)
		rule.Columns = map[string]string{"nothing": "reason"}
		require.Equal(t, 1, b.once(b.reconciler(rule)).Unanswered, sql)
		b.due()
	}
	require.Empty(t, b.events())
}
