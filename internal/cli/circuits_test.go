package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// What processes write of their circuits is there for whoever looks for the reason of an outage.
func TestCircuitsLs(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	e := env("")
	e.Environ = []string{"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema}
	none := run(t, e, "circuits", "ls", "-o", "json")
	require.Zero(t, none.code, none.stderr)
	require.JSONEq(t, "[]", none.stdout)

	for _, name := range []string{"inventory", "mail"} {
		p, err := policy.New(policy.Options{
			Name: name, Pool: db.Pool, Schema: db.Schema, Host: "box-1",
			Settings: resilience.Settings{Breaker: resilience.Breaker{Failures: 1, Consecutive: true, Open: time.Hour}},
		})
		require.NoError(t, err)
		if name == "inventory" {
			require.Error(t, p.Do(t.Context(), policy.Call{}, func(context.Context) error { return errors.New("away \x1b[31m") }))
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		testkit.Eventually(t, 10*time.Second, "the circuit to be told of", func() bool {
			list, err := policy.Snapshots(t.Context(), db.Pool, db.Schema)
			return err == nil && len(list) > 0 && list[len(list)-1].Dependency == name
		})
		stop()
		require.NoError(t, <-ended)
	}
	require.Equal(t, "inventory\nmail\n", run(t, e, "circuits", "ls", "-o", "name").stdout)
	require.Equal(t, "mail\n", run(t, e, "circuits", "ls", "--dependency", "mail", "-o", "name").stdout)
	var open []policy.Snapshot
	got := run(t, e, "circuits", "ls", "--open", "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &open), got.stderr)
	require.Len(t, open, 1)
	require.Equal(t, "open", open[0].State)
	require.NotNil(t, open[0].OpenUntil)
	require.Contains(t, string(open[0].Settings), `"failures": 1`)
	table := run(t, e, "circuits", "ls")
	require.Regexp(t, `(?m)^inventory +- +box-1 +open `, table.stdout)
	require.Contains(t, table.stdout, "away")
	require.NotContains(t, table.stdout, "\x1b", "a reason is escaped")
	require.Contains(t, run(t, e, "circuits", "ls", "--dependency", "nobody").stderr, "no process has told")
}
