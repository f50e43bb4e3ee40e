package drill

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/surefoot-mq/surefoot/examples/shop/inventory"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

func breakerRecovery() Drill {
	return Drill{
		Name: "breaker-recovery", Section: SectionOutcomes,
		Proves: "a circuit sheds what would fail, a probe finds out that it is over, and orders that were left in doubt come to an end",
		Settings: []Setting{
			count("failures", 3, 1, 8, "orders that meet an inventory that does not answer, which open the circuit"),
			count("shed", 6, 1, 50, "orders that come while it is open"),
			length("timeout", 200*time.Millisecond, 50*time.Millisecond, 2*time.Second, "time of a call (300ms by default)"),
			length("open", 1500*time.Millisecond, 100*time.Millisecond, 10*time.Second, "how long the circuit stays open (30s by default)"),
		},
		Arms: []Arm{
			{Name: Before, Does: "no circuit", play: func(ctx context.Context, s *stage) error { return recovered(ctx, s, always) }},
			{Name: After, Does: "a circuit, a probe, recovery cases", play: func(ctx context.Context, s *stage) error { return recovered(ctx, s, s.set.Int("failures")) }},
		},
		checks: func(s Settings) []Check {
			failures, shed := s.Int("failures"), s.Int("shed")
			return append(append(
				// On a slow machine a call may be over before it arrives.
				expect(Before, "shed_count", 0, "opened", 0, "calls_while_down", between(failures+max(shed-2, 1), failures+shed), "in_doubt", failures+shed),
				// Two probes may be among them on a slow machine.
				expect(After, "opened", atLeast(1), "shed_count", between(max(shed-2, 1), shed), "shed_without_a_trace", equalFigure("shed_count"), "calls_while_down", between(failures, failures+2),
					"in_doubt", equalFigure("calls_while_down"), "probes", atLeast(1), "closed_again", atLeast(1), "accepted_or_compensated_or_manual", equalFigure("in_doubt"),
					"in_doubt_at_last", 0, "max_concurrency", atMost(20))...),
				containment(After)...)
		},
	}
}

const (
	recoveredOrders pg.SQL = `SELECT count(*) FROM @schema@_orders.orders`
	recoveredOpen   pg.SQL = `SELECT count(*) FROM @schema@_orders.recovery_cases WHERE state = 'open'`
	recoveredEnded  pg.SQL = `SELECT count(*) FROM @schema@_orders.recovery_cases WHERE state IN ('accepted', 'compensated', 'manual')`
)

// recovered has orders meet an inventory that does not answer, then more come, then it answer again.
func recovered(ctx context.Context, s *stage, failures int) error {
	m, err := s.market(ctx, nil)
	if err != nil {
		return err
	}
	limits := quickLimits()
	limits.Inventory.Deadline, limits.Inventory.Timeout = s.set.Duration("timeout")+50*time.Millisecond, s.set.Duration("timeout")
	limits.Inventory.Retry.Attempts = 1
	limits.Inventory.Breaker = resilience.Breaker{Failures: failures, Consecutive: true, Open: s.set.Duration("open"), Probes: 2}
	if err := m.open(ctx, limits); err != nil {
		return err
	}
	release := m.inventoryAt.close()
	defer release()
	client := s.naive()
	inDoubt, shed := 0, 0
	var mu sync.Mutex
	buy := func(key string) error {
		b, err := m.buy(ctx, client, tenant, key, "sync")
		mu.Lock()
		defer mu.Unlock()
		switch b.status {
		case http.StatusAccepted:
			inDoubt++
		case http.StatusServiceUnavailable:
			shed++
		}
		return err
	}
	for i := range s.set.Int("failures") {
		if err := buy(fmt.Sprintf("first-%d", i)); err != nil {
			return err
		}
	}
	if err := together(s.set.Int("shed"), func(i int) error { return buy(fmt.Sprintf("then-%d", i)) }); err != nil {
		return err
	}
	s.observe("in_doubt", inDoubt)
	s.observe("calls_while_down", m.inventoryAt.calls())
	rows, err := m.count(ctx, recoveredOrders)
	if err != nil {
		return err
	}
	s.observe("shed_without_a_trace", inDoubt+shed-rows)
	release()
	if err := m.endAll(ctx); err != nil {
		return err
	}
	s.observeCircuit()
	if err := m.observeCounts(ctx, counted{"accepted_or_compensated_or_manual", recoveredEnded}, counted{"in_doubt_at_last", recoveredOpen}); err != nil {
		return err
	}
	return m.containedMarket(ctx, m.inventoryAt.highest(), shed)
}

// endAll lets recovery work until no case is open and the circuit is closed.
func (m *market) endAll(ctx context.Context) error {
	return eventually(ctx, 30*time.Second, "every order to end", func(ctx context.Context) (bool, error) {
		if _, err := m.recoverOnce(ctx, orders.RecoveryOptions{}); err != nil {
			return false, err
		}
		open, err := m.count(ctx, recoveredOpen)
		return open == 0 && m.clients.Policy(inventory.Name).State() == policy.Closed, err
	})
}
