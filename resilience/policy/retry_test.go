package policy_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// What is tried again, what that means for the circuit, and what may have happened, one row per rule of scenarios section A.
func TestWhatIsTriedAgain(t *testing.T) {
	t.Parallel()
	dial := func(number syscall.Errno) error {
		return &url.Error{Op: "Post", URL: "http://x", Err: &net.OpError{Op: "dial", Err: number}}
	}
	read := func(number syscall.Errno) error {
		return &url.Error{Op: "Post", URL: "http://x", Err: &net.OpError{Op: "read", Err: number}}
	}
	status := func(code int) error { return fmt.Errorf("reserve: %w", &resilience.StatusError{Status: code}) }
	state := func(code string) error { return &pgconn.PgError{Code: code} }
	const none, unknown, answered = policy.EffectNone, policy.EffectUnknown, policy.EffectAnswered
	for name, tt := range map[string]struct {
		err      error
		attempts int
		opens    bool
		effect   policy.Effect
		code     resilience.Code
	}{
		"refused":            {dial(syscall.ECONNREFUSED), 3, true, none, resilience.CodeDependencyUnavailable},
		"reset":              {read(syscall.ECONNRESET), 3, true, unknown, resilience.CodeDependencyUnavailable},
		"name server busy":   {&net.DNSError{IsTemporary: true}, 3, true, none, resilience.CodeDependencyUnavailable},
		"no such host":       {&net.DNSError{IsNotFound: true}, 1, true, none, resilience.CodeDependencyUnavailable},
		"408":                {status(408), 3, true, unknown, resilience.CodeDependencyUnavailable},
		"429":                {status(429), 3, true, none, resilience.CodeDependencyUnavailable},
		"503":                {status(503), 3, true, none, resilience.CodeDependencyUnavailable},
		"502":                {status(502), 3, true, unknown, resilience.CodeDependencyError},
		"504":                {status(504), 3, true, unknown, resilience.CodeDependencyUnavailable},
		"500 once":           {status(500), 2, true, unknown, resilience.CodeDependencyError},
		"501":                {status(501), 1, true, unknown, resilience.CodeDependencyError},
		"400":                {status(400), 1, false, answered, resilience.CodeDependencyError},
		"402":                {status(402), 1, false, answered, resilience.CodeDependencyError},
		"404":                {status(404), 1, false, answered, resilience.CodeDependencyError},
		"409":                {status(409), 1, false, answered, resilience.CodeDependencyError},
		"deadlock":           {state("40P01"), 3, false, none, resilience.CodeDependencyUnavailable},
		"serialisation":      {state("40001"), 3, false, none, resilience.CodeDependencyUnavailable},
		"lock not available": {state("55P03"), 3, true, unknown, resilience.CodeDependencyUnavailable},
		"cannot connect now": {state("57P03"), 3, true, unknown, resilience.CodeDependencyUnavailable},
		"connection failure": {state("08006"), 3, true, unknown, resilience.CodeDependencyUnavailable},
		"no statement":       {state("42601"), 1, true, unknown, resilience.CodeDependencyError},
		"plain":              {errPlain, 1, true, unknown, resilience.CodeDependencyError},
		"marked permanent":   {resilience.Permanent(read(syscall.ECONNRESET)), 1, false, answered, resilience.CodeDependencyError},
		"marked transient":   {resilience.RetryAfter(errPlain, 0), 3, true, unknown, resilience.CodeDependencyUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newPolicy(t, resilience.Settings{Breaker: resilience.Breaker{Failures: 1}})
				tried := 0
				e := failureOf(t, p.Do(t.Context(), policy.Call{Idempotent: true}, func(context.Context) error {
					tried++
					return tt.err
				}))
				require.Equal(t, tt.attempts, tried)
				require.Len(t, e.Attempts, tried)
				require.ErrorIs(t, e, tt.err)
				require.Equal(t, tt.opens, p.State() == policy.Open)
				require.Equal(t, tt.effect, e.Effect)
				require.Equal(t, tt.code, e.Code())
				require.Equal(t, e.Class, resilience.Classify(e), "the consumer sees what the call saw")

				again := newPolicy(t, resilience.Settings{})
				tried = 0
				require.Error(t, again.Do(t.Context(), policy.Call{}, func(context.Context) error {
					tried++
					return tt.err
				}))
				require.Equal(t, 1, tried, "never without idempotency")
			})
		})
	}
}

// An effect that may have happened in any attempt stays possible, until the dependency decides.
func TestAnUnknownEffectIsNotForgottenByALaterRefusal(t *testing.T) {
	t.Parallel()
	outcome := func(errs ...error) *policy.Error {
		p := newPolicy(t, resilience.Settings{Retry: resilience.Retry{Base: time.Millisecond}})
		n := 0
		return failureOf(t, p.Do(t.Context(), policy.Call{Idempotent: true}, func(context.Context) error {
			n++
			return errs[n-1]
		}))
	}
	reset := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	require.Equal(t, policy.EffectUnknown, outcome(reset, errRefused, errRefused).Effect)
	require.Equal(t, policy.EffectNone, outcome(errRefused, errRefused, errRefused).Effect)
	require.Equal(t, policy.EffectAnswered, outcome(reset, &resilience.StatusError{Status: 402}).Effect)
}

func TestWaitsAreFullJitterUnderTheCapAndAboveRetryAfter(t *testing.T) {
	t.Parallel()
	waits := func(ctx context.Context, after time.Duration) (all [][]time.Duration) {
		p := newPolicy(t, resilience.Settings{
			Deadline: time.Hour, Breaker: resilience.Breaker{Failures: 10_000},
			Retry: resilience.Retry{Attempts: 5, Base: 100 * time.Millisecond, Max: 300 * time.Millisecond},
		})
		for range 200 {
			ended, row := time.Time{}, []time.Duration{}
			_ = p.Do(ctx, policy.Call{Idempotent: true}, func(context.Context) error {
				if !ended.IsZero() {
					row = append(row, time.Since(ended))
				}
				ended = time.Now()
				return &resilience.StatusError{Status: 503, After: after}
			})
			all = append(all, row)
		}
		return all
	}
	for _, after := range []time.Duration{0, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			caps := []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond, 300 * time.Millisecond}
			least, most := slices.Repeat([]time.Duration{time.Hour}, 4), make([]time.Duration, 4)
			for _, row := range waits(t.Context(), after) {
				require.Len(t, row, 4)
				for i, wait := range row {
					jitter := wait - after
					require.GreaterOrEqual(t, jitter, time.Duration(0))
					require.LessOrEqual(t, jitter, caps[i])
					least[i], most[i] = min(least[i], jitter), max(most[i], jitter)
				}
			}
			for i := range caps {
				require.Less(t, least[i], caps[i]/10, "spread from nothing")
				require.Greater(t, most[i], caps[i]*9/10, "to the whole")
			}
		})
	}
}

func TestClassifierOfThePolicy(t *testing.T) {
	t.Parallel()
	p, err := policy.New(policy.Options{
		Name: "inventory", Settings: resilience.Settings{Retry: resilience.Retry{Base: time.Millisecond}},
		Classifier: func(err error) resilience.Class {
			if errors.Is(err, errPlain) {
				return resilience.ClassTransient
			}
			return resilience.ClassNone
		},
	})
	require.NoError(t, err)
	tried := 0
	e := failureOf(t, p.Do(t.Context(), policy.Call{Idempotent: true}, func(context.Context) error {
		tried++
		return errPlain
	}))
	require.Equal(t, 3, tried)
	require.Equal(t, resilience.ClassTransient, e.Class)
	require.EqualError(t, e, "call inventory: odd (3 attempts)")
}
