package policy_test

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// usage counts who runs, ordinary calls apart: a recovery call may come between an ordinary one's grant and its beginning.
type usage struct {
	mu       sync.Mutex
	running  int
	ordinary int
	tenants  map[string]int
	faults   []string
	limits   resilience.Bulkhead
}

func (u *usage) enter(c policy.Call) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.count(c, 1)
	fault := func(wrong bool, text string) {
		if wrong {
			u.faults = append(u.faults, text)
		}
	}
	fault(u.running > u.limits.Active, "more calls than places")
	fault(u.ordinary > u.limits.Active-u.limits.Reserve, "an ordinary call took a reserved place")
	fault(u.tenants[c.Tenant] > u.limits.PerTenant, "a tenant has more than its share")
}

func (u *usage) leave(c policy.Call) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.count(c, -1)
}

func (u *usage) count(c policy.Call, n int) {
	u.running += n
	if !c.Recovery {
		u.ordinary += n
		u.tenants[c.Tenant] += n
	}
}

// Never over the cap nor a share, whatever mixture of calls ends in whatever way; and no place is lost.
func TestBulkheadKeepsItsLimits(t *testing.T) {
	t.Parallel()
	testkit.Bubble(t, func(ctx context.Context, t *rapid.T) {
		active := rapid.IntRange(1, 6).Draw(t, "active")
		limits := resilience.Bulkhead{
			Active: active, Queue: rapid.SampledFrom([]int{-1, 1, 3, 10}).Draw(t, "queue"),
			PerTenant: rapid.IntRange(1, active).Draw(t, "share"), Reserve: rapid.IntRange(0, active-1).Draw(t, "reserve"),
		}
		p := newPolicy(t, resilience.Settings{Deadline: time.Second, Timeout: 900 * time.Millisecond, Bulkhead: limits, Breaker: resilience.Breaker{Failures: 10_000}})
		u := &usage{tenants: map[string]int{}, limits: limits}
		var callers sync.WaitGroup
		for range rapid.IntRange(1, 40).Draw(t, "calls") {
			c := policy.Call{Tenant: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "tenant"), Recovery: rapid.IntRange(0, 5).Draw(t, "recovery") == 0}
			// Few distinct times: what happens at one instant finds the races.
			lasts, cancelled := ms(100*rapid.IntRange(0, 4).Draw(t, "lasts")), ms(100*rapid.IntRange(0, 6).Draw(t, "cancelled"))
			panics := rapid.IntRange(0, 9).Draw(t, "panics") == 0
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, cancelled)
				defer cancel()
				defer func() { _ = recover() }()
				_ = p.Do(ctx, c, func(ctx context.Context) error {
					u.enter(c)
					defer u.leave(c)
					time.Sleep(lasts)
					if panics {
						panic("handler")
					}
					return ctx.Err()
				})
			})
			time.Sleep(ms(100 * rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "gap")))
		}
		callers.Wait()
		require.Empty(t, u.faults)
		fill(ctx, t, p, limits)
	})
}

// fill takes every place, which shows that none was lost.
func fill(ctx context.Context, t *rapid.T, p *policy.Policy, limits resilience.Bulkhead) {
	var callers sync.WaitGroup
	release := make(chan struct{})
	running := make(chan struct{}, limits.Active)
	for range limits.Active {
		callers.Go(func() {
			_ = p.Do(ctx, policy.Call{Recovery: true}, func(context.Context) error {
				running <- struct{}{}
				<-release
				return nil
			})
		})
	}
	synctest.Wait()
	got := len(running)
	close(release)
	callers.Wait()
	require.Equal(t, limits.Active, got, "places that can be taken afterwards")
}

// The drill's figures: 20 places, 40 may wait, 4 for a tenant; one tenant is noisy.
func TestAQuietTenantIsServedBesideANoisyOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, resilience.Settings{
			Deadline: 10 * time.Second, Timeout: 5 * time.Second, Bulkhead: resilience.Bulkhead{Active: 20, Queue: 40, PerTenant: 4, Reserve: 2},
		})
		var mu sync.Mutex
		running, most, done := 0, 0, 0
		var refused []error
		var callers sync.WaitGroup
		for range 100 {
			callers.Go(func() {
				err := p.Do(t.Context(), policy.Call{Tenant: "noisy"}, func(context.Context) error {
					mu.Lock()
					running++
					most = max(most, running)
					mu.Unlock()
					time.Sleep(time.Second)
					mu.Lock()
					defer mu.Unlock()
					running--
					done++
					return nil
				})
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					refused = append(refused, err)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		require.NoError(t, p.Do(t.Context(), policy.Call{Tenant: "quiet"}, func(context.Context) error { return nil }))
		require.Zero(t, time.Since(began), "the quiet tenant does not wait")
		callers.Wait()
		require.Equal(t, 4, most, "the noisy tenant never has more than its share")
		require.Equal(t, 12, done, "and as many wait as its share of the queue allows")
		require.Len(t, refused, 88)
		for _, err := range refused {
			e := failureOf(t, err)
			require.Equal(t, resilience.CodeDependencyOverloaded, e.Code())
			require.Positive(t, e.RetryAfter())
			require.ErrorIs(t, e, bulkhead.ErrFull)
			require.Equal(t, policy.EffectNone, e.Effect)
		}
	})
}

func TestWaitingTenantsAreServedInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, resilience.Settings{Deadline: time.Minute, Timeout: 5 * time.Second, Bulkhead: resilience.Bulkhead{Active: 1, Queue: 20}})
		var order []string
		var callers sync.WaitGroup
		call := func(c policy.Call) {
			callers.Go(func() {
				_ = p.Do(t.Context(), c, func(context.Context) error {
					order = append(order, c.Tenant)
					time.Sleep(time.Second)
					return nil
				})
			})
			synctest.Wait()
		}
		for range 4 {
			call(policy.Call{Tenant: "a"})
		}
		call(policy.Call{Tenant: "b"})
		call(policy.Call{Tenant: "c"})
		call(policy.Call{Tenant: "repair", Recovery: true})
		callers.Wait()
		require.Equal(t, []string{"a", "repair", "a", "b", "c", "a", "a"}, order)
	})
}

func TestWaitingEndsInTimeForAnAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, resilience.Settings{Deadline: time.Minute, Timeout: 30 * time.Second, Retry: resilience.Retry{Attempts: 1}, Bulkhead: resilience.Bulkhead{Active: 1}})
		release := make(chan struct{})
		go func() {
			_ = p.Do(t.Context(), policy.Call{}, func(context.Context) error {
				<-release
				return nil
			})
		}()
		synctest.Wait()
		ctx, cancel := resilience.WithBudget(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		e := failureOf(t, p.Do(ctx, policy.Call{}, hang))
		require.Equal(t, time.Second-resilience.MinAttempt, time.Since(began))
		require.Equal(t, resilience.CodeDependencyOverloaded, e.Code())

		ctx, stop := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { stop(resilience.ErrShutdown) })
		e = failureOf(t, p.Do(ctx, policy.Call{}, hang))
		require.ErrorIs(t, e, resilience.ErrShutdown)
		close(release)
		synctest.Wait()
	})
}

// While the circuit is not closed its probe gets a reserved place, though all others hang.
func TestProbesHaveAPlaceKeptForThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, resilience.Settings{
			Deadline: time.Hour, Timeout: time.Hour, Retry: resilience.Retry{Attempts: 1},
			Breaker: resilience.Breaker{Failures: 1, Open: time.Second}, Bulkhead: resilience.Bulkhead{Active: 2, Reserve: 1, Queue: -1},
		})
		release := make(chan struct{})
		go func() {
			_ = p.Do(t.Context(), policy.Call{}, func(context.Context) error {
				<-release
				return nil
			})
		}()
		synctest.Wait()
		e := failureOf(t, p.Do(t.Context(), policy.Call{}, hang))
		require.Equal(t, resilience.CodeDependencyOverloaded, e.Code(), "the last place is reserved")
		require.Error(t, p.Do(t.Context(), policy.Call{Recovery: true}, func(context.Context) error { return errRefused }))
		require.Equal(t, policy.Open, p.State())
		time.Sleep(time.Second)
		require.NoError(t, p.Do(t.Context(), policy.Call{}, func(context.Context) error { return nil }), "a probe may take it")
		require.Equal(t, policy.Closed, p.State())
		close(release)
		synctest.Wait()
	})
}

func TestAPanicPassesThroughAndGivesThePlaceBack(t *testing.T) {
	t.Parallel()
	p := newPolicy(t, resilience.Settings{Bulkhead: resilience.Bulkhead{Active: 1, Queue: -1}})
	for n := range 5 {
		require.PanicsWithValue(t, strconv.Itoa(n), func() {
			_ = p.Do(t.Context(), policy.Call{}, func(context.Context) error { panic(strconv.Itoa(n)) })
		})
	}
	require.NoError(t, p.Do(t.Context(), policy.Call{}, func(context.Context) error { return nil }))
}

func TestAHungDependencyHoldsAPlaceForTheTimeoutOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, resilience.Settings{
			Timeout: 300 * time.Millisecond, Deadline: 10 * time.Second, Retry: resilience.Retry{Attempts: 1},
			Breaker: resilience.Breaker{Failures: 100}, Bulkhead: resilience.Bulkhead{Active: 2},
		})
		began, timedOut := time.Now(), 0
		var mu sync.Mutex
		var callers sync.WaitGroup
		for range 6 {
			callers.Go(func() {
				err := p.Do(t.Context(), policy.Call{}, hang)
				mu.Lock()
				defer mu.Unlock()
				if errors.Is(err, resilience.ErrTimeout) {
					timedOut++
				}
			})
		}
		callers.Wait()
		require.Equal(t, 6, timedOut)
		require.Equal(t, 900*time.Millisecond, time.Since(began))
	})
}

// A place that is handed to a call just as that goes away is handed on.
func TestAPlaceGrantedToACallThatLeavesIsNotLost(t *testing.T) {
	t.Parallel()
	p := newPolicy(t, resilience.Settings{Deadline: time.Minute, Bulkhead: resilience.Bulkhead{Active: 1}})
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		_ = p.Do(t.Context(), policy.Call{}, func(context.Context) error {
			callers.Go(func() { _ = p.Do(ctx, policy.Call{}, func(context.Context) error { return nil }) })
			for _, queued := p.Places(); queued == 0; _, queued = p.Places() {
				runtime.Gosched()
			}
			cancel() // wakes the waiting call, whose place comes before it runs
			return nil
		})
		callers.Wait()
		active, queued := p.Places()
		require.Zero(t, active+queued)
	}
}
