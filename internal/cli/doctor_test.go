package cli_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestDoctor(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Database(t), testkit.Broker(t)
	do := func(databaseURL string, args ...string) result {
		e := env("topology: {exchange: x, queues: [{name: q, bindings: [a]}]}\n")
		e.Environ = []string{
			"SUREFOOT_DATABASE_URL=" + databaseURL, "SUREFOOT_SCHEMA=" + db.Schema, "SUREFOOT_AMQP_URL=" + broker.URL, "SUREFOOT_MANAGEMENT_URL=" + broker.ManagementURL,
		}
		return run(t, e, args...)
	}
	away := "postgres://ann:hunter2@127.0.0.1:1/d"

	ill := do(db.URL, "doctor", "--problems", "-o", "json")
	require.Equal(t, cli.ExitDiffers, ill.code, ill.stderr)
	require.Equal(t, "surefoot: found: 0 critical, 1 warning; 0 unknown\n", ill.stderr)
	var found []struct{ Severity, Check, About, Found, Meaning, Mend string }
	require.NoError(t, json.Unmarshal([]byte(ill.stdout), &found))
	require.Len(t, found, 1)
	require.Equal(t, "topology", found[0].Check)
	require.Equal(t, "`surefoot topology apply`", found[0].Mend)
	require.Equal(t, "topology\n", do(db.URL, "doctor", "--problems", "-o", "name").stdout)
	require.Equal(t, cli.ExitDiffers, do(away, "doctor").code, "what is found counts more than what is away")

	require.Zero(t, do(db.URL, "topology", "apply", "--yes").code)
	require.Equal(t, result{0, "", "all is well\n"}, do(db.URL, "doctor", "--problems"))
	well := do(db.URL, "doctor")
	require.Zero(t, well.code, well.stderr)
	require.Regexp(t, `(?m)^OK +broker-version +broker +is RabbitMQ`, well.stdout)

	partly := do(away, "doctor", "--problems")
	require.Equal(t, cli.ExitUnreachable, partly.code, partly.stderr)
	require.Regexp(t, `(?m)^UNKNOWN +database +database +.*connection refused.*not looked at: schema,`, partly.stdout)
	require.NotContains(t, partly.stdout+partly.stderr, "hunter2")

	for _, args := range [][]string{{"--skip", "nonsense"}, {"--role", "nobody"}, {"--reservation-expiry", "-1s"}} {
		require.Equal(t, cli.ExitUsage, do(db.URL, append([]string{"doctor"}, args...)...).code, "%v", args)
	}
	none := run(t, env(""), "doctor", "--problems")
	require.Equal(t, cli.ExitPartly, none.code, "nothing is configured: %s", none.stderr)
}
