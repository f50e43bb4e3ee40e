package drill

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

func circuitBreaker() Drill {
	return Drill{
		Name: "circuit-breaker", Section: SectionCalls,
		Proves: "an open circuit refuses calls at once and lets a dependency recover that repeated calls would keep down",
		Settings: []Setting{
			count("operations", 12, 4, 50, "operations at once"),
			count("attempts", 4, 2, 8, "attempts of each, by the caller's own loop: the policy's retry is off"),
			length("gap", 250*time.Millisecond, 50*time.Millisecond, 2*time.Second, "time between the attempts of an operation"),
			length("down", 350*time.Millisecond, 50*time.Millisecond, 5*time.Second, "how long the dependency is down; more than 3 calls at a time while it is begin this time anew"),
			count("failures", 3, 1, 20, "failures in a row that open the circuit"),
			length("open", 200*time.Millisecond, 20*time.Millisecond, 5*time.Second, "how long the circuit stays open (30s by default)"),
		},
		Arms: []Arm{
			{Name: Before, Does: "every attempt is a call", play: func(ctx context.Context, s *stage) error { return circuit(ctx, s, always) }},
			{Name: After, Does: "every attempt asks the circuit first", play: func(ctx context.Context, s *stage) error { return circuit(ctx, s, s.set.Int("failures")) }},
		},
		checks: func(s Settings) []Check {
			all := s.Int("operations") * s.Int("attempts")
			return append(append(
				expect(Before, "calls", all, "fast_failures", 0, "done", 0),
				expect(After, "calls_and_fast_failures", atMost(all), "calls", lessThan(all), "fast_failures", moreThan(0), "opened", atLeast(1),
					"probes", atLeast(1), "closed_again", atLeast(1), "done", atLeast(1))...),
				append(containment(Before), containment(After)...)...)
		},
	}
}

// fragile is a dependency that is down for a time. While it is, more than three calls at once keep it down.
type fragile struct {
	meter

	down  time.Duration
	mu    sync.Mutex
	until time.Time
	taken int
}

// callTime is how long a call takes: long enough for those that begin together to meet there, on a busy machine, too.
const callTime = 100 * time.Millisecond

func (f *fragile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer f.begin()()
	f.mu.Lock()
	if f.until.IsZero() {
		f.until = time.Now().Add(f.down)
	}
	isDown := time.Now().Before(f.until)
	if f.taken++; isDown && f.taken > 3 {
		f.until = time.Now().Add(f.down)
	}
	f.mu.Unlock()
	pause.For(r.Context(), callTime)
	f.mu.Lock()
	f.taken--
	f.mu.Unlock()
	if isDown {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// circuit has all operations run at once.
func circuit(ctx context.Context, s *stage, failures int) error {
	dependency := &fragile{down: s.set.Duration("down")}
	url, err := s.serve(ctx, dependency)
	if err != nil {
		return err
	}
	client, p, err := s.client("fragile", resilience.Settings{
		Retry:    resilience.Retry{Attempts: 1},
		Breaker:  resilience.Breaker{Failures: failures, Consecutive: true, Open: s.set.Duration("open"), Probes: 1},
		Bulkhead: resilience.Bulkhead{Active: s.set.Int("operations")},
	})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	done, refused := 0, 0
	began := time.Now()
	err = together(s.set.Int("operations"), func(int) error {
		for n := range s.set.Int("attempts") {
			if !pause.For(ctx, time.Until(began.Add(time.Duration(n)*s.set.Duration("gap")))) {
				return ctx.Err()
			}
			r, err := newPost(ctx, url, "", struct{}{})
			if err != nil {
				return err
			}
			err = client.JSON(r, nil)
			mu.Lock()
			switch {
			case err == nil:
				done++
			case !called(err):
				refused++
			}
			mu.Unlock()
			if err == nil {
				return nil
			}
		}
		return nil
	})
	s.observe("calls", dependency.calls())
	s.observe("fast_failures", refused)
	s.observe("calls_and_fast_failures", dependency.calls()+refused)
	s.observe("done", done)
	s.observeCircuit()
	active, queued := p.Places()
	s.contained(dependency.highest(), refused, active+queued, 0)
	return err
}

// called says whether a call under a policy was made at all.
func called(err error) bool {
	made, ok := errors.AsType[*policy.Error](err)
	return !ok || made.Called()
}

// observeCircuit notes the transitions that the logs tell of.
func (s *stage) observeCircuit() {
	const event = "circuit state changed"
	s.observe("opened", s.logs.count(event, "to", "open"))
	s.observe("probes", s.logs.count(event, "to", "half-open"))
	s.observe("closed_again", s.logs.count(event, "to", "closed"))
}
