package drill

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/watchdog"
)

func latePayment() Drill {
	return Drill{
		Name: "late-payment", Section: SectionQueues,
		Proves: "a confirmed payment that is redriven after its order was cancelled changes nothing, and the money has gone back",
		Settings: []Setting{
			length("limit", 500*time.Millisecond, 100*time.Millisecond, 10*time.Second, "how long an order may wait for its payment (10m by default)"),
		},
		Arms: []Arm{
			{Name: Before, Does: "a handler that confirms whatever state the order is in", play: func(ctx context.Context, s *stage) error { return late(ctx, s, unguarded) }},
			{Name: After, Does: "a state machine whose steps are guarded", play: func(ctx context.Context, s *stage) error {
				return late(ctx, s, func(_ *stage, next consumer.Handler) consumer.Handler { return next })
			}},
		},
		checks: func(Settings) []Check {
			return append(
				expect(Before, "dead_letters", 1, "redriven", 1, "order_status", orders.StatusConfirmed, "refunds", 1, "kept_cents", 0),
				expect(After, "dead_letters", 1, "cancelled_before_redrive", true, "redriven", 1, "order_status", orders.StatusCancelled, "charges", 1, "charge_requests", 1,
					"refunds", 1, "kept_cents", 0, "reservation", "RELEASED", "violations", 0)...)
		},
	}
}

const unguardedSQL pg.SQL = `UPDATE @schema@_orders.orders SET status = 'CONFIRMED', reason = NULL WHERE id = $1`

// unguarded is a handler without a state machine.
func unguarded(s *stage, next consumer.Handler) consumer.Handler {
	return func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if m.Type != event.TypePaymentConfirmed {
			return next(ctx, tx, m)
		}
		_, err := tx.Exec(ctx, unguardedSQL.In(s.schema), m.Key)
		return err
	}
}

var errBroken = errors.New("the orders service cannot read a payment")

// late has the news of a payment die, the watchdog cancel the order, and the news come back.
func late(ctx context.Context, s *stage, confirm func(*stage, consumer.Handler) consumer.Handler) error {
	m, err := s.market(ctx, nil)
	if err != nil {
		return err
	}
	var mended atomic.Bool
	broken := func(next consumer.Handler) consumer.Handler {
		mendedHandler := confirm(s, next)
		return func(ctx context.Context, tx pgx.Tx, msg message.Message) error {
			if msg.Type == event.TypePaymentConfirmed && !mended.Load() {
				return consumer.Permanent(errBroken)
			}
			return mendedHandler(ctx, tx, msg)
		}
	}
	if err := m.work(ctx, map[string]consumer.Middleware{orders.Queue: broken}); err != nil {
		return err
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	if _, err := m.submit(ctx, 1); err != nil {
		return err
	}
	if err := s.dead(ctx, conn, deadletter.DLQ(orders.Queue), 1); err != nil {
		return err
	}
	dead, err := ready(ctx, conn, deadletter.DLQ(orders.Queue))
	if err != nil {
		return err
	}
	s.observe("dead_letters", dead)
	if err := m.cancelStuck(ctx); err != nil {
		return err
	}
	account, err := m.settled(ctx, 20*time.Second)
	if err != nil {
		return err
	}
	s.observe("cancelled_before_redrive", account.Orders[0].Status == orders.StatusCancelled)
	mended.Store(true)
	if err := m.redriveAll(ctx, orders.Queue); err != nil {
		return err
	}
	return m.observeOrder(ctx)
}

// cancelStuck runs the watchdog's cycles until it has cancelled an order.
func (m *market) cancelStuck(ctx context.Context) error {
	dog, err := watchdog.New(watchdog.Options{
		Pool: m.pool, Schema: m.schema, Rules: []watchdog.Rule{shop.PaymentTimeout(m.schema, m.set.Duration("limit"))}, Logger: m.logger,
	})
	if err != nil {
		return err
	}
	return eventually(ctx, 20*time.Second, "the watchdog to cancel the order", func(ctx context.Context) (bool, error) {
		results, err := dog.Once(ctx)
		return err == nil && results[0].Cancelled > 0, err
	})
}

// redriveAll brings everything back from a dead-letter queue, and waits until the queues are empty.
func (m *market) redriveAll(ctx context.Context, queue string) error {
	letters, err := m.letters(ctx)
	if err != nil {
		return err
	}
	done := func() int {
		return int(m.parts[queue].value("surefoot_consumer_handled_total", "type", event.TypePaymentConfirmed, "result", "done"))
	}
	before := done()
	result, err := letters.Redrive(ctx, deadletter.RedriveRequest{Common: deadletter.Common{Queue: queue, Who: operator, Reason: "the service is mended"}})
	if err != nil {
		return err
	}
	m.observe("redriven", result.Done)
	return eventually(ctx, 20*time.Second, "the redriven messages to be handled", func(context.Context) (bool, error) {
		return done() >= before+result.Done, nil
	})
}

// observeOrder notes what became of the one order.
func (m *market) observeOrder(ctx context.Context) error {
	account, err := m.settled(ctx, 20*time.Second)
	if err != nil {
		return err
	}
	o := account.Orders[0]
	ledger := m.simulator.Ledger()
	m.observe("order_status", o.Status)
	m.observe("reservation", o.Reservation)
	m.observe("charges", len(ledger.Charges))
	m.observe("charge_requests", ledger.ChargeRequests[o.ID])
	m.observe("refunds", o.Refunds)
	m.observe("kept_cents", int(o.NetCents))
	m.observe("violations", len(account.Violations))
	return nil
}
