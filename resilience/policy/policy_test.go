package policy_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := policy.New(policy.Options{Name: "a b", Schema: "A", Settings: resilience.Settings{Timeout: -1, Bulkhead: resilience.Bulkhead{PerTenant: 21}}})
	require.ErrorContains(t, err, `policy: Name is "a b"; use 1 to 64 letters`)
	require.ErrorContains(t, err, "timeout is -1ns, but must be from 1ms to 1h0m0s")
	require.ErrorContains(t, err, "bulkhead.per_tenant is 21, but must be from 1 to 20")
	require.ErrorContains(t, err, "schema")
}

func TestSettingsThatNeverActAreWarnedAbout(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	_, err := policy.New(policy.Options{Name: "inventory", Logger: zerolog.New(&logged), Settings: resilience.Settings{Deadline: time.Second}})
	require.NoError(t, err)
	require.Contains(t, logged.String(), "timeout (2s) is not smaller than deadline (1s) around it")
}

func TestTheConfigurationGivesThePolicy(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "surefoot.yaml")
	require.NoError(t, os.WriteFile(file, []byte("database: {schema: shop}\ndependencies:\n  inventory:\n    deadline: 1200ms\n    breaker: {failures: 8, consecutive: true, probes: 2}\n"), 0o600))
	o, err := policy.FromConfig(file, "inventory")
	require.NoError(t, err)
	require.Equal(t, "shop", o.Schema)
	p, err := policy.New(o)
	require.NoError(t, err)
	require.Equal(t, 1200*time.Millisecond, p.Settings().Deadline)
	require.Equal(t, resilience.Breaker{Failures: 8, Consecutive: true, Open: 30 * time.Second, Probes: 2}, p.Settings().Breaker)
	_, err = policy.FromConfig(file, "catalog")
	require.ErrorContains(t, err, `"catalog" is not under dependencies in `+file)

	require.NoError(t, os.WriteFile(file, []byte("dependencies:\n  inventory:\n    retry: {attempts: 99}\n    breaker: {failure: 8}\n  a b: {}\n"), 0o600))
	_, err = policy.FromConfig(file, "inventory")
	require.ErrorContains(t, err, "surefoot.yaml:3: dependencies[inventory].retry.attempts: is 99, but must be from 1 to 20")
	require.ErrorContains(t, err, "surefoot.yaml:4: dependencies[inventory].breaker.failure: unknown key; did you mean failures?")
	require.ErrorContains(t, err, "surefoot.yaml:5: dependencies[a b]: is no name for a dependency")
}

// What one call costs when nothing is wrong and nobody waits, in processor time, which other work on the machine changes least;
// beside it a bare context.WithTimeout, which every call with a limit has to pay.
func BenchmarkOverhead(b *testing.B) {
	p, err := policy.New(policy.Options{Name: "inventory", Metrics: prometheus.NewRegistry()})
	require.NoError(b, err)
	fn := func(context.Context) error { return nil }
	call := policy.Call{Idempotent: true, Tenant: "shop"}
	for name, do := range map[string]func(ctx context.Context) error{
		"bare": fn,
		"timeout": func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return fn(ctx)
		},
		"policy": func(ctx context.Context) error { return p.Do(ctx, call, fn) },
	} {
		b.Run(name, func(b *testing.B) {
			ctx, cancel := resilience.WithBudget(b.Context(), time.Hour)
			defer cancel()
			b.ReportAllocs()
			before := processorTime(b)
			for b.Loop() {
				_ = do(ctx)
			}
			b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/1000/float64(b.N), "cpu-us/call")
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
