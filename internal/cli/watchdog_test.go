package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/watchdog"
)

func TestWatchdog(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	exec := func(sql string) {
		t.Helper()
		_, err := db.Pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	table := db.Schema + ".sagas"
	exec(`CREATE TABLE ` + table + ` (id int PRIMARY KEY, status text NOT NULL, since timestamptz NOT NULL);
		INSERT INTO ` + table + ` SELECT i, 'STUCK', now() - interval '1 h' FROM generate_series(1, 3) AS i;
		CREATE FUNCTION ` + db.Schema + `.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION E'sealed \x1b[31m'; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON ` + table + ` FOR EACH ROW WHEN (NEW.id = 3) EXECUTE FUNCTION ` + db.Schema + `.refuse()`)
	do := func(args ...string) result {
		e := env(`
watchdog:
  rules:
    - {name: STUCK, table: ` + table + `, key: id, status: status, stuck: [STUCK], clock: since, limit: 10m,
       new_status: GIVEN_UP, reason: TOO_LONG, event_type: saga.given-up, payload: {sagaId: id}}
`)
		e.Environ = []string{"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema}
		return run(t, e, append([]string{"watchdog"}, args...)...)
	}

	names := do("ls", "-o", "name")
	require.Zero(t, names.code, names.stderr)
	require.ElementsMatch(t, []byte("1\n2\n3\n"), []byte(names.stdout))
	dry := do("once", "--dry-run", "-o", "name")
	require.Equal(t, names, dry, "a dry run lists what would be done")
	require.Equal(t, names, do("ls", "-o", "name"), "and does nothing")

	once := do("once", "-o", "json")
	require.Equal(t, cli.ExitPartly, once.code, once.stderr)
	var results []watchdog.Result
	require.NoError(t, json.Unmarshal([]byte(once.stdout), &results))
	require.Equal(t, []watchdog.Result{{Rule: "STUCK", Cancelled: 2, Failed: 1}}, results)
	require.Contains(t, once.stderr, "saga cancelled")
	require.Contains(t, once.stderr, "watchdog error")

	ls := do("ls")
	require.Contains(t, ls.stdout, "sealed")
	require.NotContains(t, ls.stdout, "\x1b", "an error's text is escaped")

	exec(`DROP TRIGGER refuse ON ` + table)
	exec(`UPDATE ` + db.Schema + `.watchdog_failures SET next_try = now() - interval '1 s'`)
	require.Zero(t, do("once").code)
	require.Equal(t, result{0, "[]\n", ""}, do("ls", "-o", "json"))
	require.Equal(t, result{0, "", "nothing is overdue\n"}, do("ls"))
	require.Equal(t, cli.ExitUsage, do("ls", "--limit", "0").code)

	misfit := env(`
watchdog:
  rules:
    - {name: STUCK, table: ` + table + `, key: id, status: status, stuck: [STUCK], clock: since, limit: 10m,
       new_status: GIVEN_UP, reason: TOO_LONG, event_type: saga.given-up, payload: {sagaId: nr}}
    - {name: GOOD, table: ` + table + `, key: id, status: status, stuck: [STUCK], clock: since, limit: 10m,
       new_status: GIVEN_UP, reason: TOO_LONG, event_type: saga.given-up}
    - {name: GONE, table: ` + table + `_gone, key: id, status: status, stuck: [STUCK], clock: since, limit: 10m,
       new_status: GIVEN_UP, reason: TOO_LONG, event_type: saga.given-up}
`)
	misfit.Environ = []string{"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema, "SUREFOOT_HTTP_LISTEN=127.0.0.1:0"}
	exec(`INSERT INTO ` + table + ` VALUES (9, 'STUCK', now() - interval '1 h')`)
	for _, verb := range []string{"once", "run", "ls"} {
		got := run(t, misfit, "watchdog", verb)
		require.Equal(t, cli.ExitUsage, got.code, "%s: %s", verb, got.stderr)
		require.Contains(t, got.stderr, "does not exist in "+table, verb)
		for line := range strings.Lines(got.stderr) {
			require.LessOrEqual(t, strings.Count(line, "STUCK"), 1, "%s names the rule once: %s", verb, line)
		}
	}
	require.Equal(t, result{0, "9\n", ""}, do("ls", "-o", "name"), "no rule has done anything")

	e := env("")
	e.Environ = []string{"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema}
	none := run(t, e, "watchdog", "once")
	require.Equal(t, cli.ExitUsage, none.code)
	require.Contains(t, none.stderr, "there are no watchdog rules")
}
