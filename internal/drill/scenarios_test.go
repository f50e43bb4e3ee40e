package drill_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/drill"
)

// scenarios are the rows of the table of scenarios, in its order, and the game day.
var scenarios = strings.Fields(`
	retry-storm rate-limit polite-client circuit-breaker bulkhead timeout fallback budget tenant-bulkhead one-reservation dependency-down
	uncertain-outcome key-conflict reconciliation durable-reconciliation compensation breaker-recovery
	dual-write competing-relays lease-expiry poison-outbox
	transient-503 poison-message deadlock retries-exhausted duplicate-delivery redrive late-payment slow-consumer
	payment-timeout reservation-reconcile broker-outage sigterm kill-9 bad-config
	game-day`)

func TestEveryScenarioHasItsDrill(t *testing.T) {
	t.Parallel()
	var names []string
	for _, d := range drill.All() {
		names = append(names, d.Name)
		found, ok := drill.Find(d.Name)
		require.True(t, ok)
		require.Equal(t, d.Proves, found.Proves)
	}
	require.Equal(t, scenarios, names)
}

func TestDrillsThatStopAServiceRefuseWhatIsNotTheStacks(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Stack = drill.Stack{Script: "/nowhere/scripts/stack", Dir: "/nowhere/.stack", Env: "export SUREFOOT_AMQP_URL='amqp://elsewhere/'"}
	runner, err := drill.New(o)
	require.NoError(t, err)
	reports, err := runner.Run(t.Context(), []drill.Drill{named(t, "broker-outage")})
	require.NoError(t, err)
	require.Equal(t, drill.Refused, reports[0].Verdict)
	require.Contains(t, reports[0].Reason, "not those of the local stack")
	require.Empty(t, reports[0].Arms)
}
