package drill

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

func timeout() Drill {
	return Drill{
		Name: "timeout", Section: SectionCalls,
		Proves: "a timeout frees the place of a call that hangs",
		Settings: []Setting{
			count("calls", 6, 2, 50, "calls at once"),
			count("places", 2, 1, 50, "places for them"),
			length("hang", 2*time.Second, 500*time.Millisecond, 10*time.Second, "how long the dependency does not answer"),
			length("limit", 300*time.Millisecond, 50*time.Millisecond, 5*time.Second, "time of an attempt (2s by default)"),
		},
		Arms: []Arm{
			{Name: Before, Does: "no limit", play: func(ctx context.Context, s *stage) error { return hung(ctx, s, time.Minute) }},
			{Name: After, Does: "a limit for each attempt", play: func(ctx context.Context, s *stage) error { return hung(ctx, s, s.set.Duration("limit")) }},
		},
		checks: func(s Settings) []Check {
			rounds := (s.Int("calls") + s.Int("places") - 1) / s.Int("places")
			hang, limit := s.Duration("hang"), s.Duration("limit")
			patience := limit + (hang-limit)/3 // of a place, on a busy machine
			return append(append(
				expect(Before, "place_held_mean", atLeast(hang), "run", atLeast(time.Duration(rounds)*hang), "timed_out", 0),
				expect(After, "place_held_mean", between(limit*9/10, patience), "run", between(time.Duration(rounds)*limit*9/10, time.Duration(rounds)*patience),
					"timed_out", s.Int("calls"), "max_concurrency", s.Int("places"))...),
				append(containment(Before), containment(After)...)...)
		},
	}
}

// hung calls a dependency that hangs.
func hung(ctx context.Context, s *stage, limit time.Duration) error {
	dependency := &meter{}
	url, err := s.serve(ctx, dependency.wrap(hang(s.set.Duration("hang"))))
	if err != nil {
		return err
	}
	places, client := &meter{}, s.naive()
	p, err := s.policy("hung", resilience.Settings{
		Deadline: 10 * time.Minute, Timeout: limit, Retry: resilience.Retry{Attempts: 1}, Breaker: resilience.Breaker{Failures: always},
		Bulkhead: resilience.Bulkhead{Active: s.set.Int("places"), Queue: s.set.Int("calls")},
	})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	timedOut := 0
	began := time.Now()
	err = together(s.set.Int("calls"), func(int) error {
		err := p.Do(ctx, policy.Call{}, func(ctx context.Context) error {
			defer places.begin()()
			_, err := client.post(ctx, url, "")
			return err
		})
		if errors.Is(err, resilience.ErrTimeout) {
			mu.Lock()
			defer mu.Unlock()
			timedOut++
			return nil
		}
		return err
	})
	s.observe("place_held_mean", mean(places.took))
	s.observe("run", time.Since(began))
	s.observe("timed_out", timedOut)
	active, queued := p.Places()
	s.contained(places.highest(), 0, active+queued, 0)
	return err
}
