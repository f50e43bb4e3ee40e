package cli_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestConsumePauseResumeAndList(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	do := func(args ...string) result {
		e := env(`
topology:
  exchange: shop.events
  queues:
    - {name: orders.saga, bindings: ["order.#"]}
`)
		e.Environ = []string{"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema}
		return run(t, e, append([]string{"consume"}, args...)...)
	}
	states := func() (all []consumer.QueueState) {
		ls := do("ls", "-o", "json")
		require.Zero(t, ls.code, ls.stderr)
		require.NoError(t, json.Unmarshal([]byte(ls.stdout), &all))
		return all
	}

	require.Empty(t, states())
	require.Equal(t, cli.ExitUsage, do("pause").code)
	typo := do("pause", "--queue", "orders.sage", "--yes")
	require.Equal(t, cli.ExitUsage, typo.code)
	require.Contains(t, typo.stderr, "orders.sage is not in surefoot.yaml")
	require.Equal(t, cli.ExitUsage, do("pause", "--queue", "orders.saga").code, "no terminal, no --yes")
	require.Zero(t, do("pause", "--queue", "orders.saga", "--dry-run").code)
	require.Empty(t, states(), "nothing has changed so far")

	paused := do("pause", "--queue", "orders.saga", "--reason", "INC-7", "--as", "ann", "--yes")
	require.Zero(t, paused.code, paused.stderr)
	require.Contains(t, paused.stderr, "is paused")
	again := do("pause", "--queue", "orders.saga", "--as", "bob", "--yes")
	require.Zero(t, again.code)
	require.Contains(t, again.stderr, "paused already")
	all := states()
	require.Len(t, all, 1)
	require.Equal(t, "ann", all[0].Who)
	require.Equal(t, "INC-7", all[0].Reason)
	require.True(t, all[0].Paused)
	require.Contains(t, do("ls", "--queue", "orders.saga").stdout, "INC-7")

	require.Zero(t, do("resume", "--queue", "orders.saga", "--as", "bob", "--yes").code)
	require.Empty(t, states())
	var audited []string
	require.NoError(t, db.Pool.QueryRow(t.Context(),
		`SELECT array_agg(who || ' ' || action || ' ' || target || ' ' || reason ORDER BY id) FROM `+db.Schema+`.audit`).Scan(&audited))
	require.Equal(t, []string{"ann consume pause orders.saga INC-7", "bob consume resume orders.saga "}, audited)
}
