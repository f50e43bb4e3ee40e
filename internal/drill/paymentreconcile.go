package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
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
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
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

// Roles of processes that take payments over HTTP and ask for those whose outcome they do not know.
const (
	roleDesk       = "desk"
	roleMemoryDesk = "memory-desk"
)

// deskTask is such a process's.
type deskTask struct {
	Listen   string        `json:"listen"`
	Provider string        `json:"provider"`
	Slots    int           `json:"slots"`
	Limit    time.Duration `json:"limit"`
	Ask      bool          `json:"ask"` // for what is not known
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

// desk starts such a process and waits until it answers.
func (s *stage) desk(ctx context.Context, role string, task deskTask) (*process, error) {
	p, err := s.act(ctx, role, task)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: time.Second}
	return p, eventually(ctx, 20*time.Second, "the payment service to listen", func(ctx context.Context) (bool, error) {
		if !p.running() {
			return false, errors.New(p.out.String())
		}
		conn, err := dialer.DialContext(ctx, "tcp", task.Listen)
		if err != nil {
			return false, err
		}
		return true, conn.Close()
	})
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

func deskProvider(o ActOptions) (deskTask, *provider.Client, error) {
	t, err := task[deskTask](o)
	if err != nil {
		return t, nil, err
	}
	client, err := provider.NewClient(provider.ClientOptions{URL: t.Provider, Timeout: time.Minute})
	return t, client, err
}

// actDesk is the shop's payment service.
func actDesk(ctx context.Context, o ActOptions) error {
	t, client, err := deskProvider(o)
	if err != nil {
		return err
	}
	pool, err := o.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	books, err := shop.New(shop.Options{Pool: pool, Provider: client, Prefix: o.Schema, Schema: o.Schema, Logger: o.Logger})
	if err != nil {
		return err
	}
	limits := resilience.Settings{
		Deadline: 20 * time.Second, Timeout: t.Limit, Retry: resilience.Retry{Attempts: 1}, Breaker: resilience.Breaker{Failures: always},
		Bulkhead: resilience.Bulkhead{Active: t.Slots, Queue: 100},
	}
	desk, err := books.Desk(shop.DeskOptions{Client: client, Limits: &limits, Reconcile: payments.ReconcilerOptions{
		After: time.Nanosecond, Every: 100 * time.Millisecond, Wait: 200 * time.Millisecond, MaxWait: 200 * time.Millisecond, Parallel: t.Slots,
	}})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	desk.Routes(mux)
	server, err := httpserver.New(httpserver.Options{Handler: mux, Listen: t.Listen, Logger: o.Logger})
	if err != nil {
		return err
	}
	if !t.Ask {
		return server.Run(ctx)
	}
	return together(2, func(i int) error {
		if i == 0 {
			return server.Run(ctx)
		}
		return desk.Run(ctx)
	})
}

// memoryDesk keeps what it does not know in memory.
type memoryDesk struct {
	client *provider.Client
	limit  time.Duration
	slots  chan struct{}

	mu    sync.Mutex
	items []string
}

// actMemoryDesk is a payment service without books.
func actMemoryDesk(ctx context.Context, o ActOptions) error {
	t, client, err := deskProvider(o)
	if err != nil {
		return err
	}
	d := &memoryDesk{client: client, limit: t.Limit, slots: make(chan struct{}, t.Slots)}
	mux := http.NewServeMux()
	mux.Handle("POST /v1/payments", httpserver.Handler(d.pay))
	mux.HandleFunc("GET /items", func(w http.ResponseWriter, _ *http.Request) {
		d.mu.Lock()
		defer d.mu.Unlock()
		_, _ = fmt.Fprint(w, len(d.items)) // the drill's own question
	})
	server, err := httpserver.New(httpserver.Options{Handler: mux, Listen: t.Listen, Logger: o.Logger})
	if err != nil {
		return err
	}
	return together(2, func(i int) error {
		if i == 0 {
			return server.Run(ctx)
		}
		for t.Ask && pause.For(ctx, 100*time.Millisecond) {
			d.ask(ctx)
		}
		return nil
	})
}

func (d *memoryDesk) pay(w http.ResponseWriter, r *http.Request) error {
	var p struct {
		OrderID string `json:"orderId"`
		event.Payment
	}
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		return err
	}
	d.slots <- struct{}{}
	defer func() { <-d.slots }()
	ctx, cancel := context.WithTimeout(r.Context(), d.limit)
	defer cancel()
	_, err := d.client.Charge(ctx, p.OrderID, provider.ChargeRequest{OrderID: p.OrderID, Tenant: tenant, AmountCents: p.AmountCents, Currency: p.Currency, Card: p.Card})
	if err != nil {
		d.mu.Lock()
		d.items = append(d.items, p.OrderID)
		d.mu.Unlock()
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// ask asks for everything that it remembers.
func (d *memoryDesk) ask(ctx context.Context) {
	d.mu.Lock()
	items := append([]string{}, d.items...)
	d.mu.Unlock()
	for _, id := range items {
		_, _ = d.client.Check(ctx, id) // what it says has nowhere to go
	}
}
