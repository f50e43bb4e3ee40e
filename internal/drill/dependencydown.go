package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/resilience"
)

func dependencyDown() Drill {
	return Drill{
		Name: "dependency-down", Section: SectionCalls,
		Proves: "without the catalog new orders are refused in time, with a hint when to come again, and orders already taken go on",
		Settings: []Setting{
			count("taken", 4, 1, 50, "orders that were taken before"),
			count("orders", 8, 1, 100, "orders while the catalog does not answer"),
			length("budget", 2*time.Second, 500*time.Millisecond, 10*time.Second, "time for a question to the catalog with its retries (2.8s by default)"),
			length("open", 2*time.Second, 100*time.Millisecond, time.Minute, "how long the circuit stays open (30s by default)"),
			length("limit", 3*time.Second, time.Second, 10*time.Second, "longest time of an answer"),
		},
		Arms: []Arm{
			{Name: Before, Does: "no limits", play: func(ctx context.Context, s *stage) error {
				endless := resilience.Settings{Deadline: time.Minute, Timeout: 59 * time.Second, Breaker: resilience.Breaker{Failures: always}, Bulkhead: resilience.Bulkhead{Active: 1000}}
				return withoutCatalog(ctx, s, endless, false)
			}},
			{Name: After, Does: "timeouts, a budget, a circuit", play: func(ctx context.Context, s *stage) error {
				limits := shop.DefaultLimits().Catalog
				limits.Deadline, limits.Breaker.Open = s.set.Duration("budget"), s.set.Duration("open")
				return withoutCatalog(ctx, s, limits, true)
			}},
		},
		checks: func(s Settings) []Check {
			n := s.Int("orders")
			return append(append(
				expect(Before, "answered_in_time", 0, "waiting", n),
				expect(After, "answered_in_time", n, "waiting", 0, "refused_503", n, "with_retry_after", n, "with_code", n, "slowest_answer", lessThan(s.Duration("limit")),
					"half_orders", 0, "taken_and_confirmed", s.Int("taken"), "circuits_opened_of_others", 0, "taken_after_healing", 1)...),
				containment(After)...)
		},
	}
}

const (
	downConfirmed pg.SQL = `SELECT count(*) FROM @schema@_orders.orders WHERE status = 'CONFIRMED'`
	downLines     pg.SQL = `SELECT count(*) FROM @schema@_orders.orders o WHERE NOT EXISTS (SELECT FROM @schema@_orders.order_lines l WHERE l.order_id = o.id)`
)

// withoutCatalog takes orders, has the catalog stop answering in mid-run, and sends more; at the end it may answer again.
func withoutCatalog(ctx context.Context, s *stage, limits resilience.Settings, heals bool) error {
	m, err := s.market(ctx, nil)
	if err != nil {
		return err
	}
	all := quickLimits()
	all.Catalog = limits
	if err := m.open(ctx, all); err != nil {
		return err
	}
	client := s.naive()
	for i := range s.set.Int("taken") {
		b, err := m.buy(ctx, client, tenant, fmt.Sprintf("taken-%d", i), "")
		if err != nil || b.status != http.StatusAccepted {
			return errors.Join(err, fmt.Errorf("an order was answered with %d", b.status))
		}
	}
	before, err := m.count(ctx, recoveredOrders)
	if err != nil {
		return err
	}
	if err := m.catalogNet.silence(); err != nil {
		return err
	}
	if err := m.work(ctx, nil); err != nil { // what was taken goes on
		return err
	}
	if err := m.orderInVain(ctx, client); err != nil {
		return err
	}
	after, err := m.count(ctx, recoveredOrders)
	if err != nil {
		return err
	}
	halves, err := m.count(ctx, downLines)
	if err != nil {
		return err
	}
	s.observe("half_orders", after-before+halves)
	err = eventually(ctx, 20*time.Second, "the orders that were taken to be confirmed", func(ctx context.Context) (bool, error) {
		n, err := m.count(ctx, downConfirmed)
		return n == s.set.Int("taken"), err
	})
	others := 0
	for _, line := range s.logs.find("circuit state changed") {
		if line["to"] == "open" && line["dependency"] != "catalog" {
			others++
		}
	}
	s.observe("circuits_opened_of_others", others)
	if heals {
		err = errors.Join(err, m.buyAgain(ctx, client))
	}
	shed := len(s.logs.find("call refused"))
	return errors.Join(err, m.observeCount(ctx, "taken_and_confirmed", downConfirmed), m.containedMarket(ctx, m.catalogAt.highest(), shed))
}

// buyAgain heals the catalog and orders until an order is taken: the circuit has to close again.
func (m *market) buyAgain(ctx context.Context, client naive) error {
	if err := m.catalogNet.heal(ctx); err != nil {
		return err
	}
	tries, taken := 0, 0
	err := eventually(ctx, 20*time.Second, "an order to be taken again", func(ctx context.Context) (bool, error) {
		tries++
		b, err := m.buy(ctx, client, tenant, fmt.Sprintf("healed-%d", tries), "")
		if err == nil && b.status == http.StatusAccepted {
			taken++
		}
		return taken > 0, err
	})
	m.observe("taken_after_healing", taken)
	return err
}

// orderInVain sends orders at once, and waits for each no longer than its limit.
func (m *market) orderInVain(ctx context.Context, client naive) error {
	ctx, cancel := context.WithTimeout(ctx, m.set.Duration("limit"))
	defer cancel()
	var mu sync.Mutex
	inTime, waits, refused, hinted, coded, slowest := 0, 0, 0, 0, 0, time.Duration(0)
	_ = together(m.set.Int("orders"), func(i int) error {
		began := time.Now()
		b, err := m.buy(ctx, client, tenant, fmt.Sprintf("in-vain-%d", i), "")
		mu.Lock()
		defer mu.Unlock()
		if err != nil { // the limit: an order that waits is a figure
			waits++
			return nil
		}
		inTime++
		slowest = max(slowest, time.Since(began))
		if b.status == http.StatusServiceUnavailable {
			refused++
		}
		if b.header.Get("Retry-After") != "" {
			hinted++
		}
		if b.Code == string(resilience.CodeDependencyUnavailable) {
			coded++
		}
		return nil
	})
	m.observe("answered_in_time", inTime)
	m.observe("waiting", waits)
	m.observe("refused_503", refused)
	m.observe("with_retry_after", hinted)
	m.observe("with_code", coded)
	m.observe("slowest_answer", slowest)
	return nil
}
