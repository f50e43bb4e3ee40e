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

func tenantBulkhead() Drill {
	return Drill{
		Name: "tenant-bulkhead", Section: SectionCalls,
		Proves: "no tenant takes more than its share of a dependency, and probes and recovery find a place",
		Settings: []Setting{
			count("active", 20, 4, 100, "places"),
			count("queue", 40, 4, 400, "calls that may wait"),
			count("per_tenant", 4, 1, 50, "places of one tenant; its share of the queue is in proportion (after)"),
			count("reserve", 2, 1, 20, "places for probes and recovery only (after)"),
			count("noisy", 72, 20, 1000, "calls of the noisy tenant, which come first"),
			count("quiet", 4, 1, 20, "calls of the quiet tenant"),
			length("call", 200*time.Millisecond, 50*time.Millisecond, 2*time.Second, "how long a call takes"),
		},
		Arms: []Arm{
			{Name: Before, Does: "places for whoever comes first", play: func(ctx context.Context, s *stage) error {
				return tenants(ctx, s, resilience.Bulkhead{Active: s.set.Int("active"), Queue: s.set.Int("queue")})
			}},
			{Name: After, Does: "a share for each tenant, a reserve for recovery", play: func(ctx context.Context, s *stage) error {
				return tenants(ctx, s, resilience.Bulkhead{
					Active: s.set.Int("active"), Queue: s.set.Int("queue"), PerTenant: s.set.Int("per_tenant"), Reserve: s.set.Int("reserve"),
				})
			}},
		},
		checks: func(s Settings) []Check {
			quiet, share := s.Int("quiet"), s.Int("per_tenant")
			served := share + (s.Int("queue")*share+s.Int("active")-1)/s.Int("active")
			return append(append(
				expect(Before, "noisy_at_once", s.Int("active"), "quiet_served", lessThan(quiet)),
				expect(After, "noisy_at_once", share, "noisy_served", served, "noisy_refused", s.Int("noisy")-served,
					"refused_with_code_and_hint", s.Int("noisy")-served, "quiet_served", quiet, "quiet_wait_longest", lessThan(s.Duration("call")*3/2),
					"recovery_served_at_once", true, "max_concurrency", atMost(s.Int("active")))...),
				append(containment(Before), containment(After)...)...)
		},
	}
}

// tally is what became of one tenant's calls. Safe for concurrent use.
type tally struct {
	meter

	mu      sync.Mutex
	served  int
	refused int
	hinted  int // refusals with the stable code and a hint when to come again
	waits   []time.Duration
}

// shared is a dependency that all tenants call.
type shared struct {
	policy *policy.Policy
	all    meter
	takes  time.Duration
}

// call makes one call on behalf of a tenant, and counts what became of it.
func (d *shared) call(ctx context.Context, t *tally, c policy.Call) error {
	began := time.Now()
	err := d.policy.Do(ctx, c, func(ctx context.Context) error {
		wait := time.Since(began)
		defer d.all.begin()()
		defer t.begin()()
		t.mu.Lock()
		t.waits = append(t.waits, wait)
		t.served++
		t.mu.Unlock()
		pause.For(ctx, d.takes)
		return ctx.Err()
	})
	if err == nil || called(err) {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refused++
	if after, ok := resilience.DelayOf(err); ok && after > 0 && resilience.CodeOf(err) == resilience.CodeDependencyOverloaded {
		t.hinted++
	}
	return nil
}

// tenants has a noisy tenant fill the dependency, then a quiet one call, then others fill what is left, then recovery.
func tenants(ctx context.Context, s *stage, limits resilience.Bulkhead) error {
	p, err := s.policy("inventory", resilience.Settings{Timeout: 10 * time.Second, Bulkhead: limits})
	if err != nil {
		return err
	}
	d := &shared{policy: p, takes: s.set.Duration("call")}
	var noisy, quiet, others, recovery tally
	var running sync.WaitGroup
	var failed [4]error
	start := func(at int, t *tally, n int, c func(i int) policy.Call) {
		running.Go(func() { failed[at] = together(n, func(i int) error { return d.call(ctx, t, c(i)) }) })
	}
	start(0, &noisy, s.set.Int("noisy"), func(int) policy.Call { return policy.Call{Tenant: "noisy"} })
	settled := eventually(ctx, 5*time.Second, "the noisy tenant to fill what it gets", func(context.Context) (bool, error) {
		active, queued := p.Places()
		return active+queued+noisy.gone() >= s.set.Int("noisy"), nil
	})
	start(1, &quiet, s.set.Int("quiet"), func(int) policy.Call { return policy.Call{Tenant: "quiet"} })
	start(2, &others, s.set.Int("active"), func(i int) policy.Call { return policy.Call{Tenant: string(rune('a' + i%8))} })
	full := eventually(ctx, 5*time.Second, "all places to be taken", func(context.Context) (bool, error) {
		active, _ := p.Places()
		return active >= s.set.Int("active")-limits.Reserve, nil
	})
	start(3, &recovery, 1, func(int) policy.Call { return policy.Call{Tenant: "noisy", Recovery: true} })
	running.Wait()
	s.observe("noisy_at_once", noisy.highest())
	s.observe("noisy_served", noisy.served)
	s.observe("noisy_refused", noisy.refused)
	s.observe("refused_with_code_and_hint", noisy.hinted)
	s.observe("quiet_served", quiet.served)
	s.observe("quiet_wait_longest", longest(quiet.waits))
	s.observe("recovery_served_at_once", recovery.served == 1 && recovery.waits[0] < d.takes/2)
	active, queued := p.Places()
	s.contained(d.all.highest(), noisy.refused+quiet.refused+others.refused+recovery.refused, active+queued, 0)
	return errors.Join(append(failed[:], settled, full)...)
}

// gone are the calls that have ended.
func (t *tally) gone() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refused + t.ended()
}
