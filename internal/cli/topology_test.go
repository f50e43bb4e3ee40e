package cli_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// A dry run that could show what it would do is done, here as with every other command; plan is the one that compares.
func TestTopologyDryRunIsDoneAndPlanTellsDifferences(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	do := func(args ...string) result {
		e := env("topology: {exchange: x, queues: [{name: q, bindings: [a]}]}\n")
		e.Environ = []string{"SUREFOOT_AMQP_URL=" + broker.URL, "SUREFOOT_MANAGEMENT_URL=" + broker.ManagementURL}
		return run(t, e, append([]string{"topology"}, args...)...)
	}
	for range 2 { // the dry run changes nothing
		dry := do("apply", "--dry-run")
		require.Zero(t, dry.code, dry.stderr)
		require.Regexp(t, "^apply would make [0-9]+ changes; nothing was changed\n$", dry.stderr)
		require.Contains(t, dry.stdout, "q.dlq")
		plan := do("plan")
		require.Equal(t, cli.ExitDiffers, plan.code)
		require.Contains(t, plan.stderr, "surefoot.yaml and the broker differ: apply would make ")
		require.Equal(t, plan.stdout, dry.stdout)
	}
	require.Zero(t, do("apply", "--yes").code)
	require.Equal(t, result{0, "", "the broker is as surefoot.yaml wants it\n"}, do("apply", "--dry-run"))
	require.Zero(t, do("plan").code)
	require.Contains(t, do("apply", "--help").stdout, "exits 0")
}
