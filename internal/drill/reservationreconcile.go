package drill

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/payments"
	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/reconcile"
)

func reservationReconcile() Drill {
	return Drill{
		Name: "reservation-reconcile", Section: SectionSaga,
		Proves: "reservations of cancelled and unknown orders are found and released; those of healthy orders are left alone",
		Settings: []Setting{
			count("cancelled", 2, 1, 50, "old reservations whose order was cancelled without a word to the inventory"),
			count("unknown", 1, 1, 50, "old reservations whose order nobody knows"),
			count("healthy", 2, 1, 50, "old reservations of orders that are on their way"),
			count("young", 1, 1, 50, "reservations of cancelled orders that are too young to be suspect"),
		},
		Arms: []Arm{
			{Name: Before, Does: "nobody looks", play: func(ctx context.Context, s *stage) error { return abandoned(ctx, s, false) }},
			{Name: After, Does: "reconciliation asks the orders and releases (hourly by default)", play: func(ctx context.Context, s *stage) error { return abandoned(ctx, s, true) }},
		},
		checks: func(s Settings) []Check {
			wrong, right := s.Int("cancelled")+s.Int("unknown"), s.Int("healthy")+s.Int("young")
			return append(
				expect(Before, "released", 0, "leaked", wrong+s.Int("young")),
				expect(After, "checked", wrong+s.Int("healthy"), "mismatches", wrong, "released", wrong, "logged_at_error", wrong, "still_active", right,
					"stock_held", 2*right, "second_cycle", 0, "healthy_orders_touched", 0, "charges", 0)...)
		},
	}
}

const (
	abandonCancel  pg.SQL = `UPDATE @schema@_orders.orders SET status = 'CANCELLED', reason = 'PAYMENT_TIMEOUT' WHERE id = $1`
	abandonDelete  pg.SQL = `DELETE FROM @schema@_orders.orders WHERE id = $1`
	abandonAge     pg.SQL = `UPDATE @schema@_inventory.reservations SET created_at = now() - interval '21 minutes' WHERE order_id = $1`
	abandonActive  pg.SQL = `SELECT count(*) FROM @schema@_inventory.reservations WHERE status = 'ACTIVE'`
	abandonLoose   pg.SQL = `SELECT count(*) FROM @schema@_inventory.reservations WHERE status = 'RELEASED'`
	abandonHealthy pg.SQL = `SELECT count(*) FROM @schema@_orders.orders WHERE status = 'STOCK_RESERVED'`
)

// abandonedAge is the rule's: reservations over it are suspect.
const abandonedAge = 20 * time.Minute

// abandoned makes orders whose payment is never asked for, breaks some of them, and has them reconciled.
func abandoned(ctx context.Context, s *stage, reconciled bool) error {
	m, err := s.market(ctx, nil)
	if err != nil {
		return err
	}
	ignore := func(consumer.Handler) consumer.Handler { // nobody pays
		return func(context.Context, pgx.Tx, message.Message) error { return nil }
	}
	if err := m.work(ctx, map[string]consumer.Middleware{payments.Queue: ignore}); err != nil {
		return err
	}
	groups := []int{s.set.Int("cancelled"), s.set.Int("unknown"), s.set.Int("healthy"), s.set.Int("young")}
	ids, err := m.submit(ctx, groups[0]+groups[1]+groups[2]+groups[3])
	if err != nil {
		return err
	}
	err = eventually(ctx, 20*time.Second, "the stock to be reserved", func(ctx context.Context) (bool, error) {
		n, err := m.count(ctx, abandonHealthy)
		return n == len(ids), err
	})
	if err != nil {
		return err
	}
	if err := m.abandon(ctx, ids, groups); err != nil {
		return err
	}
	if reconciled {
		err = m.reconcileReservations(ctx)
	} else {
		pause.For(ctx, time.Second)
	}
	if err != nil {
		return err
	}
	healthy, err := m.count(ctx, abandonHealthy)
	if err != nil {
		return err
	}
	s.observe("healthy_orders_touched", groups[2]-healthy)
	s.observe("charges", len(m.simulator.Ledger().Charges))
	return m.observeCounts(ctx, counted{"released", abandonLoose}, counted{"still_active", abandonActive}, counted{"stock_held", stuckHeld}, counted{"leaked", leaks})
}

// abandon breaks the orders, group by group.
func (m *market) abandon(ctx context.Context, ids []string, groups []int) error {
	at := 0
	for group, n := range groups {
		for range n {
			id := ids[at]
			at++
			var steps []pg.SQL
			switch group {
			case 0:
				steps = []pg.SQL{abandonCancel, abandonAge}
			case 1:
				steps = []pg.SQL{abandonDelete, abandonAge}
			case 2:
				steps = []pg.SQL{abandonAge}
			case 3:
				steps = []pg.SQL{abandonCancel}
			}
			for _, step := range steps {
				if err := m.exec(ctx, step, id); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// reconcileReservations runs the shop's rule twice.
func (m *market) reconcileReservations(ctx context.Context) error {
	authority, err := reconcile.NewSQL(reconcile.SQLOptions{
		Pool: m.pool, Query: fmt.Sprintf(`SELECT status FROM %s_orders.orders WHERE id = {orderId} AND tenant = {tenant}`, m.schema),
	})
	if err != nil {
		return err
	}
	action := func(reason string) reconcile.Action {
		return reconcile.Action{NewStatus: "EXPIRED", Reason: reason, EventType: event.TypeStockExpired, Exchange: event.Exchange}
	}
	r, err := reconcile.New(reconcile.Options{Pool: m.pool, Schema: m.schema, Host: m.o.Host, Logger: m.logger, Rules: []reconcile.Rule{{
		Name: "reconcile-reservations", Subject: "reservation", Table: m.schema + "_inventory.reservations", Key: "order_id", Status: "status",
		Suspects: []string{"ACTIVE"}, Clock: "created_at", Age: abandonedAge, Columns: map[string]string{"orderId": "order_id", "tenant": "tenant"}, ReasonColumn: "reason",
		Authority: authority, Keep: []string{orders.StatusPending, orders.StatusStockReserved, orders.StatusConfirmed},
		Answers: map[string]reconcile.Action{orders.StatusCancelled: action("ORDER_CANCELLED"), reconcile.NotFound: action("ORDER_UNKNOWN")},
	}}})
	if err != nil {
		return err
	}
	first, err := r.Once(ctx)
	if err != nil {
		return err
	}
	m.observe("checked", first[0].Checked)
	m.observe("mismatches", first[0].Mismatches)
	m.observe("logged_at_error", m.logs.count("reservation discrepancy", "level", "error"))
	err = eventually(ctx, 20*time.Second, "the stock to go back", func(ctx context.Context) (bool, error) {
		n, err := m.count(ctx, abandonLoose)
		return n >= first[0].Mismatches, err
	})
	if err != nil {
		return err
	}
	second, err := r.Once(ctx)
	if err == nil {
		m.observe("second_cycle", second[0].Mismatches)
	}
	return err
}
