package drill

import (
	"context"
	"errors"
	"slices"
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

// pool is the three dependencies with their places. The slow one is the first.
type pool struct {
	names    []string
	policies map[string]*policy.Policy
	meters   map[string]*meter // "" is all of them

	mu    sync.Mutex
	waits map[string][]time.Duration
	done  int
}

func (s *stage) newPool(shared bool) (*pool, error) {
	places := s.set.Int("own")
	if shared {
		places = s.set.Int("shared")
	}
	settings := resilience.Settings{Timeout: time.Minute, Bulkhead: resilience.Bulkhead{Active: places, Queue: 100}}
	p := &pool{
		names: []string{"payment", "inventory", "notification"}, policies: map[string]*policy.Policy{}, meters: map[string]*meter{"": {}},
		waits: map[string][]time.Duration{},
	}
	for _, name := range p.names {
		p.meters[name] = &meter{}
		if shared && name != p.names[0] {
			p.policies[name] = p.policies[p.names[0]]
			continue
		}
		var err error
		if p.policies[name], err = s.policy(name, settings); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *pool) call(ctx context.Context, name string, takes time.Duration) error {
	began := time.Now()
	return p.policies[name].Do(ctx, policy.Call{Idempotent: true}, func(ctx context.Context) error {
		wait := time.Since(began)
		defer p.meters[""].begin()()
		defer p.meters[name].begin()()
		pause.For(ctx, takes)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.waits[name] = append(p.waits[name], wait)
		p.done++
		return ctx.Err()
	})
}

// pools runs the calls of three dependencies, those of the slow one first.
func pools(ctx context.Context, s *stage, shared bool) error {
	p, err := s.newPool(shared)
	if err != nil {
		return err
	}
	began := time.Now()
	payments := make(chan error, 1)
	var paymentTime time.Duration
	go func() {
		err := together(s.set.Int("payments"), func(int) error { return p.call(ctx, p.names[0], s.set.Duration("slow")) })
		paymentTime = time.Since(began)
		payments <- err
	}()
	ready := eventually(ctx, 5*time.Second, "the payments to come first", func(context.Context) (bool, error) {
		active, queued := p.policies[p.names[0]].Places()
		return active+queued >= s.set.Int("payments"), nil
	})
	healthy := together(2*s.set.Int("others"), func(i int) error { return p.call(ctx, p.names[1+i%2], s.set.Duration("fast")) })
	err = errors.Join(ready, healthy, <-payments)
	s.observe("payment_time", paymentTime)
	p.observe(s)
	return err
}

func (p *pool) observe(s *stage) {
	healthy := slices.Concat(p.waits[p.names[1]], p.waits[p.names[2]])
	s.observe("done", p.done)
	s.observe("healthy_wait_mean", mean(healthy))
	s.observe("healthy_wait_longest", longest(healthy))
	most, leaks := 0, 0
	for _, name := range p.names {
		most = max(most, p.meters[name].highest())
		active, queued := p.policies[name].Places()
		leaks += active + queued
	}
	s.observe("max_concurrency_of_one", most)
	s.contained(p.meters[""].highest(), 0, leaks, 0)
}
