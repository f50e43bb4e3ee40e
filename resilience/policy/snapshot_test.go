package policy_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

func run(t *testing.T, p *policy.Policy) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

func TestTransitionsAreWrittenForDiagnosis(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	p, err := policy.New(policy.Options{
		Name: "inventory", Pool: db.Pool, Schema: db.Schema, Host: "pod-1", Logger: testkit.Logger(t),
		Settings: resilience.Settings{Breaker: resilience.Breaker{Failures: 1, Open: time.Minute, PerInstance: true}},
	})
	require.NoError(t, err)
	run(t, p)
	look := func() []policy.Snapshot {
		list, err := policy.Snapshots(t.Context(), db.Pool, db.Schema)
		require.NoError(t, err)
		return list
	}
	testkit.Eventually(t, 10*time.Second, "the first snapshot", func() bool { return len(look()) == 1 })
	first := look()[0]
	require.Equal(t, "closed", first.State)
	require.Nil(t, first.Since)
	require.Contains(t, string(first.Settings), `"deadline": "6.3s"`)

	_ = p.Do(t.Context(), policy.Call{Instance: "10.0.0.7\x00\xff"}, func(context.Context) error { return errRefused })
	testkit.Eventually(t, 10*time.Second, "the transition", func() bool { return len(look()) == 2 })
	open := look()[1]
	require.Equal(t, [4]string{"pod-1", "inventory", "10.0.0.7?", "open"}, [4]string{open.Host, open.Dependency, open.Instance, open.State})
	require.Equal(t, "http status 503 Service Unavailable", *open.Reason)
	require.WithinDuration(t, open.Since.Add(time.Minute), *open.OpenUntil, 5*time.Second)
	require.Equal(t, 1, open.Failures)

	_, err = db.Pool.Exec(t.Context(), `UPDATE `+db.Schema+`.circuits SET host = 'gone', updated_at = updated_at - interval '8 days' WHERE instance = ''`)
	require.NoError(t, err)
	_ = p.Do(t.Context(), policy.Call{}, func(context.Context) error { return errRefused })
	testkit.Eventually(t, 10*time.Second, "processes that are gone are forgotten", func() bool {
		for _, s := range look() {
			if s.Host == "gone" {
				return false
			}
		}
		return len(look()) == 2
	})
}

// Calls go on, and say nothing but a warning, when there is no table to write to.
func TestDiagnosisIsNoReasonToFail(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	_, err := db.Pool.Exec(t.Context(), `DROP TABLE `+db.Schema+`.circuits`)
	require.NoError(t, err)
	var logged bytes.Buffer
	p, err := policy.New(policy.Options{Name: "inventory", Pool: db.Pool, Schema: db.Schema, Logger: zerolog.New(zerolog.SyncWriter(&logged))})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	require.NoError(t, p.Run(ctx))
	require.NoError(t, p.Do(t.Context(), policy.Call{}, func(context.Context) error { return nil }))
	require.Contains(t, logged.String(), "not written for diagnosis")
}

func TestWhatHappensIsLoggedAndCounted(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	registry := prometheus.NewRegistry()
	other, err := policy.New(policy.Options{Name: "catalog", Metrics: registry})
	require.NoError(t, err)
	calls(t.Context(), other, 2, nil)
	p, err := policy.New(policy.Options{
		Name: "inventory", Metrics: registry, Logger: zerolog.New(&logged),
		Settings: resilience.Settings{Retry: resilience.Retry{Attempts: 2, Base: time.Millisecond}, Breaker: resilience.Breaker{Failures: 1, Open: time.Hour}},
	})
	require.NoError(t, err)
	_ = p.Do(t.Context(), policy.Call{Idempotent: true}, func(context.Context) error { return errRefused })
	calls(t.Context(), p, 30, nil)
	lines := strings.Split(strings.TrimSpace(logged.String()), "\n")
	require.Len(t, lines, 12, "one retry, one transition, ten refusals of a second: %s", logged.String())
	require.Contains(t, lines[0], `"level":"warn","dependency":"inventory","attempt":2,"wait":"`)
	require.Contains(t, lines[1], `"level":"warn","dependency":"inventory","from":"closed","to":"open","failures":1,"open":"1h0m0s","error":"http status 503 Service Unavailable","message":"circuit state changed"`)
	require.Contains(t, lines[2], `"reason":"circuit-open","retry_after":"59m59.9`)
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP circuit_breaker_state State of the circuit to a dependency: 0 closed, 1 half-open, 2 open; the worst of its instances.
# TYPE circuit_breaker_state gauge
circuit_breaker_state{dependency="catalog"} 0
circuit_breaker_state{dependency="inventory"} 2
# HELP surefoot_calls_total Calls to a dependency, by result: done, the class of the failure, or why it was not made.
# TYPE surefoot_calls_total counter
surefoot_calls_total{dependency="catalog",result="done"} 2
surefoot_calls_total{dependency="inventory",result="done"} 0
surefoot_calls_total{dependency="inventory",result="circuit-open"} 30
surefoot_calls_total{dependency="inventory",result="transient"} 1
# HELP surefoot_calls_shed_total Calls that were refused to protect the dependency or this process, by reason.
# TYPE surefoot_calls_shed_total counter
surefoot_calls_shed_total{dependency="inventory",reason="circuit-open"} 30
# HELP surefoot_call_retries_total Attempts after the first.
# TYPE surefoot_call_retries_total counter
surefoot_call_retries_total{dependency="catalog"} 0
surefoot_call_retries_total{dependency="inventory"} 1
# HELP surefoot_bulkhead_limit Places for calls to a dependency.
# TYPE surefoot_bulkhead_limit gauge
surefoot_bulkhead_limit{dependency="catalog"} 20
surefoot_bulkhead_limit{dependency="inventory"} 20
# HELP surefoot_bulkhead_active Calls that have a place.
# TYPE surefoot_bulkhead_active gauge
surefoot_bulkhead_active{dependency="catalog"} 0
surefoot_bulkhead_active{dependency="inventory"} 0
`), "circuit_breaker_state", "surefoot_calls_total", "surefoot_calls_shed_total", "surefoot_call_retries_total", "surefoot_bulkhead_limit", "surefoot_bulkhead_active"))
}
