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
	require.Equal(t, result{0, "", "nothing is overdue, due soon or held\n"}, do("ls"))
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

func TestWatchdogActs(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	table := db.Schema + ".sagas"
	_, err := db.Pool.Exec(t.Context(), `CREATE TABLE `+table+` (state text PRIMARY KEY, status text NOT NULL, since timestamptz NOT NULL);
		INSERT INTO `+table+` SELECT 'o-' || i, 'STUCK', now() - interval '1 h' FROM generate_series(1, 4) AS i;
		INSERT INTO `+table+` VALUES ('soon', 'STUCK', now() - interval '9 min'), ('new', 'STUCK', now())`)
	require.NoError(t, err)
	rule := func(name string) string {
		return `
    - {name: ` + name + `, table: ` + table + `, key: state, status: status, stuck: [STUCK], clock: since, limit: 10m,
       new_status: GIVEN_UP, reason: TOO_LONG, event_type: saga.given-up}`
	}
	rules := rule("STUCK")
	do := func(args ...string) result {
		e := env("watchdog:\n  rules:" + rules + "\n")
		e.Environ = []string{"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema}
		return run(t, e, append([]string{"--as", "ann"}, args...)...)
	}
	acted := func(r result) []watchdog.Acted {
		t.Helper()
		var all []watchdog.Acted
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &all), r.stderr)
		return all
	}
	names := func(args ...string) string {
		r := do(append([]string{"watchdog", "ls", "-o", "name"}, args...)...)
		require.Zero(t, r.code, r.stderr)
		return strings.Join(strings.Fields(r.stdout), " ")
	}

	for _, wrong := range [][]string{
		{"extend", "o-1", "--reason", "r", "--yes"},
		{"extend", "o-1", "--by", "1h", "--yes"},
		{"skip", "--reason", "r", "--yes"},
		{"skip", "o-1", "--all", "--reason", "r", "--yes"},
		{"skip", "o-1", "--state", "held", "--reason", "r", "--yes"},
		{"skip", "--all", "--state", "late", "--reason", "r", "--yes"},
		{"skip", "o-1", "--reason", "r"},
		{"ls", "--soon=-1s"},
		{"skip", "--all", "--limit", "3", "--reason", "r", "--yes"},
		{"skip", "o-1", "--reason", "a\x1b[2J", "--yes"},
		{"ls", "--rule", "NOPE"},
	} {
		require.Equal(t, cli.ExitUsage, do(append([]string{"watchdog"}, wrong...)...).code, wrong)
	}
	require.Equal(t, "o-1 o-2 o-3 o-4 soon", names())
	dry := do("watchdog", "extend", "--all", "--by", "30m", "--reason", "provider is down", "--dry-run", "-o", "json")
	require.Zero(t, dry.code, dry.stderr)
	require.Len(t, acted(dry), 5)
	require.Contains(t, dry.stderr, "would extend 5 rows")
	require.Empty(t, names("--state", "held"))

	require.Zero(t, do("watchdog", "extend", "o-1", "--by", "30m", "--reason", "provider is down", "--yes").code)
	partly := do("watchdog", "skip", "o-2", "nope", "--reason", "by hand", "--yes", "-o", "json")
	require.Equal(t, cli.ExitPartly, partly.code, partly.stderr)
	require.Contains(t, acted(partly)[1].Outcome, "no such row")
	require.Equal(t, cli.ExitFailed, do("watchdog", "skip", "nope", "--reason", "by hand", "--yes").code)
	require.Equal(t, "o-1 o-2", names("--state", "held"))
	require.Equal(t, "o-2", names("--key", "o-2", "--key", "x"))
	held := do("watchdog", "ls", "--state", "held")
	require.Contains(t, held.stdout, "by ann: provider is down")
	require.Contains(t, held.stdout, "skipped by ann: by hand")
	require.Equal(t, []string{"o-3", "o-4"}, strings.Fields(do("watchdog", "once", "--dry-run", "-o", "name").stdout))

	require.Equal(t, cli.ExitFailed, do("watchdog", "cancel", "new", "--reason", "customer called", "--yes").code)
	early := acted(do("watchdog", "cancel", "new", "--early", "--reason", "customer called", "--yes", "-o", "json"))
	require.True(t, early[0].Done)
	require.Zero(t, do("watchdog", "cancel", "--all", "--reason", "enough", "--yes").code)
	require.Equal(t, "o-1 o-2 soon", names())
	require.Zero(t, do("watchdog", "skip", "--lift", "--all", "--reason", "provider is back", "--yes").code)
	require.Equal(t, "o-1 o-2", names("--state", "overdue"))
	history := do("audit", "ls", "--message", early[0].EventID)
	require.Contains(t, history.stdout, "watchdog cancel")
	require.Contains(t, history.stdout, "customer called")

	rules += rule("OTHER")
	require.Equal(t, cli.ExitUsage, do("watchdog", "skip", "o-1", "--reason", "r", "--yes").code, "which rule?")
	require.Zero(t, do("watchdog", "skip", "o-1", "--rule", "OTHER", "--reason", "r", "--yes").code)
	nothing := do("watchdog", "cancel", "--all", "--rule", "OTHER", "--state", "failing", "--reason", "r", "--yes", "-o", "json")
	require.Equal(t, result{0, "[]\n", "no rows match; nothing to do\n"}, nothing)
}
