package drill

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/internal/pause"
)

func durableReconciliation() Drill {
	return Drill{
		Name: "durable-reconciliation", Section: SectionOutcomes, Settings: paymentSettings(),
		Proves: "what is to be asked for survives the process that did not learn it",
		Arms: []Arm{
			{Name: Before, Does: "the work is in memory, and its process is killed", play: func(ctx context.Context, s *stage) error { return survived(ctx, s, roleMemoryDesk) }},
			{Name: After, Does: "each charge is written down before it is asked for; its process is killed", play: func(ctx context.Context, s *stage) error { return survived(ctx, s, roleDesk) }},
		},
		checks: func(s Settings) []Check {
			charged, declined := s.Int("charged"), s.Int("declined")
			all := charged + declined
			return append(append(
				expect(Before, "timed_out", all, "work_items_before_kill", all, "work_items_reloaded", 0, "status_checks", 0, "paid", 0, "charges", charged),
				expect(After, "timed_out", all, "work_items_before_kill", all, "work_items_reloaded", all, "status_checks", atLeast(all), "paid", charged,
					"paid_with_the_providers_ids", charged, "failed", declined, "pending", 0, "charges", charged)...),
				append(containment(Before), containment(After)...)...)
		},
	}
}

// survived kills the process between the payments and the questions.
func survived(ctx context.Context, s *stage, role string) error {
	m, err := s.market(ctx, nil)
	if err != nil {
		return err
	}
	address, err := freePort(ctx)
	if err != nil {
		return err
	}
	task := deskTask{Listen: address, Provider: m.providerURL, Slots: s.set.Int("slots"), Limit: s.set.Duration("limit")}
	first, err := s.desk(ctx, role, task)
	if err != nil {
		return err
	}
	limits := slowLimits(s)
	if m.clients, err = m.shop.Clients(shop.ClientsOptions{Payments: "http://" + address, Limits: &limits}); err != nil {
		return err
	}
	s.onClose(func(context.Context) error { m.clients.Close(); return nil })
	authorise := func(ctx context.Context, ref event.Ref, p event.Payment) error {
		_, err := m.clients.Payments.Authorise(ctx, ref, p)
		return err
	}
	if err := m.tryPayments(ctx, authorise); err != nil {
		return err
	}
	if err := m.observeItems(ctx, role, address, "work_items_before_kill"); err != nil {
		return err
	}
	first.kill()
	if err := m.providerNet.heal(ctx); err != nil {
		return err
	}
	checks := len(m.simulator.Ledger().Checks)
	if task.Listen, err = freePort(ctx); err != nil {
		return err
	}
	task.Ask = role == roleMemoryDesk // the durable one begins when what it has reloaded was counted
	second, err := s.desk(ctx, role, task)
	if err != nil {
		return err
	}
	if err := m.observeItems(ctx, role, task.Listen, "work_items_reloaded"); err != nil {
		return err
	}
	if role == roleDesk {
		second.kill()
		task.Ask = true
		if _, err := s.desk(ctx, role, task); err != nil {
			return err
		}
		err = eventually(ctx, 20*time.Second, "every payment to be known", func(ctx context.Context) (bool, error) {
			n, err := m.count(ctx, pendingSQL)
			return n == 0, err
		})
	} else {
		pause.For(ctx, time.Second)
	}
	s.observe("status_checks", len(m.simulator.Ledger().Checks)-checks)
	s.observe("charges", len(m.simulator.Ledger().Charges))
	return errors.Join(err, m.observePaid(ctx))
}

// observeItems notes how many payments the process has to ask for: in its memory, or in the database.
func (m *market) observeItems(ctx context.Context, role, address, figure string) error {
	if role == roleDesk {
		return m.observeCount(ctx, figure, pendingSQL)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/items", http.NoBody)
	if err != nil {
		return err
	}
	a, err := m.naive().send(r)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(string(a.body))
	m.observe(figure, n)
	return err
}
