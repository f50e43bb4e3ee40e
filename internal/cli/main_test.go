package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// result is what a command line left behind.
type result struct {
	code           int
	stdout, stderr string
}

// env is an Env without a terminal, with one configuration file.
func env(yaml string) cli.Env {
	return cli.Env{
		Stdin: strings.NewReader(""), User: "ann", Host: "box", Version: "v1.2.3", Commit: "abc123",
		ReadFile: func(path string) ([]byte, error) {
			if path == "surefoot.yaml" && yaml != "" {
				return []byte(yaml), nil
			}
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		},
	}
}

func run(t *testing.T, env cli.Env, args ...string) result {
	t.Helper()
	return runIn(t.Context(), t, env, args...)
}

func runIn(ctx context.Context, t *testing.T, env cli.Env, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	env.Stdout, env.Stderr = &stdout, &stderr
	code := cli.Main(ctx, args, env)
	return result{code, stdout.String(), stderr.String()}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	got := run(t, env(""), "version", "-o", "json")
	require.Zero(t, got.code)
	require.Empty(t, got.stderr)
	var version struct {
		Version, Commit string
		Schema          int
	}
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &version))
	require.Equal(t, "v1.2.3", version.Version)
	require.Equal(t, "abc123", version.Commit)
	require.Positive(t, version.Schema)

	require.Equal(t, "v1.2.3\n", run(t, env(""), "version", "-o", "name").stdout)
	require.Regexp(t, `(?m)^version +v1\.2\.3$`, run(t, env(""), "version").stdout)
	require.Equal(t, 1, strings.Count(run(t, env(""), "version", "-o", "jsonl").stdout, "\n"))
}

func TestWrongUses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"unknown noun":      {[]string{"migrat"}, "surefoot: unknown command \"migrat\" for surefoot\nhint: did you mean migrate?\n"},
		"strange noun":      {[]string{"zzz"}, "surefoot: unknown command \"zzz\" for surefoot\nhint: see surefoot --help\n"},
		"unknown verb":      {[]string{"migrate", "statsu"}, "surefoot: unknown command \"statsu\" for surefoot migrate\nhint: did you mean status?\n"},
		"no verb":           {[]string{"migrate"}, "surefoot: migrate needs one of: status, up\nhint: see surefoot migrate --help\n"},
		"unknown flag":      {[]string{"version", "--outputt", "json"}, "surefoot: unknown flag: --outputt\nhint: did you mean --output?\n"},
		"unknown global":    {[]string{"version", "--databse-url", "x"}, "surefoot: unknown flag: --databse-url\nhint: did you mean --database-url?\n"},
		"unknown shorthand": {[]string{"version", "-z"}, "surefoot: unknown shorthand flag: 'z' in -z\nhint: see surefoot version --help\n"},
		"flag needs value":  {[]string{"version", "-o"}, "surefoot: flag needs an argument: 'o' in -o\nhint: see surefoot version --help\n"},
		"no such format": {
			[]string{"version", "-o", "xml"},
			"surefoot: --output cannot be \"xml\": use table, json, jsonl or name\nhint: see surefoot version --help\n",
		},
		"too many arguments": {[]string{"version", "now"}, "surefoot: version does not take \"now\"\nhint: see surefoot version --help\n"},
		"hostile argument":   {[]string{"\x1b[2Jboo"}, "surefoot: unknown command \"\\x1b[2Jboo\" for surefoot\nhint: see surefoot --help\n"},
		"service not named": {
			[]string{"migrate", "up"},
			"surefoot: the configuration has a fault: database.url: is missing: set SUREFOOT_DATABASE_URL, for example to postgres://user:password@host:5432/database\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := run(t, env(""), tt.args...)
			require.Equal(t, tt.want, got.stderr)
			require.Equal(t, cli.ExitUsage, got.code)
			require.Empty(t, got.stdout, "stdout is for data")
		})
	}
}

func TestConfigurationFaultsComeBeforeAnyWork(t *testing.T) {
	t.Parallel()
	e := env("relay: {leese: 1s, shards: 0}\n")
	// Nothing listens there: reaching for the service would end with another code.
	e.Environ = []string{"SUREFOOT_DATABASE_URL=postgres://ann:hunter2@127.0.0.1:1/d"}
	got := run(t, e, "migrate", "up", "--log-level", "loud")
	require.Equal(t, cli.ExitUsage, got.code)
	require.Equal(t, `surefoot: the configuration has 3 faults:
  surefoot.yaml:1: relay.leese: unknown key; did you mean lease?
  --log-level: log.level: is "loud", but must be one of trace, debug, info, warn, error
  surefoot.yaml:1: relay.shards: is 0, but must be from 1 to 256
`, got.stderr)
}

func TestRoleReportsFaultsAsOneLineOfJSON(t *testing.T) {
	t.Parallel()
	got := run(t, env("relay: {leese: 1s, shards: 0}\n"), "watchdog", "run")
	require.Equal(t, cli.ExitUsage, got.code)
	var line struct {
		Level, Message string
		Faults         []string
	}
	require.NoError(t, json.Unmarshal([]byte(got.stderr), &line), got.stderr)
	require.Equal(t, "fatal", line.Level)
	require.Len(t, line.Faults, 3)
	require.Contains(t, line.Faults[0], "surefoot.yaml:1: relay.leese: unknown key")

	onTerminal := env("relay: {leese: 1s, shards: 0}\n")
	onTerminal.StderrTTY = true
	require.Contains(t, run(t, onTerminal, "watchdog", "run").stderr, "surefoot: the configuration has 3 faults:\n")
}

// What a role lacks is found before anything is opened: nothing listens at these addresses.
func TestRolesRefuseAConfigurationThatCannotWork(t *testing.T) {
	t.Parallel()
	queue := "topology: {exchange: x, queues: [{name: q, target: {exec: [/nowhere/at/all]}}, {name: r, target: {exec: [/nor/here]}}]}\n"
	for name, tt := range map[string]struct {
		yaml string
		args []string
		want []string
	}{
		"no target":          {"", []string{"consume", "run"}, []string{"give one target.exec"}},
		"no exchange":        {"", []string{"relay", "run"}, []string{"set up relay: ", "set topology.exchange, or relay.exchange"}},
		"no exchange of run": {"", []string{"run"}, []string{"set up relay: ", "set topology.exchange, or relay.exchange"}},
		"no rules":           {"", []string{"watchdog", "run"}, []string{"add one under watchdog.rules"}},
		"no program":         {queue, []string{"consume", "run"}, []string{"queue q: ", "/nowhere/at/all", "queue r: ", "/nor/here"}},
		"no program of run":  {queue, []string{"run"}, []string{"set up consume: ", "/nowhere/at/all"}},
		"bad table": {
			"watchdog: {rules: [{name: a, table: sagas, key: id, status: s, stuck: [X], clock: c, limit: 1m, new_status: Y, reason: R, event_type: e}]}\n",
			[]string{"watchdog", "run"},
			[]string{"set up watchdog: ", "schema.table"},
		},
	} {
		e := env(tt.yaml)
		e.Environ = []string{
			"SUREFOOT_DATABASE_URL=postgres://ann@127.0.0.1:1/d", "SUREFOOT_AMQP_URL=amqp://ann:x@127.0.0.1:1/", "SUREFOOT_HTTP_LISTEN=127.0.0.1:0",
		}
		got := run(t, e, tt.args...)
		require.Equal(t, cli.ExitUsage, got.code, "%s: %s", name, got.stderr)
		for _, want := range tt.want {
			require.Contains(t, got.stderr, want, name)
		}
		require.Equal(t, 1, strings.Count(got.stderr, "\n"), "%s: one fatal line and nothing before it: %s", name, got.stderr)
	}
}

func TestUnreachableDatabase(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"migrate", "status"}, {"migrate", "up"}} {
		got := run(t, env(""), append(args, "--database-url", "postgres://ann:hunter2@127.0.0.1:1/d")...)
		require.Equal(t, cli.ExitUnreachable, got.code, got.stderr)
		require.NotContains(t, got.stderr, "hunter2")
		require.Contains(t, got.stderr, "connection refused")
		require.Contains(t, got.stderr, "hint: start it, or correct its address")
		require.Empty(t, got.stdout)
	}
}

// A database or a vhost that is not there is out of reach like the server around it, and the hint says what to create.
func TestAbsentDatabaseAndVhost(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Database(t), testkit.Broker(t)
	nowhere := func(text string) string {
		u, err := url.Parse(text)
		require.NoError(t, err)
		u.Path = "/nowhere"
		return u.String()
	}
	for _, tt := range []struct{ args, hint string }{
		{"migrate status --database-url " + nowhere(db.URL), "create the database"},
		{"migrate up --database-url " + nowhere(db.URL), "create the database"},
		{"outbox ls --database-url " + nowhere(db.URL), "create the database"},
		{"topology plan --amqp-url " + nowhere(broker.URL), "create the vhost"},
		{"topology apply --yes --amqp-url " + nowhere(broker.URL), "create the vhost"},
		{"topology verify --amqp-url " + nowhere(broker.URL), "create the vhost"},
		{"dlq ls --amqp-url " + nowhere(broker.URL), "create the vhost"},
		{"dlq show --queue q --amqp-url " + nowhere(broker.URL), "create the vhost"},
	} {
		e := env("topology: {exchange: x, queues: [{name: q}]}\n")
		e.Environ = []string{
			"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema, "SUREFOOT_AMQP_URL=" + broker.URL, "SUREFOOT_MANAGEMENT_URL=" + broker.ManagementURL,
		}
		got := run(t, e, strings.Fields(tt.args)...)
		require.Equal(t, cli.ExitUnreachable, got.code, "%s: %s", tt.args, got.stderr)
		require.Contains(t, got.stderr, "hint: "+tt.hint, tt.args)
	}
}

func TestHelpGoesToStdout(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"--help"}, {"help", "migrate"}, {"migrate", "up", "-h"}} {
		got := run(t, env(""), args...)
		require.Zero(t, got.code)
		require.Empty(t, got.stderr)
		require.Contains(t, got.stdout, "Usage:")
	}
}

func TestHelpAndVersionOfWhatIsThere(t *testing.T) {
	t.Parallel()
	require.Equal(t, result{0, "v1.2.3\n", ""}, run(t, env(""), "--version"))
	for _, tt := range []struct {
		args []string
		hint string
	}{
		{[]string{"help", "migrat"}, "did you mean migrate?"},
		{[]string{"help", "nope"}, "see surefoot --help"},
		{[]string{"nope", "--help"}, "see surefoot --help"},
		{[]string{"dlq", "redrife", "-h"}, "did you mean redrive?"},
		{[]string{"help", "dlq", "lst"}, "did you mean ls"},
	} {
		got := run(t, env(""), tt.args...)
		require.Equal(t, cli.ExitUsage, got.code, "%v", tt.args)
		require.Empty(t, got.stdout, "%v", tt.args)
		require.Contains(t, got.stderr, "unknown command", "%v", tt.args)
		require.Contains(t, got.stderr, tt.hint, "%v", tt.args)
	}
	got := run(t, env(""), "--config", "x.yaml", "dlq", "show", "--help")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "surefoot dlq show --queue QUEUE")
}

// Whoever types a command wrong learns what would be right.
func TestWrongArgumentsAreExplained(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args         []string
		error, hint  string
		alsoNotInErr string
	}{
		"queue as argument":    {[]string{"dlq", "show", "loans.mail"}, `dlq show does not take "loans.mail"`, "give the queue with --queue loans.mail", "unknown command"},
		"of a pause":           {[]string{"consume", "pause", "loans.mail"}, `consume pause does not take "loans.mail"`, "--queue loans.mail", ""},
		"surplus of a role":    {[]string{"run", "extra"}, `run does not take "extra"`, "see surefoot run --help", ""},
		"missing id":           {[]string{"outbox", "show"}, "outbox show needs ID", "see surefoot outbox show --help", "arg(s)"},
		"surplus id":           {[]string{"outbox", "show", "a", "b"}, `outbox show does not take "b"`, "see surefoot outbox show --help", "arg(s)"},
		"limit of a redrive":   {[]string{"dlq", "redrive", "--limit", "1"}, "unknown flag: --limit", "did you mean --max?", ""},
		"max of a look":        {[]string{"dlq", "show", "--max", "1"}, "unknown flag: --max", "did you mean --limit?", ""},
		"script's filter":      {[]string{"dlq", "redrive", "--event-filter", "x"}, "unknown flag: --event-filter", "did you mean --type?", ""},
		"mistyped flag":        {[]string{"dlq", "redrive", "--quue", "x"}, "unknown flag: --quue", "did you mean --queue?", ""},
		"no number":            {[]string{"outbox", "ls", "--limit", "x"}, `--limit cannot be "x": use a whole number`, "--help", "strconv"},
		"limit of 0":           {[]string{"dlq", "show", "--queue", "q", "--limit", "0"}, `--limit cannot be "0": use a whole number from 1 to 1000`, "--help", ""},
		"max of 0":             {[]string{"dlq", "discard", "--queue", "q", "--max", "0"}, `--max cannot be "0": use a whole number from 1`, "--help", ""},
		"limit of 0, watchdog": {[]string{"watchdog", "ls", "--limit", "0"}, `--limit cannot be "0": use a whole number from 1 to 10000`, "--help", ""},
		"limit of 0, outbox":   {[]string{"outbox", "ls", "--limit", "0"}, "--limit cannot be \"0\": use a whole number from 1 to 10000", "", ""},
		"no duration":          {[]string{"dlq", "show", "--wait", "5"}, `--wait cannot be "5": use a duration with its unit`, "--help", "time:"},
		"format":               {[]string{"dlq", "ls", "-o", "yaml"}, `--output cannot be "yaml": use table, json, jsonl or name`, "--help", ""},
	} {
		got := run(t, env(""), tt.args...)
		require.Equal(t, cli.ExitUsage, got.code, name)
		require.Contains(t, got.stderr, "surefoot: "+tt.error, name)
		require.Contains(t, got.stderr, tt.hint, name)
		if tt.alsoNotInErr != "" {
			require.NotContains(t, got.stderr, tt.alsoNotInErr, name)
		}
	}
	require.Contains(t, run(t, env(""), "dlq", "redrive", "--help").stdout, "from 1; default all")
	require.Contains(t, run(t, env(""), "dlq", "show", "--help").stdout, "from 1 to 1000 (default 10)")
}
