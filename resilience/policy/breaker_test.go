package policy_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// pending is a call that is under way until the test decides.
type pending struct {
	finish chan error
	done   chan error
	began  bool // it was let through
	era    int
	probe  bool
}

// machine drives a policy with calls that overlap, beside a model of its breaker.
type machine struct {
	policy *policy.Policy
	limits resilience.Breaker
	open   []*pending

	state     policy.State
	era       int
	row       int         // failures in a row
	failures  []time.Time // in the window
	openedAt  time.Time
	probing   int
	successes int
}

func (m *machine) begin(ctx context.Context) *pending {
	c := &pending{finish: make(chan error, 1), done: make(chan error, 1)}
	started := make(chan struct{})
	go func() {
		c.done <- m.policy.Do(ctx, policy.Call{Recovery: true}, func(context.Context) error {
			close(started)
			return <-c.finish
		})
	}()
	synctest.Wait()
	select {
	case <-started:
		c.began = true
	default:
	}
	return c
}

// start is the action "a call comes".
func (m *machine) start(ctx context.Context, t *rapid.T) {
	if len(m.open) >= 8 {
		return
	}
	if m.state == policy.Open && time.Since(m.openedAt) >= m.limits.Open {
		m.turn(policy.HalfOpen)
	}
	want := m.state == policy.Closed || m.state == policy.HalfOpen && m.probing < m.limits.Probes
	c := m.begin(ctx)
	require.Equal(t, want, c.began, "let through while %s, %d probes", m.state, m.probing)
	if !c.began {
		err := <-c.done
		require.Equal(t, resilience.ClassUnavailable, resilience.Classify(err))
		require.Equal(t, resilience.CodeDependencyUnavailable, resilience.CodeOf(err))
		if m.state == policy.Open {
			require.Equal(t, m.limits.Open-time.Since(m.openedAt), failureOf(t, err).After, "Retry-After is the open time that is left")
		}
		return
	}
	c.era, c.probe = m.era, m.state == policy.HalfOpen
	if c.probe {
		m.probing++
	}
	m.open = append(m.open, c)
}

// end is the action "a call returns".
func (m *machine) end(t *rapid.T) {
	if len(m.open) == 0 {
		return
	}
	at := rapid.IntRange(0, len(m.open)-1).Draw(t, "call")
	c := m.open[at]
	m.open = append(m.open[:at:at], m.open[at+1:]...)
	outcome := rapid.SampledFrom([]error{nil, errNotFound, errRefused, context.Canceled}).Draw(t, "outcome")
	c.finish <- outcome
	returned := <-c.done
	require.Equal(t, outcome == nil, returned == nil)
	if c.era != m.era {
		return // begun before the last change: proves nothing
	}
	if c.probe {
		m.probing--
	}
	switch {
	case errors.Is(outcome, context.Canceled):
		if c.probe {
			m.successes = 0 // the half-open state begins anew
		}
	case outcome == nil, errors.Is(outcome, errNotFound):
		m.success()
	default:
		m.failure()
	}
}

func (m *machine) success() {
	m.row = 0
	if m.state == policy.HalfOpen {
		if m.successes++; m.successes == m.limits.Probes {
			m.turn(policy.Closed)
		}
	}
}

func (m *machine) failure() {
	m.row++
	m.failures = append(m.failures, time.Now())
	switch {
	case m.state == policy.HalfOpen, m.limits.Consecutive && m.row >= m.limits.Failures:
		m.turn(policy.Open)
	case !m.limits.Consecutive:
		m.windowed()
	}
}

// windowed follows what is exact to a tenth of the window: between the two bounds the breaker decides.
func (m *machine) windowed() {
	within := func(span time.Duration) (n int) {
		for _, at := range m.failures {
			if time.Since(at) < span {
				n++
			}
		}
		return n
	}
	surely, perhaps := within(m.limits.Window*9/10) >= m.limits.Failures, within(m.limits.Window) >= m.limits.Failures
	opened := m.policy.Circuits()[0].State == policy.Open
	if surely || perhaps && opened {
		m.turn(policy.Open)
	}
}

func (m *machine) turn(to policy.State) {
	m.state, m.era, m.probing, m.successes, m.row, m.failures = to, m.era+1, 0, 0, 0, nil
	m.openedAt = time.Now()
}

func (m *machine) check(t *rapid.T) {
	got := m.policy.Circuits()
	require.Len(t, got, 1)
	require.Equal(t, m.state, got[0].State)
	require.Equal(t, m.state, m.policy.State())
}

// The breaker goes through the states of a model, with calls that overlap its changes, that cancel, and that come back late.
func TestBreakerFollowsItsModel(t *testing.T) {
	t.Parallel()
	testkit.Bubble(t, func(ctx context.Context, t *rapid.T) {
		m := &machine{limits: resilience.Breaker{
			Failures: rapid.SampledFrom([]int{1, 1, 2, 3, 4}).Draw(t, "failures"), Consecutive: rapid.Bool().Draw(t, "consecutive"),
			Open: ms(rapid.IntRange(1, 400).Draw(t, "open")), Probes: rapid.IntRange(1, 3).Draw(t, "probes"),
		}}
		if !m.limits.Consecutive {
			m.limits.Window = ms(100 * rapid.IntRange(1, 10).Draw(t, "window"))
		}
		m.policy = newPolicy(t, resilience.Settings{Deadline: time.Hour, Timeout: 30 * time.Minute, Retry: resilience.Retry{Attempts: 1}, Breaker: m.limits})
		defer func() {
			for _, c := range m.open {
				c.finish <- nil
				require.NoError(t, <-c.done)
			}
		}()
		t.Repeat(map[string]func(*rapid.T){
			"start": func(t *rapid.T) { m.start(ctx, t) },
			"end":   m.end,
			"wait":  func(t *rapid.T) { time.Sleep(ms(rapid.IntRange(1, 600).Draw(t, "wait"))) },
			"":      m.check,
		})
	})
}

// A probe whose caller went away proves nothing: the next call is the probe, without another wait for an open circuit, and never
// more than the limit at a time.
func TestAProbeThatProvedNothingGivesItsTurnBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &machine{policy: newPolicy(t, resilience.Settings{
			Deadline: time.Hour, Timeout: time.Hour, Retry: resilience.Retry{Attempts: 1}, Breaker: resilience.Breaker{Failures: 1, Open: time.Second, Probes: 2},
		})}
		calls(t.Context(), m.policy, 1, errRefused)
		time.Sleep(time.Second)
		left, stays := m.begin(t.Context()), m.begin(t.Context())
		require.True(t, left.began && stays.began)
		refused := m.begin(t.Context())
		require.False(t, refused.began)
		require.Error(t, <-refused.done)

		left.finish <- context.Canceled
		require.Error(t, <-left.done)
		require.Equal(t, policy.HalfOpen, m.policy.State())
		next, fourth := m.begin(t.Context()), m.begin(t.Context())
		require.True(t, next.began, "its turn is free again")
		require.False(t, fourth.began, "one of two is still under way")
		require.Error(t, <-fourth.done)
		for _, c := range []*pending{stays, next} {
			c.finish <- nil
			require.NoError(t, <-c.done)
		}
		require.Equal(t, policy.Closed, m.policy.State())
	})
}

func TestAnswersDoNotOpenTheCircuit(t *testing.T) {
	t.Parallel()
	p := newPolicy(t, resilience.Settings{Breaker: resilience.Breaker{Failures: 2}})
	calls(t.Context(), p, 10, errNotFound)
	calls(t.Context(), p, 10, resilience.Permanent(errPlain))
	require.Equal(t, policy.Closed, p.State())
	calls(t.Context(), p, 2, errRefused)
	require.Equal(t, policy.Open, p.State())
}

// Two dependencies are asked at the same time, and the first failure ends the other call. net/http returns the cause of that end.
func TestTheFailureOfASiblingProvesNothing(t *testing.T) {
	t.Parallel()
	p := newPolicy(t, resilience.Settings{Breaker: resilience.Breaker{Failures: 1}})
	sibling := fmt.Errorf("ask catalog: %w", &resilience.StatusError{Status: 503})
	for range 3 {
		ctx, end := context.WithCancelCause(t.Context())
		err := p.Do(ctx, policy.Call{}, func(ctx context.Context) error {
			end(sibling)
			<-ctx.Done()
			return fmt.Errorf("get: %w", context.Cause(ctx))
		})
		require.Equal(t, resilience.ClassCancelled, resilience.Classify(err))
		require.ErrorIs(t, err, sibling)
	}
	require.Equal(t, policy.Closed, p.State())
}

// Callers that give no time, or go away, must not open the circuit for everybody.
func TestTinyBudgetsDoNotOpenTheCircuit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, resilience.Settings{Timeout: time.Second, Breaker: resilience.Breaker{Failures: 1}})
		call := func(budget time.Duration) {
			ctx, cancel := resilience.WithBudget(t.Context(), budget)
			defer cancel()
			require.Error(t, p.Do(ctx, policy.Call{}, hang))
		}
		for range 20 {
			call(499 * time.Millisecond)
		}
		require.Equal(t, policy.Closed, p.State())
		call(500 * time.Millisecond)
		require.Equal(t, policy.Open, p.State(), "half of an attempt's time is a fair chance")
	})
}

func TestSlowSuccessesMayCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, resilience.Settings{Timeout: 2 * time.Second, Breaker: resilience.Breaker{Failures: 2, Slow: time.Second}})
		for range 2 {
			require.NoError(t, p.Do(t.Context(), policy.Call{}, func(context.Context) error {
				time.Sleep(time.Second)
				return nil
			}), "the caller has its answer")
		}
		require.Equal(t, policy.Open, p.State())
		require.Equal(t, "answered after 1s, slower than 1s", p.Circuits()[0].Reason)
	})
}

func TestOneBadInstanceIsLeftOutAlone(t *testing.T) {
	t.Parallel()
	p := newPolicy(t, resilience.Settings{Breaker: resilience.Breaker{Failures: 1, PerInstance: true}})
	call := func(instance string, err error) error {
		return p.Do(t.Context(), policy.Call{Instance: instance}, func(context.Context) error { return err })
	}
	require.Error(t, call("a", errRefused))
	require.Equal(t, resilience.ClassUnavailable, resilience.Classify(call("a", nil)))
	require.NoError(t, call("b", nil))
	require.NoError(t, call("", nil))
	require.Equal(t, policy.Open, p.State(), "the worst is shown")
	for n := range 200 {
		require.NoError(t, call(fmt.Sprintf("replica-%d", n), nil))
	}
	require.Len(t, p.Circuits(), 65, "instances are bounded, with the whole dependency's own")
}

func TestAnOpenCircuitEndsTheRetriesOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, resilience.Settings{Retry: resilience.Retry{Attempts: 5, Base: time.Second}, Breaker: resilience.Breaker{Failures: 1}})
		tried := 0
		err := p.Do(t.Context(), policy.Call{Idempotent: true}, func(ctx context.Context) error {
			if tried++; tried == 2 {
				calls(ctx, p, 1, errRefused)
			}
			return errRefused
		})
		require.Error(t, err)
		require.Equal(t, 2, tried)
	})
}

// The drill's figures: 12 operations of 4 attempts, 250 ms apart, the dependency down for 350 ms.
func TestCallersThatRetryThemselvesAskTheBreakerFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, resilience.Settings{
			Retry:   resilience.Retry{Attempts: 1},
			Breaker: resilience.Breaker{Failures: 3, Consecutive: true, Open: 200 * time.Millisecond},
		})
		began := time.Now()
		made, shed, done := 0, 0, 0
		for range 12 {
			for range 4 {
				err := p.Do(t.Context(), policy.Call{}, func(context.Context) error {
					made++
					if time.Since(began) < 350*time.Millisecond {
						return errRefused
					}
					return nil
				})
				if err == nil {
					done++
					break
				}
				if !failureOf(t, err).Called() {
					shed++
				}
				time.Sleep(20 * time.Millisecond)
			}
		}
		require.Less(t, made, 48)
		require.Positive(t, shed)
		require.Positive(t, done)
		require.Equal(t, policy.Closed, p.State())
	})
}

// A probe that fails says that the dependency is still away: no fault of the work that probed, which waits for the open time.
func TestAFailedProbeIsNoFaultOfItsCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, resilience.Settings{Retry: resilience.Retry{Attempts: 1}, Breaker: resilience.Breaker{Failures: 1, Open: time.Minute}})
		call := func(err error) *policy.Error {
			return failureOf(t, p.Do(t.Context(), policy.Call{}, func(context.Context) error { return err }))
		}
		require.Equal(t, resilience.ClassTransient, call(errRefused).Class, "what opened the circuit counts")
		time.Sleep(time.Minute)
		e := call(errRefused)
		require.Equal(t, resilience.ClassUnavailable, e.Class)
		require.Equal(t, resilience.ClassUnavailable, resilience.Classify(e))
		require.Equal(t, time.Minute, e.RetryAfter())
		require.Equal(t, 503, resilience.StatusOf(e))
		require.Equal(t, resilience.CodeDependencyUnavailable, e.Code())
		time.Sleep(time.Minute)
		require.Equal(t, resilience.ClassPermanent, call(errNotFound).Class, "an answer stays one")
		require.Equal(t, policy.Closed, p.State())
	})
}
