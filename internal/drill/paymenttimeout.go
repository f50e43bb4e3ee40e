package drill

import (
	"context"
	"errors"
	"time"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/watchdog"
)

func paymentTimeout() Drill {
	return Drill{
		Name: "payment-timeout", Section: SectionSaga,
		Proves: "an order that waits too long for its payment is cancelled once, with its event, its stock and its money going back",
		Settings: []Setting{
			count("orders", 4, 2, 50, "orders that get stuck: half of them charged without an answer, half never charged"),
			length("limit", time.Second, 500*time.Millisecond, 10*time.Second, "how long an order may wait for its payment (10m by default)"),
			length("hold", 4*time.Second, time.Second, 15*time.Second, "how long stock is reserved, more than the limit (15m by default)"),
			length("late_limit", 4266*time.Millisecond, time.Second, 16*time.Second, "a limit that is longer than that (16m)"),
		},
		Arms: []Arm{
			{Name: Before, Does: "no watchdog", play: func(ctx context.Context, s *stage) error { return stuck(ctx, s, 0) }},
			{Name: After, Does: "two watchdogs, their limit below the reservation's", play: func(ctx context.Context, s *stage) error { return stuck(ctx, s, s.set.Duration("limit")) }},
			{Name: "late", Does: "the same with a limit above it", play: func(ctx context.Context, s *stage) error { return stuck(ctx, s, s.set.Duration("late_limit")) }},
		},
		checks: func(s Settings) []Check {
			n := s.Int("orders")
			return append(append(
				expect(Before, "with_payment_timeout", 0, "stuck", n, "stock_held", 2*n, "charged_and_not_refunded", n/2),
				expect(After, "cancelled", n, "with_payment_timeout", n, "cancelled_twice", 0, "events_of_cancellation", n, "second_cycle", 0, "stuck", 0, "stock_held", 0,
					"charges", n/2, "refunds", n/2, "charged_and_not_refunded", 0, "refunded_before_stock_expires", true, "violations", 0)...),
				expect("late", "with_payment_timeout", lessThan(n), "with_reservation_expired", moreThan(0), "refunded_before_stock_expires", false, "stuck", 0, "stock_held", 0,
					"charged_and_not_refunded", 0)...)
		},
	}
}

const (
	stuckCount    pg.SQL = `SELECT count(*) FROM @schema@_orders.orders WHERE status IN ('PENDING', 'STOCK_RESERVED')`
	stuckReserved pg.SQL = `SELECT count(*) FROM @schema@_orders.orders WHERE status = 'STOCK_RESERVED'`
	stuckHeld     pg.SQL = `
SELECT coalesce(sum(l.quantity), 0) FROM @schema@_inventory.reservation_lines l JOIN @schema@_inventory.reservations r USING (order_id)
WHERE r.status IN ('ACTIVE', 'EXPIRED')`
	stuckTimeout pg.SQL = `SELECT count(*) FROM @schema@_orders.orders WHERE status = 'CANCELLED' AND reason = 'PAYMENT_TIMEOUT'`
	stuckExpired pg.SQL = `SELECT count(*) FROM @schema@_orders.orders WHERE status = 'CANCELLED' AND reason = 'RESERVATION_EXPIRED'`
	// Paid back when the stock was no longer reserved.
	stuckLate pg.SQL = `
SELECT count(*) FROM @schema@_payments.payments p JOIN @schema@_inventory.reservations r USING (order_id)
WHERE p.status = 'REFUNDED' AND p.status_at > r.expires_at`
)

// stuck has orders wait for payments that do not come, with two watchdogs when there is a limit.
func stuck(ctx context.Context, s *stage, limit time.Duration) error {
	m, err := s.market(ctx, func(o *shop.Options) { o.Hold = s.set.Duration("hold") })
	if err != nil {
		return err
	}
	n := s.set.Int("orders")
	if err := m.breakPayments(n); err != nil {
		return err
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	seen, err := s.watch(ctx, conn, event.Exchange)
	if err != nil {
		return err
	}
	if err := m.work(ctx, nil); err != nil {
		return err
	}
	ids, err := m.submit(ctx, n)
	if err != nil {
		return err
	}
	err = eventually(ctx, 20*time.Second, "the stock to be reserved and half of the payments to be charged", func(ctx context.Context) (bool, error) {
		reserved, err := m.count(ctx, stuckReserved)
		return reserved == len(ids) && len(m.simulator.Ledger().Charges) == n/2, err
	})
	if err != nil {
		return err
	}
	if limit == 0 {
		pause.For(ctx, s.set.Duration("limit"))
		return m.observeStuck(ctx)
	}
	if err := m.watchBoth(ctx, limit, n); err != nil {
		return err
	}
	if err := m.providerNet.heal(ctx); err != nil {
		return err
	}
	account, err := m.settled(ctx, 20*time.Second)
	if err != nil {
		return err
	}
	s.observe("violations", len(account.Violations))
	s.observe("events_of_cancellation", seen.of(event.TypeOrderCancelled))
	return m.observeStuck(ctx)
}

// breakPayments has half of the orders be charged, the rest never, and no answer come back.
func (m *market) breakPayments(n int) error {
	rules := []provider.Rule{}
	for i := n / 2; i < n; i++ {
		rules = append(rules, provider.Rule{Key: m.order(keyOf(i)).ID(), Fault: provider.FaultUnavailable})
	}
	return errors.Join(m.simulator.SetRules(rules...), m.providerNet.silence())
}

// watchBoth runs two watchdogs at a time until every order has ended, and one cycle more.
func (m *market) watchBoth(ctx context.Context, limit time.Duration, n int) error {
	var dogs [2]*watchdog.Watchdog
	for i := range dogs {
		var err error
		dogs[i], err = watchdog.New(watchdog.Options{
			Pool: m.pool, Schema: m.schema, Logger: m.logger,
			Rules: []watchdog.Rule{shop.PaymentTimeout(m.schema, limit), shop.ReservationExpired(m.schema)},
		})
		if err != nil {
			return err
		}
	}
	cycle := func(ctx context.Context) (cancelled int, err error) {
		var found [2]int
		err = together(2, func(i int) error {
			results, err := dogs[i].Once(ctx)
			for _, r := range results {
				if r.Rule == event.ReasonPaymentTimeout {
					found[i] += r.Cancelled
				}
			}
			return err
		})
		return found[0] + found[1], err
	}
	cancelled := 0
	err := eventually(ctx, 30*time.Second, "the orders to be cancelled", func(ctx context.Context) (bool, error) {
		more, err := cycle(ctx)
		if err != nil {
			return false, err
		}
		cancelled += more
		open, err := m.count(ctx, stuckCount)
		return open == 0, err
	})
	if err != nil {
		return err
	}
	m.observe("cancelled", cancelled)
	m.observe("cancelled_twice", max(cancelled-n, 0))
	again, err := cycle(ctx)
	m.observe("second_cycle", again)
	return err
}

func (m *market) observeStuck(ctx context.Context) error {
	ledger := m.simulator.Ledger()
	m.observe("charges", len(ledger.Charges))
	m.observe("refunds", len(ledger.Refunds))
	m.observe("charged_and_not_refunded", len(ledger.Charges)-len(ledger.Refunds))
	tooLate, err := m.count(ctx, stuckLate)
	if err != nil {
		return err
	}
	m.observe("refunded_before_stock_expires", tooLate == 0 && len(ledger.Refunds) > 0)
	return m.observeCounts(ctx, counted{"stuck", stuckCount}, counted{"stock_held", stuckHeld}, counted{"with_payment_timeout", stuckTimeout},
		counted{"with_reservation_expired", stuckExpired})
}
