package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/fallback"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

func paymentFallback() Drill {
	return Drill{
		Name: "fallback", Section: SectionCalls,
		Proves: "a payment whose outcome is unknown is answered as pending, never guessed, never charged again, and nothing follows before it is confirmed",
		Settings: []Setting{
			count("payments", 6, 1, 50, "payments, while the provider charges and does not answer"),
			length("limit", 300*time.Millisecond, 50*time.Millisecond, 2*time.Second, "time of an attempt (5s for the shop's provider)"),
			length("hang", 2*time.Second, 500*time.Millisecond, 10*time.Second, "how long the provider does not answer after it has charged"),
		},
		Arms: []Arm{
			{Name: Before, Does: "the error is the answer", play: func(ctx context.Context, s *stage) error { return payAll(ctx, s, bareTill) }},
			{Name: After, Does: "an honest pending answer, then the status is asked for", play: func(ctx context.Context, s *stage) error { return payAll(ctx, s, honestTill) }},
		},
		checks: func(s Settings) []Check {
			n := s.Int("payments")
			return append(append(
				expect(Before, "bare_failures", n, "pending_answers", 0),
				expect(After, "bare_failures", 0, "pending_answers", n, "honest_answers", n, "attempts_per_key", 1,
					"asked_again_pending_or_latest", n, "charges", n, "mails_before_confirmation", 0, "paid_at_last", n, "status_checks", atLeast(n),
					"mails", n)...),
				append(containment(Before), containment(After)...)...)
		},
	}
}

const (
	tillTable pg.SQL = `CREATE TABLE @schema@.drill_payments (key text PRIMARY KEY, status text NOT NULL, charge_id text)`
	tillStart pg.SQL = `INSERT INTO @schema@.drill_payments (key, status) VALUES ($1, 'PendingConfirmation') ON CONFLICT DO NOTHING`
	tillPaid  pg.SQL = `UPDATE @schema@.drill_payments SET status = 'Paid', charge_id = $2 WHERE key = $1 AND status = 'PendingConfirmation'`
	tillMails pg.SQL = `SELECT count(*) FROM @schema@.outbox WHERE type = 'mail.requested'`
)

// till takes payments over HTTP and charges at a provider.
type till struct {
	stage     *stage
	simulator *provider.Simulator
	atOnce    *meter // requests at the provider
	policy    *policy.Policy
	provider  *provider.Client
	outbox    *outbox.Outbox
}

// payAll sends all payments while the provider hangs, again while it is out of reach, and once more when all is well.
func payAll(ctx context.Context, s *stage, handler func(*till) (http.Handler, error)) error {
	if _, err := s.database(ctx); err != nil {
		return err
	}
	if err := s.exec(ctx, tillTable); err != nil {
		return err
	}
	t, network, err := s.till(ctx)
	if err != nil {
		return err
	}
	h, err := handler(t)
	if err != nil {
		return err
	}
	shop, err := s.serve(ctx, h)
	if err != nil {
		return err
	}
	first, err := s.pay(ctx, shop)
	if err != nil {
		return err
	}
	network.cut()
	second, err := s.pay(ctx, shop)
	if err != nil {
		return err
	}
	s.observe("bare_failures", first.bare)
	s.observe("pending_answers", first.pending)
	s.observe("honest_answers", first.honest)
	s.observe("asked_again_pending_or_latest", second.pending+second.paid)
	if err := s.observeCount(ctx, "mails_before_confirmation", tillMails); err != nil {
		return err
	}
	if err := network.heal(ctx); err != nil {
		return err
	}
	third, err := s.pay(ctx, shop)
	if err != nil {
		return err
	}
	s.observe("paid_at_last", third.paid)
	t.observeLedger()
	return s.observeCount(ctx, "mails", tillMails)
}

// till is one whose provider charges and does not answer, behind a network.
func (s *stage) till(ctx context.Context) (*till, *network, error) {
	t := &till{stage: s, simulator: provider.NewSimulator(), atOnce: &meter{}}
	hang := provider.Rule{Fault: provider.FaultHang, DelayMS: int(s.set.Duration("hang").Milliseconds())}
	if err := t.simulator.SetRules(hang); err != nil {
		return nil, nil, err
	}
	s.onClose(func(context.Context) error { return t.simulator.SetRules() }) // lets go of what hangs
	network, url, err := s.simulate(ctx, t.atOnce.wrap(t.simulator))
	if err != nil {
		return nil, nil, err
	}
	t.policy, err = s.policy("provider", resilience.Settings{
		Deadline: time.Minute, Timeout: s.set.Duration("limit"), Retry: resilience.Retry{Attempts: 1}, Breaker: resilience.Breaker{Failures: always},
		Bulkhead: resilience.Bulkhead{Active: 2, Queue: s.set.Int("payments")},
	})
	if err != nil {
		return nil, nil, err
	}
	if t.provider, err = provider.NewClient(provider.ClientOptions{URL: url, Timeout: time.Minute, Transport: s.transport()}); err != nil {
		return nil, nil, err
	}
	t.outbox, err = outbox.New(outbox.Options{Schema: s.schema})
	return t, network, err
}

// observeLedger notes what happened at the provider.
func (t *till) observeLedger() {
	s, ledger, most := t.stage, t.simulator.Ledger(), 0
	for _, n := range ledger.ChargeRequests {
		most = max(most, n)
	}
	s.observe("attempts_per_key", most)
	s.observe("charges", len(ledger.Charges))
	s.observe("status_checks", len(ledger.Checks))
	active, queued := t.policy.Places()
	s.contained(t.atOnce.highest(), 0, active+queued, len(ledger.Charges)-s.set.Int("payments"))
}

// simulate serves a provider behind a network that can fail.
func (s *stage) simulate(ctx context.Context, simulator http.Handler) (*network, string, error) {
	direct, err := s.serve(ctx, simulator)
	if err != nil {
		return nil, "", err
	}
	return s.network(direct)
}

// paid counts answers to payments.
type paid struct{ bare, pending, honest, paid int }

// pay sends each payment once, the same key in every round.
func (s *stage) pay(ctx context.Context, url string) (p paid, err error) {
	client := s.naive()
	var mu sync.Mutex
	err = together(s.set.Int("payments"), func(i int) error {
		key := fmt.Sprintf("payment-%d", i)
		a, err := client.post(ctx, url, key)
		var pending fallback.Pending
		a.json(&pending)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case a.status >= http.StatusBadRequest:
			p.bare++
		case pending.PaymentStatus == "Paid":
			p.paid++
		case pending.PaymentStatus == "PendingConfirmation":
			p.pending++
		}
		if honest(pending, key) {
			p.honest++
		}
		return err
	})
	return p, err
}

// honest compares an answer, but for its message, with what the scenario asks for.
func honest(p fallback.Pending, key string) bool {
	some := p.Message != ""
	p.Message = ""
	return some && p == fallback.Pending{
		PaymentStatus: "PendingConfirmation", IsFallback: true, Source: "provider", Reason: fallback.ReasonTimeout, RequiresStatusCheck: true,
		RetryAdvice: "retry-with-same-idempotency-key", IdempotencyKey: key,
	}
}

func (t *till) charge(ctx context.Context, key string) (charge provider.Charge, err error) {
	err = t.policy.Do(ctx, policy.Call{}, func(ctx context.Context) error {
		charge, err = t.provider.Charge(ctx, key, provider.ChargeRequest{OrderID: key, Tenant: "t", AmountCents: 100, Currency: "EUR", Card: provider.CardGood})
		return err
	})
	return charge, err
}

func (t *till) check(ctx context.Context, key string) (charge provider.Charge, err error) {
	err = t.policy.Do(ctx, policy.Call{Idempotent: true, Recovery: true}, func(ctx context.Context) error {
		charge, err = t.provider.Check(ctx, key)
		return err
	})
	return charge, err
}

// bareTill charges, and answers with whatever error that ends in.
func bareTill(t *till) (http.Handler, error) {
	return httpserver.Handler(func(w http.ResponseWriter, r *http.Request) error {
		charge, err := t.charge(r.Context(), r.Header.Get(idempotency.HeaderKey))
		if err != nil {
			return err
		}
		return json.NewEncoder(w).Encode(paidAnswer(charge))
	}), nil
}

// honestTill writes down what it is about to charge, and answers with what it knows.
func honestTill(t *till) (http.Handler, error) {
	store, err := idempotency.New(idempotency.Options{
		Pool: t.stage.pool, Schema: t.stage.schema, Logger: t.stage.logger,
		Caller: func(*http.Request) (string, error) { return "shop", nil },
	})
	if err != nil {
		return nil, err
	}
	return store.HandleSteps(idempotency.Steps{
		Start: func(ctx context.Context, tx pgx.Tx, r *http.Request) (idempotency.Answer, error) {
			_, err := tx.Exec(ctx, tillStart.In(t.stage.schema), r.Header.Get(idempotency.HeaderKey))
			return pendingAnswer(resilience.ErrCancelled, r.Header.Get(idempotency.HeaderKey)), err // should this process die now
		},
		Ask: func(ctx context.Context, r *http.Request) (idempotency.Finish, error) {
			return t.finish(r, func(key string) (provider.Charge, error) { return t.charge(ctx, key) })
		},
		Check: func(ctx context.Context, r *http.Request) (idempotency.Finish, error) {
			return t.finish(r, func(key string) (provider.Charge, error) { return t.check(ctx, key) })
		},
	}), nil
}

// finish follows what the provider says: a mail is asked for only when the charge is known. Without an answer the payment stays
// pending, with the reason.
func (t *till) finish(r *http.Request, ask func(key string) (provider.Charge, error)) (idempotency.Finish, error) {
	key := r.Header.Get(idempotency.HeaderKey)
	charge, err := ask(key)
	if err != nil {
		return func(context.Context, pgx.Tx) (idempotency.Answer, error) { return pendingAnswer(err, key), nil }, nil //nolint:nilerr // the error is in the answer
	}
	return func(ctx context.Context, tx pgx.Tx) (idempotency.Answer, error) {
		_, err := tx.Exec(ctx, tillPaid.In(t.stage.schema), key, charge.ID)
		mail := message.Message{ID: message.NewID(), Type: "mail.requested", Key: key, Payload: []byte(`{}`)}
		_, failed := t.outbox.Enqueue(ctx, tx, mail)
		return idempotency.JSON(http.StatusOK, paidAnswer(charge)), errors.Join(err, failed)
	}, nil
}

func pendingAnswer(err error, key string) idempotency.Answer {
	pending, _ := fallback.PendingPayment(err, "provider", key)
	a := idempotency.JSON(http.StatusAccepted, pending)
	a.Pending = true
	return a
}

func paidAnswer(charge provider.Charge) map[string]any {
	return map[string]any{"paymentStatus": "Paid", "paymentConfirmed": true, "transactionId": charge.ID, "idempotencyKey": charge.Key}
}
