package reconcile_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/reconcile"
)

const patience = 20 * time.Second

func TestMain(m *testing.M) { testkit.MainOrChild(m, faultVar, victim) }

// bench is a database with reservations, and the orders that know about them.
type bench struct {
	testkit.DB
	t *testing.T
}

func newBench(t *testing.T) bench {
	t.Helper()
	t.Parallel()
	b := bench{DB: testkit.Database(t), t: t}
	b.exec(`CREATE TABLE @.reservations (
		id bigint PRIMARY KEY, order_id text NOT NULL, tenant text NOT NULL DEFAULT 'a', status text NOT NULL DEFAULT 'ACTIVE',
		since timestamptz NOT NULL DEFAULT now(), reason text, changed timestamptz, cents bigint NOT NULL DEFAULT 9007199254740993);
		CREATE INDEX reservations_status ON @.reservations (status, since);
		CREATE TABLE @.orders (id text PRIMARY KEY, status text);
		CREATE TABLE @.asked (key text NOT NULL)`)
	return b
}

func (b bench) in(sql string) string { return strings.ReplaceAll(sql, "@.", b.Schema+".") }

func (b bench) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.Pool.Exec(b.t.Context(), b.in(sql), args...)
	require.NoError(b.t, err)
}

func one[T any](b bench, sql string, args ...any) (value T) {
	b.t.Helper()
	require.NoError(b.t, b.Pool.QueryRow(b.t.Context(), b.in(sql), args...).Scan(&value))
	return value
}

// reserve adds reservations from..to that are an hour old, of orders in a status; of none when it is empty.
func (b bench) reserve(from, to int, status string) {
	b.t.Helper()
	b.exec(`INSERT INTO @.reservations (id, order_id, since)
		SELECT i, 'o' || i, now() - interval '1 hour' - i * interval '1 ms' FROM generate_series($1::int, $2::int) AS i`, from, to)
	if status != "" {
		b.exec(`INSERT INTO @.orders SELECT 'o' || i, $3 FROM generate_series($1::int, $2::int) AS i`, from, to, status)
	}
}

func ruleIn(schema string, pool *pgxpool.Pool) reconcile.Rule {
	orders, err := reconcile.NewSQL(reconcile.SQLOptions{Pool: pool, Query: `SELECT status FROM ` + schema + `.orders WHERE id = {orderId} -- the orders know`})
	if err != nil {
		panic(err)
	}
	return reconcile.Rule{
		Name: "reservations", Subject: "reservation", Table: schema + ".reservations", Key: "id", Status: "status", Suspects: []string{"ACTIVE"},
		Clock: "since", Age: 20 * time.Minute, Columns: map[string]string{"orderId": "order_id", "tenant": "tenant", "cents": "cents"},
		ReasonColumn: "reason", ChangedColumn: "changed", Authority: orders, Keep: []string{"PENDING"},
		Answers: map[string]reconcile.Action{
			"CANCELLED":        {NewStatus: "RELEASED", Reason: "ORDER_CANCELLED", EventType: "stock.expired"},
			reconcile.NotFound: {NewStatus: "RELEASED", Reason: "ORDER_UNKNOWN", EventType: "stock.expired"},
		},
	}
}

func (b bench) rule() reconcile.Rule { return ruleIn(b.Schema, b.Pool) }

// asking is the rule with an authority of the test's own.
func (b bench) asking(ask reconcile.Func) reconcile.Rule {
	rule := b.rule()
	rule.Authority = ask
	return rule
}

func (b bench) options(rules ...reconcile.Rule) reconcile.Options {
	return reconcile.Options{Pool: b.Pool, Schema: b.Schema, Rules: rules, Logger: testkit.Logger(b.t), Host: "test"}
}

func (b bench) reconciler(rules ...reconcile.Rule) *reconcile.Reconciler {
	b.t.Helper()
	return b.made(b.options(rules...))
}

func (b bench) made(o reconcile.Options) *reconcile.Reconciler {
	b.t.Helper()
	r, err := reconcile.New(o)
	require.NoError(b.t, err)
	return r
}

// once runs a cycle of the only rule, and returns the result without its run.
func (b bench) once(r *reconcile.Reconciler) reconcile.Result {
	b.t.Helper()
	results, err := r.Once(b.t.Context())
	require.NoError(b.t, err)
	require.Len(b.t, results, 1)
	require.NotEmpty(b.t, results[0].Run)
	results[0].Run = ""
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

// balanced demands one event for each released reservation and none for any other.
func (b bench) balanced() {
	b.t.Helper()
	var released, events []string
	require.NoError(b.t, b.Pool.QueryRow(b.t.Context(), b.in(`SELECT
		(SELECT coalesce(array_agg(id::text ORDER BY id::text), '{}') FROM @.reservations WHERE status = 'RELEASED'),
		(SELECT coalesce(array_agg(key ORDER BY key), '{}') FROM @.outbox)`)).Scan(&released, &events))
	require.Equal(b.t, released, events, "%d reservations, %d events", len(released), len(events))
}

// due brings the next checks forward, instead of waiting for them.
func (b bench) due() {
	b.t.Helper()
	b.exec(`UPDATE @.reconcile_suspects SET next_check = now() - interval '1 s'`)
}

// counter counts how often each key was asked about.
type counter struct {
	mu    sync.Mutex
	asked map[string]int
}

func (c *counter) count(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked == nil {
		c.asked = map[string]int{}
	}
	c.asked[key]++
}

// cancelled is an authority's answer to everything.
func (c *counter) cancelled(_ context.Context, s reconcile.Suspect) (string, error) {
	c.count(s.Key)
	return "CANCELLED", nil
}
