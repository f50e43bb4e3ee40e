package policy_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// The sum of attempts and waits is never over the budget, whatever fails and however it asks to wait.
func TestAttemptsAndWaitsStayWithinTheBudget(t *testing.T) {
	t.Parallel()
	testkit.Bubble(t, func(ctx context.Context, t *rapid.T) {
		draw := func(name string, from, to int) time.Duration { return ms(rapid.IntRange(from, to).Draw(t, name)) }
		settings := resilience.Settings{
			Deadline: draw("deadline", 25, 5000), Timeout: draw("timeout", 1, 3000),
			Retry:   resilience.Retry{Attempts: rapid.IntRange(1, 6).Draw(t, "attempts"), Base: draw("base", 1, 500), Max: draw("max", 500, 3000)},
			Breaker: resilience.Breaker{Failures: 1000},
		}
		p := newPolicy(t, settings)
		limit := draw("budget", 0, 6000)
		ctx, cancel := resilience.WithBudget(ctx, limit)
		defer cancel()
		began, total := time.Now(), min(limit, settings.Deadline)
		n := 0
		err := p.Do(ctx, policy.Call{Idempotent: true}, func(ctx context.Context) error {
			n++
			left := total - time.Since(began)
			require.GreaterOrEqual(t, left, resilience.MinAttempt, "an attempt started too late")
			own, limited := resilience.Left(ctx)
			require.True(t, limited)
			require.Equal(t, min(left, settings.Timeout), own, "an attempt gets what is left, at most its timeout")
			return fail(ctx, t, draw("work", 0, 4000))
		})
		require.LessOrEqual(t, time.Since(began), total)
		require.LessOrEqual(t, n, settings.Retry.Attempts)
		checkRecords(t, ctx, n, began, total)
		if err != nil {
			e := failureOf(t, err)
			require.Equal(t, n > 0, e.Called())
		}
	})
}

// fail works for a while and fails in one of the ways that dependencies have.
func fail(ctx context.Context, t *rapid.T, work time.Duration) error {
	timer := time.NewTimer(work)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	}
	switch rapid.IntRange(0, 4).Draw(t, "failure") {
	case 0:
		return nil
	case 1:
		return errRefused
	case 2:
		return &resilience.StatusError{Status: 429, After: ms(rapid.IntRange(0, 3000).Draw(t, "after"))}
	case 3:
		return errInternal
	}
	return resilience.RetryAfter(errPlain, time.Hour)
}

func checkRecords(t *rapid.T, ctx context.Context, n int, began time.Time, total time.Duration) { //nolint:revive // t first
	kept, forgotten := resilience.BudgetOf(ctx).Attempts()
	require.Zero(t, forgotten)
	require.Len(t, kept, n, "every attempt is recorded")
	for i, a := range kept {
		require.Equal(t, i+1, a.Number)
		require.Equal(t, "inventory", a.Dependency)
		require.Equal(t, total-a.Start.Sub(began), a.Left, "with what was left when it started")
		require.LessOrEqual(t, a.Took, a.Left)
		if i > 0 {
			require.False(t, a.Start.Before(kept[i-1].Start.Add(kept[i-1].Took)))
		}
	}
}

func TestThreeOutcomesOfACallThatWasCutShort(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		end  func(ctx context.Context) (context.Context, context.CancelFunc)
		want error
		code resilience.Code
		took time.Duration
	}{
		"the budget": {
			func(ctx context.Context) (context.Context, context.CancelFunc) {
				return resilience.WithBudget(ctx, 300*time.Millisecond)
			}, resilience.ErrDeadline, resilience.CodeDeadlineExceeded, 300 * time.Millisecond,
		},
		"our timeout": {
			context.WithCancel, resilience.ErrTimeout, resilience.CodeDependencyUnavailable, 500 * time.Millisecond,
		},
		"the caller": {
			func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(100*time.Millisecond, cancel)
				return ctx, cancel
			}, resilience.ErrCancelled, resilience.CodeDeadlineExceeded, 100 * time.Millisecond,
		},
		"a shutdown": {
			func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancelCause(ctx)
				time.AfterFunc(200*time.Millisecond, func() { cancel(resilience.ErrShutdown) })
				return ctx, func() { cancel(nil) }
			}, resilience.ErrShutdown, resilience.CodeOverloaded, 200 * time.Millisecond,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newPolicy(t, resilience.Settings{Timeout: 500 * time.Millisecond, Retry: resilience.Retry{Attempts: 1}})
				ctx, cancel := tt.end(t.Context())
				defer cancel()
				began := time.Now()
				e := failureOf(t, p.Do(ctx, policy.Call{}, hang))
				require.Equal(t, tt.took, time.Since(began))
				for _, one := range []error{resilience.ErrDeadline, resilience.ErrTimeout, resilience.ErrCancelled, resilience.ErrShutdown} {
					require.Equal(t, errors.Is(one, tt.want), errors.Is(e, one), one)
				}
				require.Equal(t, tt.code, e.Code())
				require.Equal(t, resilience.Classify(tt.want), e.Class)
				require.Equal(t, policy.EffectUnknown, e.Effect, "nobody knows what the dependency did")
			})
		})
	}
}

// A shutdown or a cancellation in a wait between attempts is told as what it is, with the failure that led there.
func TestWaitsEndWithTheCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, resilience.Settings{Deadline: time.Minute})
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(resilience.ErrShutdown) })
		began := time.Now()
		e := failureOf(t, p.Do(ctx, policy.Call{Idempotent: true}, func(context.Context) error {
			return &resilience.StatusError{Status: 503, After: 10 * time.Second}
		}))
		require.Equal(t, time.Second, time.Since(began))
		require.ErrorIs(t, e, resilience.ErrShutdown)
		require.Equal(t, resilience.ClassShutdown, e.Class)
		require.Equal(t, 503, resilience.StatusOf(e))
		require.Len(t, e.Attempts, 1)
	})
}

func TestNothingIsCalledWhenItIsTooLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, resilience.Settings{})
		ctx, cancel := resilience.WithBudget(t.Context(), resilience.MinAttempt-1)
		defer cancel()
		e := failureOf(t, p.Do(ctx, policy.Call{}, func(context.Context) error { panic("called") }))
		require.ErrorIs(t, e, resilience.ErrDeadline)
		require.Equal(t, resilience.CodeDeadlineExceeded, e.Code())
		require.Equal(t, policy.EffectNone, e.Effect)
		require.False(t, e.Called())
		require.ErrorContains(t, e, "call inventory: less than 25ms left: deadline of the operation exceeded (not called)")
	})
}

// A gateway, orders and a dependency, each with retries: only what the outer budget allows is called.
func TestLayersShareOneBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		layer := func(name string, deadline time.Duration, attempts int) *policy.Policy {
			p, err := policy.New(policy.Options{Name: name, Settings: resilience.Settings{
				Deadline: deadline, Timeout: deadline, Retry: resilience.Retry{Attempts: attempts},
			}})
			require.NoError(t, err)
			return p
		}
		gateway, orders, inventory := layer("gateway", 5*time.Second, 1), layer("orders", 3*time.Second, 1), layer("inventory", 2*time.Second, 3)
		ctx, cancel := resilience.WithBudget(t.Context(), 5*time.Second)
		defer cancel()
		began, called := time.Now(), 0
		err := gateway.Do(ctx, policy.Call{Idempotent: true}, func(ctx context.Context) error {
			return orders.Do(ctx, policy.Call{Idempotent: true}, func(ctx context.Context) error {
				return inventory.Do(ctx, policy.Call{Idempotent: true}, func(ctx context.Context) error {
					called++
					return errRefused
				})
			})
		})
		require.Error(t, err)
		require.LessOrEqual(t, time.Since(began), 5*time.Second)
		require.Equal(t, 3, called, "one layer retries: 3, not 27")
		kept, _ := resilience.BudgetOf(ctx).Attempts()
		require.Len(t, kept, 5, "one record for all layers")
	})
}
