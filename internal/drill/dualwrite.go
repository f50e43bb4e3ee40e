package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

func dualWrite() Drill {
	return Drill{
		Name: "dual-write", Section: SectionOutbox,
		Proves: "a business row and its event are committed together or not at all, whenever the process is killed",
		Settings: []Setting{
			count("paid", 4, 1, 20, "payments that the provider charges"),
			count("declined", 2, 0, 20, "payments that it declines"),
			count("crashes", 3, 1, 20, "of the charged ones, those during which the process is killed (SIGKILL)"),
		},
		Arms: []Arm{
			{Name: Before, Does: "two commits, killed between them", play: func(ctx context.Context, s *stage) error { return tills(ctx, s, false) }},
			{Name: After, Does: "one transaction, killed before its commit; tried again with the same key", play: func(ctx context.Context, s *stage) error { return tills(ctx, s, true) }},
		},
		checks: func(s Settings) []Check {
			paid, declined := s.Int("paid"), s.Int("declined")
			crashes := min(s.Int("crashes"), paid)
			all := paid + declined
			return append(
				expect(Before, "payments", all, "outbox_rows", all-crashes, "payments_without_event", crashes, "paid", paid-crashes, "failed", declined,
					"pending_though_charged", crashes, "charges", paid),
				expect(After, "rollbacks", crashes, "payments", all, "outbox_rows", all, "payments_without_event", 0, "events_without_payment", 0,
					"paid", paid, "failed", declined, "pending", 0, "pending_though_charged", 0, "charges", paid)...)
		},
	}
}

const (
	dualTable   pg.SQL = `CREATE TABLE @schema@.drill_payments (key text PRIMARY KEY, status text NOT NULL)`
	dualPending pg.SQL = `INSERT INTO @schema@.drill_payments VALUES ($1, 'Pending') ON CONFLICT DO NOTHING`
	dualStatus  pg.SQL = `UPDATE @schema@.drill_payments SET status = $2 WHERE key = $1 AND status = 'Pending'`
	dualAll     pg.SQL = `SELECT count(*) FROM @schema@.drill_payments`
	dualThere   pg.SQL = `SELECT count(*) FROM @schema@.drill_payments WHERE key = $1`
	dualPaid    pg.SQL = `SELECT count(*) FROM @schema@.drill_payments WHERE status = 'Paid'`
	dualFailed  pg.SQL = `SELECT count(*) FROM @schema@.drill_payments WHERE status = 'Failed'`
	dualOpen    pg.SQL = `SELECT count(*) FROM @schema@.drill_payments WHERE status = 'Pending'`
	dualRows    pg.SQL = `SELECT count(*) FROM @schema@.outbox`
	dualOrphans pg.SQL = `SELECT count(*) FROM @schema@.drill_payments p WHERE NOT EXISTS (SELECT FROM @schema@.outbox o WHERE o.key = p.key)`
	dualGhosts  pg.SQL = `SELECT count(*) FROM @schema@.outbox o WHERE NOT EXISTS (SELECT FROM @schema@.drill_payments p WHERE p.key = o.key)`
	dualKeys    pg.SQL = `SELECT key FROM @schema@.drill_payments WHERE status = 'Pending'`
)

// dualPayment is one payment of a task.
type dualPayment struct {
	Key   string `json:"key"`
	Card  string `json:"card"`
	Crash bool   `json:"crash"` // the process kills itself in the middle
}

// roleTill is the process that takes payments.
const roleTill = "till"

// tillTask is its task.
type tillTask struct {
	Provider string        `json:"provider"`
	One      bool          `json:"one"` // transaction for both rows
	Payments []dualPayment `json:"payments"`
}

// tills lets a process take payments, which is killed and started again, and then lets the events go their way.
func tills(ctx context.Context, s *stage, one bool) error {
	queue := work("drill.payments", 3, 200*time.Millisecond)
	if err := s.prepare(ctx, queue); err != nil {
		return err
	}
	if err := s.exec(ctx, dualTable); err != nil {
		return err
	}
	simulator := provider.NewSimulator()
	url, err := s.serve(ctx, simulator)
	if err != nil {
		return err
	}
	if err := s.takePayments(ctx, url, one); err != nil {
		return err
	}
	err = s.observeCounts(ctx, counted{"payments", dualAll}, counted{"outbox_rows", dualRows}, counted{"payments_without_event", dualOrphans},
		counted{"events_without_payment", dualGhosts})
	if err != nil {
		return err
	}
	if err := s.settlePayments(ctx, queue.Name); err != nil {
		return err
	}
	return s.observePayments(ctx, simulator.Ledger())
}

// takePayments starts the process anew whenever it was killed. With one transaction the client sends again, with the same key.
func (s *stage) takePayments(ctx context.Context, url string, one bool) error {
	var left []dualPayment
	for i := range s.set.Int("paid") + s.set.Int("declined") {
		p := dualPayment{Key: fmt.Sprintf("payment-%d", i), Card: provider.CardGood, Crash: i < min(s.set.Int("crashes"), s.set.Int("paid"))}
		if i >= s.set.Int("paid") {
			p.Card = provider.CardDeclined
		}
		left = append(left, p)
	}
	rollbacks := 0
	for len(left) > 0 {
		p, err := s.act(ctx, roleTill, tillTask{Provider: url, One: one, Payments: left})
		if err != nil {
			return err
		}
		code, err := p.wait(ctx, 20*time.Second)
		if err != nil {
			return err
		}
		if code > 0 {
			return fmt.Errorf("%s failed: %s", p.name, p.out)
		}
		killed := slices.IndexFunc(left, func(p dualPayment) bool { return p.Crash })
		if code == 0 || killed < 0 {
			break
		}
		there, err := s.count(ctx, dualThere, left[killed].Key)
		if err != nil {
			return err
		}
		if there == 0 {
			rollbacks++
		}
		again := left[killed]
		again.Crash = false
		left = left[killed+1:]
		if one {
			left = append([]dualPayment{again}, left...)
		}
	}
	s.observe("rollbacks", rollbacks)
	return nil
}

// settlePayments publishes the events and lets a consumer work them off.
func (s *stage) settlePayments(ctx context.Context, queue string) error {
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	if _, err := s.relay(ctx, "relay", nil); err != nil {
		return err
	}
	events, err := s.count(ctx, dualRows)
	if err != nil {
		return err
	}
	consumed, err := s.consume(ctx, work(queue, 3, 200*time.Millisecond), func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		var outcome struct{ Status string }
		if err := json.Unmarshal(m.Payload, &outcome); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, dualStatus.In(s.schema), m.Key, outcome.Status)
		return err
	}, nil)
	if err != nil {
		return err
	}
	return eventually(ctx, 20*time.Second, "the events to be handled", func(ctx context.Context) (bool, error) {
		rows, err := s.count(ctx, waiting)
		if err != nil || rows > 0 {
			return false, err
		}
		waits, err := ready(ctx, conn, queue)
		return waits == 0 && int(consumed.value("surefoot_consumer_handled_total")) >= events, err
	})
}

func (s *stage) observePayments(ctx context.Context, ledger provider.Ledger) error {
	err := s.observeCounts(ctx, counted{"paid", dualPaid}, counted{"failed", dualFailed}, counted{"pending", dualOpen})
	if err != nil {
		return err
	}
	rows, err := s.pool.Query(ctx, dualKeys.In(s.schema))
	if err != nil {
		return err
	}
	pending, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	charged := 0
	for _, c := range ledger.Charges {
		if slices.Contains(pending, c.Key) {
			charged++
		}
	}
	s.observe("pending_though_charged", charged)
	s.observe("charges", len(ledger.Charges))
	return nil
}

// actTill takes the payments of its task.
func actTill(ctx context.Context, o ActOptions) error {
	t, err := task[tillTask](o)
	if err != nil {
		return err
	}
	pool, err := o.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := provider.NewClient(provider.ClientOptions{URL: t.Provider})
	if err != nil {
		return err
	}
	defer client.Close()
	box, err := outbox.New(outbox.Options{Schema: o.Schema})
	if err != nil {
		return err
	}
	w := dualWriter{schema: o.Schema, pool: pool, outbox: box}
	for _, p := range t.Payments {
		_, err := client.Charge(ctx, p.Key, provider.ChargeRequest{OrderID: p.Key, Tenant: "t", AmountCents: 100, Currency: "EUR", Card: p.Card})
		status := "Paid"
		if errors.Is(err, provider.ErrDeclined) {
			status, err = "Failed", nil
		}
		if err != nil {
			return err
		}
		outcome := newEvent("drill.paid", p.Key, map[string]string{"Status": status})
		if t.One {
			err = w.together(ctx, p, outcome)
		} else {
			err = w.apart(ctx, p, outcome)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// dualWriter writes a payment and its event.
type dualWriter struct {
	schema string
	pool   *pgxpool.Pool
	outbox *outbox.Outbox
}

// apart writes them in two transactions.
func (w dualWriter) apart(ctx context.Context, p dualPayment, outcome message.Message) error {
	if _, err := w.pool.Exec(ctx, dualPending.In(w.schema), p.Key); err != nil {
		return err
	}
	if p.Crash {
		return die()
	}
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		_, err := w.outbox.Enqueue(ctx, tx, outcome)
		return err
	})
}

// together writes them in one.
func (w dualWriter) together(ctx context.Context, p dualPayment, outcome message.Message) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, dualPending.In(w.schema), p.Key); err != nil {
			return err
		}
		if _, err := w.outbox.Enqueue(ctx, tx, outcome); err != nil {
			return err
		}
		if p.Crash {
			return die()
		}
		return nil
	})
}
