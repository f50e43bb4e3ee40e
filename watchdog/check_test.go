package watchdog_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/watchdog"
)

func TestNewListsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := watchdog.New(watchdog.Options{Schema: "NO", Rules: []watchdog.Rule{
		{Name: "a b", Table: "orders", Stuck: []string{"X"}, NewStatus: "X", Payload: map[string]string{"key": "id"}},
		{Name: "a b"},
	}})
	require.Error(t, err)
	for _, part := range []string{
		`schema "NO"`, "Pool is missing", `rule "a b" is there twice`, "Name must be", "schema.table", "Limit is 0s",
		`Key names column "", which is empty`, `NewStatus "X" is one of Stuck`, `"key", which the watchdog writes itself`, "Reason is empty", "EventType",
	} {
		require.ErrorContains(t, err, part)
	}
}

func TestHostileIdentifiersAreQuoted(t *testing.T) {
	b := newBench(t)
	evil := pgx.Identifier{`x"; DROP TABLE sagas; --`}.Sanitize()
	key, status, clock := `k"`, `{table}`, `@schema@s'$1`
	b.exec(`CREATE TABLE @.` + evil + ` (` + pgx.Identifier{key}.Sanitize() + ` uuid PRIMARY KEY DEFAULT gen_random_uuid(), ` +
		pgx.Identifier{status}.Sanitize() + ` text NOT NULL, ` + pgx.Identifier{clock}.Sanitize() + ` timestamptz NOT NULL)`)
	b.exec(`INSERT INTO @.` + evil + ` (` + pgx.Identifier{status}.Sanitize() + `, ` + pgx.Identifier{clock}.Sanitize() + `) VALUES ('it''s', now() - interval '1 h')`)
	w := b.watchdog(func(o *watchdog.Options) {
		o.Rules = []watchdog.Rule{{
			Name: "hostile", Table: b.Schema + `.` + evil, Key: key, Status: status, Stuck: []string{"it's"}, Clock: clock,
			Limit: time.Minute, NewStatus: `'); DROP TABLE sagas; --`, Reason: `'"; $1`, EventType: "x.cancelled",
			Payload: map[string]string{`'); DROP--`: status},
		}}
	})
	require.Equal(t, 1, b.once(w).Cancelled)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM @.`+evil+` WHERE `+pgx.Identifier{status}.Sanitize()+` = $1`, `'); DROP TABLE sagas; --`))
	require.JSONEq(t, `"'); DROP TABLE sagas; --"`, string(b.events()[0].Payload[`'); DROP--`]))
	require.Zero(t, b.count(`SELECT count(*) FROM @.sagas`), "the table is still there")
}

func TestEnumAndUUIDColumns(t *testing.T) {
	b := newBench(t)
	b.exec(`CREATE TYPE @.state AS ENUM ('WAITING', 'GIVEN UP')`)
	b.exec(`CREATE TABLE @.typed (id uuid PRIMARY KEY, state @.state NOT NULL, at timestamptz NOT NULL, why varchar(3))`)
	b.exec(`CREATE INDEX ON @.typed (state, at)`)
	b.exec(`INSERT INTO @.typed VALUES ('6f5b2f0e-5d0c-5c8e-9f0b-6a1f6c2f3a77', 'WAITING', now() - interval '1 h')`)
	rule := watchdog.Rule{
		Name: "typed", Table: b.Schema + ".typed", Key: "id", Status: "state", Stuck: []string{"WAITING"}, Clock: "at",
		Limit: time.Minute, NewStatus: "GIVEN UP", Reason: "r", EventType: "x.given-up",
	}
	w := b.watchdog(func(o *watchdog.Options) { o.Rules = []watchdog.Rule{rule} })
	warnings, err := w.Check(t.Context())
	require.NoError(t, err)
	require.Empty(t, warnings)
	require.Equal(t, 1, b.once(w).Cancelled)
	require.Equal(t, "6f5b2f0e-5d0c-5c8e-9f0b-6a1f6c2f3a77", b.events()[0].Key)
}

// A cast to the column's full type would cut STOCK_RESERVED to STOCK and cancel another status's rows.
func TestStatusIsNotCutToTheColumnsLength(t *testing.T) {
	b := newBench(t)
	b.exec(`CREATE TABLE @.short (id int PRIMARY KEY, status varchar(5) NOT NULL, since timestamptz NOT NULL)`)
	b.exec(`INSERT INTO @.short VALUES (1, 'STOCK', now() - interval '1 h')`)
	w := b.watchdog(func(o *watchdog.Options) {
		o.Rules[0].Table, o.Rules[0].ReasonColumn, o.Rules[0].ChangedColumn, o.Rules[0].Payload = b.Schema+".short", "", "", nil
	})
	require.Equal(t, watchdog.Result{Rule: "PAYMENT_TIMEOUT"}, b.once(w))
}

func TestRunNamesRuleAndColumnThatDoNotFit(t *testing.T) {
	b := newBench(t)
	b.exec(`CREATE TYPE @.state AS ENUM ('A', 'B');
		CREATE TABLE @.odd (id int, state @.state NOT NULL, at timestamp NOT NULL);
		CREATE VIEW @.looked_at AS SELECT * FROM @.sagas`)
	for name, c := range map[string]struct {
		change func(*watchdog.Rule)
		want   string
	}{
		"table":   {func(r *watchdog.Rule) { r.Table = b.Schema + ".nothing" }, `"nothing" does not exist`},
		"view":    {func(r *watchdog.Rule) { r.Table = b.Schema + ".looked_at" }, "is not a table"},
		"column":  {func(r *watchdog.Rule) { r.Clock = "nowhere" }, `column "nowhere" (Clock) does not exist in ` + b.Schema + `.sagas, which has cents, changed, id`},
		"payload": {func(r *watchdog.Rule) { r.Payload = map[string]string{"x": "nope"} }, `column "nope" (Payload x)`},
		"clock":   {func(r *watchdog.Rule) { r.Table, r.Status, r.Clock = b.Schema+".odd", "state", "at" }, `column "at" (Clock) has the type timestamp without time zone`},
		"null":    {func(r *watchdog.Rule) { r.Table = b.Schema + ".odd" }, `column "id" (Key) may be NULL`},
		"enum": {func(r *watchdog.Rule) {
			r.Status, r.Stuck = "status", []string{"A"}
			r.Table, r.Clock, r.Status, r.Key = b.Schema+".enums", "since", "state", "id"
		}, `which does not take "CANCELLED"`},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "enum" {
				b.exec(`CREATE TABLE @.enums (id int PRIMARY KEY, state @.state NOT NULL, since timestamptz NOT NULL)`)
			}
			w := b.watchdog(func(o *watchdog.Options) {
				o.Rules[0].ReasonColumn, o.Rules[0].ChangedColumn, o.Rules[0].Payload = "", "", nil
				c.change(&o.Rules[0])
			})
			err := w.Run(t.Context())
			var fault *watchdog.FaultError
			require.ErrorAs(t, err, &fault)
			require.Equal(t, "PAYMENT_TIMEOUT", fault.Rule)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestMissingIndexIsAWarning(t *testing.T) {
	b := newBench(t)
	b.exec(`DROP INDEX @.sagas_status`)
	b.exec(`ALTER TABLE @.sagas DROP CONSTRAINT sagas_pkey; ALTER TABLE @.sagas ALTER id SET NOT NULL`)
	warnings, err := b.watchdog().Check(t.Context())
	require.NoError(t, err)
	require.Len(t, warnings, 2)
	require.Contains(t, warnings[0], "no index of "+b.Schema+".sagas begins with")
	require.Contains(t, warnings[1], `no unique index`)
}

func TestOneBrokenRuleDoesNotStopTheOthers(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 2)
	w := b.watchdog(func(o *watchdog.Options) {
		broken := o.Rules[0]
		broken.Name, broken.Table = "broken", b.Schema+".nothing"
		o.Rules = []watchdog.Rule{broken, o.Rules[0]}
	})
	results, err := w.Once(t.Context())
	require.ErrorContains(t, err, `"broken"`)
	require.Equal(t, 2, results[1].Cancelled)
}

func TestClaimUsesTheIndex(t *testing.T) {
	b := newBench(t)
	b.exec(`INSERT INTO @.sagas (id, status, since) SELECT i, 'DONE', now() - interval '2 h' FROM generate_series(1, 20000) AS i`)
	b.stuck(20001, 20010)
	b.exec(`ANALYZE @.sagas`)
	sql, err := b.watchdog().ClaimSQL(t.Context())
	require.NoError(t, err)
	rows, err := b.Pool.Query(t.Context(), "EXPLAIN "+sql, []string{"STOCK_RESERVED"}, time.Minute, "r", 100, time.Now())
	require.NoError(t, err)
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Contains(t, strings.Join(plan, "\n"), "sagas_status")
	require.NotContains(t, strings.Join(plan, "\n"), "Seq Scan on sagas")
}
