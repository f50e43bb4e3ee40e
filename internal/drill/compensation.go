package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/internal/pg"
)

func compensation() Drill {
	return Drill{
		Name: "compensation", Section: SectionOutcomes,
		Proves: "an order that cannot go on is asked about first, and then gives its stock back, once; other orders are not touched",
		Settings: []Setting{
			count("releases", 3, 1, 20, "further releases of the same reservation"),
		},
		Arms: []Arm{
			{Name: Before, Does: "the order is cancelled, and nobody tells the inventory", play: func(ctx context.Context, s *stage) error { return compensated(ctx, s, false) }},
			{Name: After, Does: "a recovery case: ask, then finish or compensate", play: func(ctx context.Context, s *stage) error { return compensated(ctx, s, true) }},
		},
		checks: func(Settings) []Check {
			return append(append(
				expect(Before, "order", http.StatusAccepted, "active_reservation_leaks", 1, "stock_given_back", 0),
				expect(After, "order", http.StatusAccepted, "open_cases_of_the_order", 1, "not_known_yet_is_no_reason", true, "compensated", 1, "compensated_again", 0,
					"asked_before_release", true, "stock_given_back", 2, "stock_after_further_releases", 2, "order_at_last", orders.StatusCancelled,
					"other_tenants_order", orders.StatusConfirmed, "other_tenants_reservation_held", true)...),
				containment(After)...)
		},
	}
}

const (
	compensateNaive pg.SQL = `UPDATE @schema@_orders.orders SET status = 'CANCELLED', reason = 'PAYMENT_TIMEOUT' WHERE tenant = 'alpine'`
	compensateCases pg.SQL = `SELECT count(*) FROM @schema@_orders.recovery_cases WHERE tenant = 'alpine' AND closed_at IS NULL`
	compensateDue   pg.SQL = `UPDATE @schema@_orders.recovery_cases SET next_at = now() WHERE state = 'open'`
	compensateStock pg.SQL = `SELECT available FROM @schema@_inventory.stock WHERE sku = 'tea'`
	compensateOf    pg.SQL = `SELECT status FROM @schema@_orders.orders WHERE tenant = $1`
	compensateOps   pg.SQL = `SELECT operation FROM @schema@_orders.order_attempts WHERE tenant = 'alpine' ORDER BY id`
	compensateHeld  pg.SQL = `SELECT count(*) FROM @schema@_inventory.reservations WHERE tenant = 'bazaar' AND status IN ('ACTIVE', 'COMMITTED')`
)

// compensated has an order of one tenant reserve stock and not be paid, beside a healthy order of another.
func compensated(ctx context.Context, s *stage, recover bool) error {
	m, err := s.market(ctx, nil)
	if err != nil {
		return err
	}
	if err := m.open(ctx, quickLimits()); err != nil {
		return err
	}
	client := s.naive()
	other, err := m.buy(ctx, client, "bazaar", "order-1", "sync")
	if err != nil || other.status != http.StatusCreated {
		return errors.Join(err, fmt.Errorf("the healthy order was answered with %d", other.status))
	}
	if err := m.simulator.SetRules(provider.Rule{Fault: provider.FaultHangBefore, Tenant: tenant}); err != nil {
		return err
	}
	bought, err := m.buy(ctx, client, tenant, "order-1", "sync")
	if err != nil {
		return err
	}
	s.observe("order", bought.status)
	held, err := m.count(ctx, compensateStock)
	if err != nil {
		return err
	}
	if recover {
		err = m.recoverOrder(ctx, bought.OrderID, held)
	} else {
		err = s.exec(ctx, compensateNaive)
	}
	if err != nil {
		return err
	}
	now, err := m.count(ctx, compensateStock)
	if err != nil {
		return err
	}
	s.observe("stock_given_back", now-held)
	return errors.Join(m.observeTenants(ctx), m.containedMarket(ctx, m.inventoryAt.highest(), 0))
}

// recoverOrder works on the case: first while there is time to go on, then when there is none.
func (m *market) recoverOrder(ctx context.Context, orderID string, held int) error {
	if err := m.observeCount(ctx, "open_cases_of_the_order", compensateCases); err != nil {
		return err
	}
	patient, err := m.recoverOnce(ctx, orders.RecoveryOptions{})
	if err != nil {
		return err
	}
	m.observe("not_known_yet_is_no_reason", patient.Open == 1 && patient.Compensated == 0)
	late := orders.RecoveryOptions{FinishWithin: time.Nanosecond}
	done, err := m.recoverOnce(ctx, late)
	if err != nil {
		return err
	}
	m.observe("compensated", done.Compensated)
	again, err := m.recoverOnce(ctx, late)
	if err != nil {
		return err
	}
	m.observe("compensated_again", again.Compensated)
	for range m.set.Int("releases") {
		if _, err := m.clients.Inventory.Release(ctx, event.Ref{OrderID: orderID, Tenant: tenant}, event.ReasonPaymentTimeout); err != nil {
			return err
		}
	}
	stock, err := m.count(ctx, compensateStock)
	if err != nil {
		return err
	}
	m.observe("stock_after_further_releases", stock-held)
	rows, err := m.pool.Query(ctx, compensateOps.In(m.schema))
	if err != nil {
		return err
	}
	operations, err := pgx.CollectRows(rows, pgx.RowTo[string])
	asked, released := slices.Index(operations, "ask for reservation"), slices.Index(operations, "release")
	m.observe("asked_before_release", asked >= 0 && released > asked)
	return err
}

// recoverOnce works on all open cases at once.
func (m *market) recoverOnce(ctx context.Context, o orders.RecoveryOptions) (orders.Recovered, error) {
	o.Wait, o.MaxWait = time.Nanosecond, time.Nanosecond
	recovery, err := m.shop.Recovery(m.clients, o)
	if err != nil {
		return orders.Recovered{}, err
	}
	if err := m.exec(ctx, compensateDue); err != nil {
		return orders.Recovered{}, err
	}
	return recovery.Once(ctx)
}

func (m *market) observeTenants(ctx context.Context) error {
	for figure, of := range map[string]string{"order_at_last": tenant, "other_tenants_order": "bazaar"} {
		var status string
		if err := m.pool.QueryRow(ctx, compensateOf.In(m.schema), of).Scan(&status); err != nil {
			return err
		}
		m.observe(figure, status)
	}
	n, err := m.count(ctx, compensateHeld)
	m.observe("other_tenants_reservation_held", n == 1)
	return err
}
