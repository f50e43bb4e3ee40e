package cli_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
)

// Whoever mistypes a queue, a run or a cause gets to know the one that was likely meant.
func TestNamesThatWereLikelyMeant(t *testing.T) {
	t.Parallel()
	s := newDLQStage(t)
	s.letter("one", "order.paid", "x")
	got := s.run("redrive", "--queue", "orders.saga", "--dry-run", "-o", "json")
	require.Zero(t, got.code, got.stderr)
	plan := runOf(t, got.stdout)

	for name, tt := range map[string]struct {
		args []string
		code int
		says string
	}{
		"a queue":                   {[]string{"show", "--queue", "orders.sagas"}, cli.ExitFailed, "hint: did you mean orders.saga?"},
		"a queue's end":             {[]string{"show", "--queue", "saga"}, cli.ExitFailed, "hint: did you mean orders.saga?"},
		"a dead-letter queue":       {[]string{"redrive", "--queue", "order.saga.dlq", "--yes"}, cli.ExitFailed, "hint: did you mean orders.saga?"},
		"nothing like it":           {[]string{"show", "--queue", "billing"}, cli.ExitFailed, "check the name with `surefoot dlq ls --all`"},
		"of a list":                 {[]string{"groups", "--queue", "orders.sgaa"}, cli.ExitDone, "queue orders.sgaa is not known; did you mean orders.saga?"},
		"of runs":                   {[]string{"runs", "ls", "--queue", "orders.sgaa"}, cli.ExitDone, "queue orders.sgaa is not known; did you mean orders.saga?"},
		"a run that was cut off":    {[]string{"runs", "show", plan[:20]}, cli.ExitUsage, "hint: did you mean " + plan + "?"},
		"a run with a slip":         {[]string{"runs", "cancel", plan[:35] + "x", "--yes"}, cli.ExitUsage, "hint: did you mean " + plan + "?"},
		"a plan with another digit": {[]string{"redrive", "--plan", plan[:35] + string('0'+(plan[35]+1)%8), "--yes"}, cli.ExitFailed, "hint: did you mean " + plan + "?"},
		"a cause":                   {[]string{"redrive", "--queue", "orders.saga", "--fingerprint", "nope", "--yes"}, cli.ExitDone, "no group has the fingerprint nope; see `surefoot dlq groups"},
	} {
		t.Run(name, func(t *testing.T) {
			got := s.run(tt.args...)
			require.Equal(t, tt.code, got.code, got.stderr)
			require.Contains(t, got.stderr, tt.says)
		})
	}
}

// What is missing is named at once, not one thing at each try.
func TestAllThatIsMissingIsNamedAtOnce(t *testing.T) {
	t.Parallel()
	config := fmt.Sprintf(versionConfig, "a") + "    - {name: r2, table: a.sagas, key: id, status: status, stuck: [a], clock: at, limit: 1s, new_status: b, reason: R, exchange: x, event_type: a}\n"
	e := env(config)
	e.Environ = []string{"SUREFOOT_DATABASE_URL=postgres://ann@127.0.0.1:1/d", "SUREFOOT_AMQP_URL=amqp://ann@127.0.0.1:1/"}
	for line, says := range map[string]string{
		"watchdog extend":            "watchdog extend needs keys or --all, --rule, --by and --reason",
		"watchdog extend k --by 1m":  "watchdog extend needs --rule and --reason",
		"watchdog cancel --rule r":   "watchdog cancel needs keys or --all and --reason",
		"dlq discard":                "dlq discard needs --queue and --reason",
		"dlq edit":                   "dlq edit needs --queue, --id and --reason",
		"dlq edit --id a --queue q":  "dlq edit needs --reason",
		"dlq restore":                "dlq restore needs --queue and --operation or --id",
		"outbox discard":             "discard needs --reason and rows (ids, --state, --key or --type)",
		"outbox discard --reason no": "discard needs rows (ids, --state, --key or --type)",
	} {
		got := run(t, e, strings.Fields(line)...)
		require.Equal(t, cli.ExitUsage, got.code, line)
		require.Contains(t, got.stderr, says, line)
	}
}
