package drill

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/payments"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/resilience"
)

// paymentSettings are those of both drills.
func paymentSettings() []Setting {
	return []Setting{
		count("charged", 4, 1, 50, "payments that the provider charges without its answer coming back"),
		count("declined", 2, 1, 50, "payments that it declines likewise"),
		count("slots", 2, 1, 20, "calls to the provider at a time"),
		length("limit", 300*time.Millisecond, 50*time.Millisecond, 2*time.Second, "time of a call to the provider (5s by default)"),
	}
}

func reconciliation() Drill {
	return Drill{
		Name: "reconciliation", Section: SectionOutcomes, Settings: paymentSettings(),
		Proves: "payments whose outcome is unknown are asked for, never charged again; what stays unknown stays pending with its next check due",
		Arms: []Arm{
			{Name: Before, Does: "nobody asks", play: func(ctx context.Context, s *stage) error { return reconciled(ctx, s, false) }},
			{Name: After, Does: "the provider is asked for each", play: func(ctx context.Context, s *stage) error { return reconciled(ctx, s, true) }},
		},
		checks: func(s Settings) []Check {
			charged, declined := s.Int("charged"), s.Int("declined")
			all := charged + declined
			return append(append(
				expect(Before, "timed_out", all, "status_checks", 0, "pending", all, "paid", 0),
				expect(After, "timed_out", all, "unknown_stays_pending", all, "next_check_is_due_later", all, "status_checks", all, "paid", charged,
					"paid_with_the_providers_ids", charged, "failed", declined, "failed_with_an_id", 0, "pending", 0, "new_charges", 0, "charge_requests", all,
					"charges_and_checks_apart", true)...),
				append(containment(Before), containment(After)...)...)
		},
	}
}

const (
	paidSQL     pg.SQL = `SELECT count(*) FROM @schema@_payments.payments WHERE status = 'CHARGED'`
	failedSQL   pg.SQL = `SELECT count(*) FROM @schema@_payments.payments WHERE status = 'DECLINED'`
	failedIDSQL pg.SQL = `SELECT count(*) FROM @schema@_payments.payments WHERE status = 'DECLINED' AND charge_id IS NOT NULL`
	pendingSQL  pg.SQL = `SELECT count(*) FROM @schema@_payments.payments WHERE status = 'CHARGING'`
	chargeIDSQL pg.SQL = `SELECT coalesce(charge_id, '') FROM @schema@_payments.payments WHERE order_id = $1`
	laterSQL    pg.SQL = `SELECT count(*) FROM @schema@_payments.payments WHERE status = 'CHARGING' AND next_check_at > now()`
)

// tryPayments has all payments time out, on the shop's payment service, and mends the network.
func (m *market) tryPayments(ctx context.Context, authorise func(ctx context.Context, ref event.Ref, p event.Payment) error) error {
	if err := m.providerNet.silence(); err != nil {
		return err
	}
	var mu sync.Mutex
	timedOut, all := 0, m.set.Int("charged")+m.set.Int("declined")
	err := together(all, func(i int) error {
		err := authorise(ctx, m.payment(i), m.paymentOf(i))
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			timedOut++
		}
		return ctx.Err()
	})
	m.observe("timed_out", timedOut)
	return err
}

// payment is the order that one is for.
func (m *market) payment(i int) event.Ref {
	return event.Ref{OrderID: "payment-" + strconv.Itoa(i), Tenant: tenant}
}

func (m *market) paymentOf(i int) event.Payment {
	p := event.Payment{AmountCents: 1290, Currency: "EUR", Card: provider.CardGood}
	if i >= m.set.Int("charged") {
		p.Card = provider.CardDeclined
	}
	return p
}

// slowLimits give every payment its turn.
func slowLimits(s *stage) shop.Limits {
	l := quickLimits()
	l.Provider.Deadline, l.Provider.Timeout = 20*time.Second, s.set.Duration("limit")
	l.Provider.Bulkhead, l.Provider.Breaker = resilience.Bulkhead{Active: s.set.Int("slots"), Queue: 100}, resilience.Breaker{Failures: always}
	l.Payments.Deadline, l.Payments.Timeout, l.Payments.Breaker = 25*time.Second, 24*time.Second, resilience.Breaker{Failures: always}
	l.Payments.Bulkhead = resilience.Bulkhead{Active: 100}
	return l
}

// reconciled tries payments, and has the provider asked what became of them.
func reconciled(ctx context.Context, s *stage, ask bool) error {
	m, err := s.market(ctx, nil)
	if err != nil {
		return err
	}
	if err := m.open(ctx, slowLimits(s)); err != nil {
		return err
	}
	authorise := func(ctx context.Context, ref event.Ref, p event.Payment) error {
		_, err := m.clients.Payments.Authorise(ctx, ref, p)
		return err
	}
	if err := m.tryPayments(ctx, authorise); err != nil {
		return err
	}
	all := s.set.Int("charged") + s.set.Int("declined")
	if ask {
		if err := m.askInVain(ctx); err != nil {
			return err
		}
	}
	before := m.simulator.Ledger()
	if err := m.providerNet.heal(ctx); err != nil {
		return err
	}
	if ask {
		if _, err := m.desk.Reconciler.Once(ctx); err != nil {
			return err
		}
	} else {
		pause.For(ctx, time.Second)
	}
	after := m.simulator.Ledger()
	s.observe("status_checks", len(after.Checks)-len(before.Checks))
	s.observe("new_charges", len(after.Charges)-len(before.Charges))
	requests := 0
	for _, n := range after.ChargeRequests {
		requests += n
	}
	s.observe("charge_requests", requests)
	s.observe("charges_and_checks_apart", len(after.Charges) == s.set.Int("charged") && len(after.Checks) >= all)
	return m.observePaid(ctx)
}

// askInVain asks while the provider's answers are lost.
func (m *market) askInVain(ctx context.Context) error {
	r, err := m.shop.Payments.Reconciler(payments.ReconcilerOptions{
		Pool: m.pool, Provider: provider.Guard(m.provider, m.desk.Policy), After: time.Nanosecond, Wait: time.Minute, Parallel: m.set.Int("slots"),
	})
	if err != nil {
		return err
	}
	found, err := r.Once(ctx)
	if err != nil {
		return err
	}
	m.observe("unknown_stays_pending", found.Pending)
	due, err := m.count(ctx, laterSQL)
	if err != nil {
		return err
	}
	m.observe("next_check_is_due_later", due)
	return m.exec(ctx, dueNowSQL) // no need to wait for it here
}

const dueNowSQL pg.SQL = `UPDATE @schema@_payments.payments SET next_check_at = now()`

func (m *market) observePaid(ctx context.Context) error {
	ids := 0
	for _, c := range m.simulator.Ledger().Charges {
		var id string
		err := m.pool.QueryRow(ctx, chargeIDSQL.In(m.schema), c.Key).Scan(&id)
		if err == nil && id == c.ID {
			ids++
		}
	}
	m.observe("paid_with_the_providers_ids", ids)
	if err := m.observeCounts(ctx, counted{"paid", paidSQL}, counted{"failed", failedSQL}, counted{"failed_with_an_id", failedIDSQL},
		counted{"pending", pendingSQL}); err != nil {
		return err
	}
	return m.containedMarket(ctx, m.providerAt.highest(), 0)
}
