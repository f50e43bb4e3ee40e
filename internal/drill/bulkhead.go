package drill

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

func bulkhead() Drill {
	return Drill{
		Name: "bulkhead", Section: SectionCalls,
		Proves: "a slow dependency that has places of its own makes nobody else wait",
		Settings: []Setting{
			count("payments", 6, 4, 50, "calls to the slow dependency, which come first"),
			length("slow", 700*time.Millisecond, 100*time.Millisecond, 5*time.Second, "how long each of them takes"),
			count("others", 3, 1, 20, "calls to each of two healthy dependencies"),
			length("fast", 60*time.Millisecond, 10*time.Millisecond, time.Second, "how long each of them takes"),
			count("shared", 4, 1, 50, "places that all share (before)"),
			count("own", 2, 1, 50, "places of each dependency (after)"),
		},
		Arms: []Arm{
			{Name: Before, Does: "one pool for all", play: func(ctx context.Context, s *stage) error { return pools(ctx, s, true) }},
			{Name: After, Does: "a pool for each dependency", play: func(ctx context.Context, s *stage) error { return pools(ctx, s, false) }},
		},
		checks: func(s Settings) []Check {
			slow := s.Duration("slow")
			all := s.Int("payments") + 2*s.Int("others")
			return append(append(
				expect(Before, "done", all, "healthy_wait_mean", atLeast(slow*9/10), "max_concurrency", s.Int("shared")),
				expect(After, "done", all, "healthy_wait_mean", lessThan(100*time.Millisecond), "healthy_wait_longest", lessThan(200*time.Millisecond),
					"payment_time", atLeast(slow*time.Duration((s.Int("payments")+s.Int("own")-1)/s.Int("own"))), "max_concurrency_of_one", s.Int("own"))...),
				append(containment(Before), containment(After)...)...)
		},
	}
}

// pools runs the calls of three dependencies, those of the slow one first.
func pools(ctx context.Context, s *stage, shared bool) error {
	places := s.set.Int("own")
	if shared {
		places = s.set.Int("shared")
	}
	settings := resilience.Settings{Timeout: time.Minute, Bulkhead: resilience.Bulkhead{Active: places, Queue: 100}}
	names := []string{"payment", "inventory", "notification"}
	policies := map[string]*policy.Policy{}
	meters := map[string]*meter{"all": {}}
	for _, name := range names {
		meters[name] = &meter{}
		if shared && name != names[0] {
			policies[name] = policies[names[0]]
			continue
		}
		p, err := s.policy(name, settings)
		if err != nil {
			return err
		}
		policies[name] = p
	}
	var mu sync.Mutex
	waits := map[string][]time.Duration{}
	var done int
	call := func(name string, takes time.Duration) error {
		began := time.Now()
		return policies[name].Do(ctx, policy.Call{Idempotent: true}, func(ctx context.Context) error {
			wait := time.Since(began)
			defer meters["all"].begin()()
			defer meters[name].begin()()
			pause.For(ctx, takes)
			mu.Lock()
			defer mu.Unlock()
			waits[name] = append(waits[name], wait)
			done++
			return ctx.Err()
		})
	}
	began := time.Now()
	payments := make(chan error, 1)
	var paymentTime time.Duration
	go func() {
		err := together(s.set.Int("payments"), func(int) error { return call(names[0], s.set.Duration("slow")) })
		paymentTime = time.Since(began)
		payments <- err
	}()
	ready := eventually(ctx, 5*time.Second, "the payments to come first", func(context.Context) (bool, error) {
		active, queued := policies[names[0]].Places()
		return active+queued >= s.set.Int("payments"), nil
	})
	healthy := together(2*s.set.Int("others"), func(i int) error { return call(names[1+i%2], s.set.Duration("fast")) })
	err := errors.Join(ready, healthy, <-payments)
	all := append(waits[names[1]], waits[names[2]]...)
	s.observe("done", done)
	s.observe("healthy_wait_mean", mean(all))
	s.observe("healthy_wait_longest", longest(all))
	s.observe("payment_time", paymentTime)
	s.observe("max_concurrency_of_one", max(meters[names[0]].highest(), meters[names[1]].highest(), meters[names[2]].highest()))
	leaks := 0
	for _, p := range policies {
		active, queued := p.Places()
		leaks += active + queued
	}
	s.contained(meters["all"].highest(), 0, leaks, 0)
	return err
}
