package policy

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"github.com/surefoot-mq/surefoot/resilience"
)

// State of a circuit.
type State int

// The states, with the values of the metric circuit_breaker_state.
const (
	Closed State = iota
	HalfOpen
	Open
)

// String is the state in logs and snapshots.
func (s State) String() string { return [...]string{"closed", "half-open", "open"}[s] }

// verdict is what a call says about the health of its dependency.
type verdict uint8

const (
	unproven verdict = iota // cancelled, or not given the time to tell
	healthy
	sick
)

// transition is a change of a circuit's state.
type transition struct {
	instance string
	from, to State
	failures int
	reason   error
}

// breaker counts with failsafe-go and adds what that leaves to its caller: a result counts only in the state in which its call
// began, never more than Probes run at a time, and a probe that proved nothing gives its turn back.
type breaker struct {
	instance string
	settings resilience.Breaker
	changed  func(transition)

	closed atomic.Bool // as the state says; spares healthy calls most of what follows

	mu      sync.Mutex
	circuit circuitbreaker.CircuitBreaker[any]
	era     uint64 // counts changes of state
	probing int    // of this era
	used    time.Time
	since   time.Time // of the last change; zero: never
	reason  error
	pending []transition
}

// permit lets one call through. For one goroutine.
type permit struct {
	breaker *breaker
	era     uint64
	probe   bool
	left    bool
}

func newBreaker(instance string, s resilience.Breaker, changed func(transition)) *breaker {
	b := &breaker{instance: instance, settings: s, changed: changed, used: time.Now()}
	failures := uint(s.Failures)                                                                       //nolint:gosec // validated
	builder := circuitbreaker.NewBuilder[any]().WithDelay(s.Open).WithSuccessThreshold(uint(s.Probes)) //nolint:gosec // validated
	if s.Consecutive {
		builder = builder.WithFailureThreshold(failures)
	} else {
		builder = builder.WithFailureThresholdPeriod(failures, s.Window)
	}
	b.circuit = builder.OnStateChanged(b.note).Build()
	b.closed.Store(true)
	return b
}

// note is called by the circuit under b.mu.
func (b *breaker) note(e circuitbreaker.StateChangedEvent) {
	b.era++
	b.closed.Store(e.NewState == circuitbreaker.ClosedState)
	b.probing = 0
	b.since = time.Now()
	b.pending = append(b.pending, transition{
		instance: b.instance, from: stateOf(e.OldState), to: stateOf(e.NewState), failures: int(e.Metrics().Failures()), reason: b.reason, //nolint:gosec // bounded by the threshold
	})
}

func stateOf(s circuitbreaker.State) State {
	switch s {
	case circuitbreaker.OpenState:
		return Open
	case circuitbreaker.HalfOpenState:
		return HalfOpen
	case circuitbreaker.ClosedState:
	}
	return Closed
}

// tell reports transitions, in their order and outside of the lock that calls need.
func (b *breaker) tell(events []transition) {
	for _, e := range events {
		b.changed(e)
	}
}

func (b *breaker) take() []transition {
	events := b.pending
	b.pending = nil
	return events
}

// enter asks for a permit; refused says for how long calls are refused, as far as that is known.
func (b *breaker) enter() (p permit, refused time.Duration, ok bool) {
	b.mu.Lock()
	if b.instance != "" {
		b.used = time.Now()
	}
	if b.closed.Load() {
		p = permit{breaker: b, era: b.era}
		b.mu.Unlock()
		return p, 0, true
	}
	ok = b.admit()
	p = permit{breaker: b, era: b.era, probe: b.circuit.State() == circuitbreaker.HalfOpenState}
	if ok && p.probe {
		b.probing++
	}
	refused = b.circuit.RemainingDelay()
	events := b.take()
	b.mu.Unlock()
	b.tell(events)
	return p, refused, ok
}

func (b *breaker) admit() bool {
	if b.circuit.IsHalfOpen() && b.probing >= b.settings.Probes {
		return false
	}
	return b.circuit.TryAcquirePermit()
}

// leave ends a call with what it proved, once. why is the error behind it, if any.
func (p *permit) leave(v verdict, why error) {
	if p.left {
		return
	}
	p.left = true
	b := p.breaker
	b.mu.Lock()
	if p.era == b.era { // else the state changed meanwhile: what was begun before proves nothing now
		if p.probe {
			b.probing--
		}
		b.judge(p.probe, v, why)
	}
	events := b.take()
	b.mu.Unlock()
	b.tell(events)
}

func (b *breaker) judge(probe bool, v verdict, why error) {
	switch v {
	case healthy:
		b.reason = nil
		b.circuit.RecordSuccess()
	case sick:
		b.reason = why
		b.circuit.RecordFailure()
	case unproven:
		if probe {
			b.renew()
		}
	}
}

// renew gives back the permit of a probe that proved nothing: the circuit itself has no way but to begin its half-open state
// anew, which is no change for anybody else.
func (b *breaker) renew() {
	era, probing, since := b.era, b.probing, b.since
	b.circuit.Open()
	b.circuit.HalfOpen()
	b.era, b.probing, b.since, b.pending = era, probing, since, nil
}

// look returns the state for diagnosis.
func (b *breaker) look() Circuit {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := Circuit{
		Instance: b.instance, State: stateOf(b.circuit.State()), Since: b.since, Failures: int(b.circuit.Metrics().Failures()), //nolint:gosec // bounded by the threshold
	}
	if b.reason != nil {
		c.Reason = b.reason.Error()
	}
	if c.State == Open {
		c.OpenFor = b.circuit.RemainingDelay()
	}
	return c
}

// state is what decides whether a call may be a probe: an open circuit whose time is over counts as half-open.
func (b *breaker) state() (s State, refused time.Duration) {
	if b.closed.Load() {
		return Closed, 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s, refused = stateOf(b.circuit.State()), b.circuit.RemainingDelay()
	if s == Open && refused == 0 {
		s = HalfOpen
	}
	return s, refused
}

func (b *breaker) lastUsed() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}
