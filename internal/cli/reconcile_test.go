package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/reconcile"
)

func TestReconcile(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	exec := func(sql string) {
		t.Helper()
		_, err := db.Pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	table := db.Schema + ".reservations"
	exec(`CREATE TABLE ` + table + ` (id text PRIMARY KEY, status text NOT NULL, since timestamptz NOT NULL);
		CREATE TABLE ` + db.Schema + `.orders (id text PRIMARY KEY, status text);
		INSERT INTO ` + table + ` SELECT i, 'ACTIVE', now() - interval '1 h' FROM generate_series(1, 3) AS i;
		INSERT INTO ` + db.Schema + `.orders VALUES ('1', 'CANCELLED'), ('2', 'OPEN')`)
	orders := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/1" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, `{"status": "OPEN"}`)
	}))
	defer orders.Close()
	e := env(`
dependencies: {orders: {retry: {attempts: 1}}}
reconcile:
  rules:
    - {name: sql, subject: reservation, table: ` + table + `, key: id, status: status, suspects: [ACTIVE], clock: since, age: 20m,
       authority: {sql: "SELECT status FROM ` + db.Schema + `.orders WHERE id = {key}"}, keep: [OPEN],
       answers: {CANCELLED: {new_status: RELEASED, reason: CANCELLED, event_type: stock.expired}}}
    - {name: http, table: ` + table + `, key: id, status: status, suspects: [RELEASED], clock: since, age: 20m,
       authority: {http: {url: "` + orders.URL + `/{key}", dependency: orders}}, keep: [OPEN],
       answers: {CANCELLED: {new_status: ENDED, reason: CANCELLED, event_type: stock.expired}}}
`)
	e.Environ = []string{"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema, "SUREFOOT_HTTP_LISTEN=127.0.0.1:0"}
	do := func(args ...string) result { return run(t, e, append([]string{"reconcile"}, args...)...) }

	names := do("ls", "-o", "name")
	require.Zero(t, names.code, names.stderr)
	require.ElementsMatch(t, []byte("1\n2\n3\n"), []byte(names.stdout))
	require.Equal(t, names, do("run", "--once", "--dry-run", "-o", "name"), "a dry run lists what would be asked about")
	require.Equal(t, result{0, "", "no run is on record\n"}, do("ls", "--runs"), "and asks nobody")

	once := do("run", "--once", "-o", "json")
	require.Equal(t, cli.ExitPartly, once.code, once.stderr)
	require.Contains(t, once.stderr, "no answer about 1 suspect, and 0 rows could not be changed")
	require.Contains(t, once.stderr, "reservation discrepancy")
	var results []reconcile.Result
	require.NoError(t, json.Unmarshal([]byte(once.stdout), &results))
	require.Len(t, results, 2)
	require.Equal(t, []any{"sql", 3, 1, 1, 1}, []any{results[0].Rule, results[0].Checked, results[0].Mismatches, results[0].Kept, results[0].Unanswered}, "not_found has no action")
	require.Equal(t, []any{"http", 1, 1}, []any{results[1].Rule, results[1].Checked, results[1].Kept})

	ls := do("ls", "--rule", "sql")
	require.Contains(t, ls.stdout, "not_found")
	require.Contains(t, ls.stdout, "the rule names no such answer")
	require.Contains(t, ls.stdout, "OPEN")
	require.Equal(t, result{0, results[1].Run + "\n", ""}, do("ls", "--runs", "--rule", "http", "-o", "name"))
	require.Contains(t, do("ls", "--runs").stdout, results[0].Run)

	for _, args := range [][]string{{"ls", "--rule", "sqll"}, {"run", "--dry-run"}, {"run", "--rule", "sql"}, {"ls", "--limit", "0"}, {"run", "x"}} {
		require.Equal(t, cli.ExitUsage, do(args...).code, args)
	}
	exec(`ALTER TABLE ` + table + ` RENAME COLUMN since TO at`)
	for _, args := range [][]string{{"ls"}, {"run", "--once"}, {"run"}} {
		got := do(args...)
		require.Equal(t, cli.ExitUsage, got.code, "%s: %s", args, got.stderr)
		require.Contains(t, got.stderr, "does not exist in "+table, args)
	}

	bad := env(`
dependencies: {orders: {}}
reconcile:
  rules:
    - {name: a, table: reservations, key: "", status: status, suspects: [ACTIVE], clock: since, age: 20m,
       authority: {http: {url: "http://{key}/", dependency: orders}}, answers: {X: {new_status: Y, reason: R, event_type: e}}}
`)
	bad.Environ = e.Environ
	got := run(t, bad, "reconcile", "ls")
	require.Equal(t, cli.ExitUsage, got.code)
	require.Contains(t, got.stderr, "reconcile.rules[0].key: is missing")
	bad = env(`
dependencies: {orders: {}}
reconcile:
  rules:
    - {name: a, table: reservations, key: id, status: status, suspects: [ACTIVE], clock: since, age: 20m,
       authority: {http: {url: "http://{key}/", dependency: orders}}, answers: {X: {new_status: Y, reason: R, event_type: e}}}
`)
	bad.Environ = e.Environ
	for _, args := range [][]string{{"reconcile", "ls"}, {"reconcile", "run"}} {
		got := run(t, bad, args...)
		require.Equal(t, cli.ExitUsage, got.code, args)
		require.Contains(t, got.stderr, "schema.table", args)
		require.Contains(t, got.stderr, "a placeholder before its path", args)
	}

	none := env("")
	none.Environ = e.Environ
	require.Contains(t, run(t, none, "reconcile", "ls").stderr, "there are no reconcile rules")
	require.Contains(t, run(t, none, "reconcile", "run").stderr, "add one under reconcile.rules")
}
