package watchdog_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/watchdog"
)

func TestMain(m *testing.M) { testkit.MainOrChild(m, faultVar, victim) }

// bench is a database with a table of sagas to watch.
type bench struct {
	testkit.DB
	t *testing.T
}

func newBench(t *testing.T) bench {
	t.Helper()
	t.Parallel()
	b := bench{DB: testkit.Database(t), t: t}
	b.exec(`CREATE TABLE @.sagas (
		id bigint PRIMARY KEY, status text NOT NULL, since timestamptz NOT NULL DEFAULT now(), reason text,
		tenant text NOT NULL DEFAULT 'a', cents bigint NOT NULL DEFAULT 9007199254740993, changed timestamptz);
		CREATE INDEX sagas_status ON @.sagas (status, since)`)
	return b
}

// in puts the test's schema in place of "@.".
func (b bench) in(sql string) string { return replaceSchema(sql, b.Schema) }

func (b bench) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.Pool.Exec(b.t.Context(), b.in(sql), args...)
	require.NoError(b.t, err)
}

func (b bench) count(sql string, args ...any) int {
	b.t.Helper()
	var n int
	require.NoError(b.t, b.Pool.QueryRow(b.t.Context(), b.in(sql), args...).Scan(&n))
	return n
}

// stuck adds sagas from..to that are an hour over.
func (b bench) stuck(from, to int) {
	b.t.Helper()
	b.exec(`INSERT INTO @.sagas (id, status, since)
		SELECT i, 'STOCK_RESERVED', now() - interval '1 hour' - i * interval '1 ms' FROM generate_series($1::int, $2::int) AS i`, from, to)
}

func (b bench) rule() watchdog.Rule { return ruleIn(b.Schema) }

func ruleIn(schema string) watchdog.Rule {
	return watchdog.Rule{
		Name: "PAYMENT_TIMEOUT", Table: schema + ".sagas", Key: "id", Status: "status", Stuck: []string{"STOCK_RESERVED"},
		Clock: "since", Limit: 10 * time.Minute, NewStatus: "CANCELLED", Reason: "PAYMENT_TIMEOUT",
		EventType: "order.cancelled", ReasonColumn: "reason", ChangedColumn: "changed",
		Payload: map[string]string{"orderId": "id", "tenant": "tenant", "cents": "cents"},
	}
}

func (b bench) watchdog(change ...func(*watchdog.Options)) *watchdog.Watchdog {
	b.t.Helper()
	o := watchdog.Options{Pool: b.Pool, Schema: b.Schema, Rules: []watchdog.Rule{b.rule()}, Logger: testkit.Logger(b.t)}
	for _, c := range change {
		c(&o)
	}
	w, err := watchdog.New(o)
	require.NoError(b.t, err)
	return w
}

func (b bench) once(w *watchdog.Watchdog) watchdog.Result {
	b.t.Helper()
	results, err := w.Once(b.t.Context())
	require.NoError(b.t, err)
	require.Len(b.t, results, 1)
	return results[0]
}

type event struct {
	ID, Type, Key, Source string
	Payload               map[string]json.RawMessage
}

func (b bench) events() []event {
	b.t.Helper()
	rows, err := b.Pool.Query(b.t.Context(), b.in(`SELECT message_id, type, key, source, payload FROM @.outbox ORDER BY id`))
	require.NoError(b.t, err)
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (event, error) {
		var e event
		var body []byte
		if err := row.Scan(&e.ID, &e.Type, &e.Key, &e.Source, &body); err != nil {
			return e, err
		}
		return e, json.Unmarshal(body, &e.Payload)
	})
	require.NoError(b.t, err)
	return events
}

// refuse makes every change of the sagas in a range fail.
func (b bench) refuse(from, to int) {
	b.t.Helper()
	b.exec(fmt.Sprintf(`CREATE OR REPLACE FUNCTION @.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.id BETWEEN %d AND %d THEN RAISE EXCEPTION 'saga %% is sealed', NEW.id; END IF; RETURN NEW; END $$;
		CREATE OR REPLACE TRIGGER refuse BEFORE UPDATE ON @.sagas FOR EACH ROW EXECUTE FUNCTION @.refuse()`, from, to))
}

// hold keeps a transaction open that has run sql; release commits it.
func (b bench) hold(sql string) (release func()) {
	b.t.Helper()
	ctx := context.WithoutCancel(b.t.Context())
	tx, err := b.Pool.Begin(ctx)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = tx.Rollback(ctx) })
	_, err = tx.Exec(ctx, b.in(sql))
	require.NoError(b.t, err)
	return func() { b.t.Helper(); require.NoError(b.t, tx.Commit(ctx)) }
}
