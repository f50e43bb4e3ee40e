package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/surefoot-mq/surefoot/examples/shop/inventory"
	"github.com/surefoot-mq/surefoot/internal/pg"
)

func oneReservation() Drill {
	return Drill{
		Name: "one-reservation", Section: SectionCalls,
		Proves: "a call whose answer was lost is made again under the same key: one order, one reservation, one authorisation",
		Settings: []Setting{
			count("resets", 1, 1, 2, "first calls to the inventory whose connection is reset after the effect"),
		},
		Arms: []Arm{
			{Name: Before, Does: "tried again with a new key", play: reserveTwice},
			{Name: After, Does: "tried again with the order as the key", play: reserveOnce},
		},
		checks: func(s Settings) []Check {
			return append(append(
				expect(Before, "reservations", s.Int("resets")+1, "stock_taken", 2*(s.Int("resets")+1)),
				expect(After, "order", http.StatusCreated, "orders", 1, "reservations", 1, "stock_taken", 2, "charges", 1, "reserve_attempts_recorded", s.Int("resets")+1,
					"attempts_recorded", atLeast(s.Int("resets")+2), "inventory_calls", s.Int("resets")+1)...),
				containment(After)...)
		},
	}
}

const (
	onceReserved pg.SQL = `SELECT count(*) FROM @schema@_inventory.reservations WHERE status IN ('ACTIVE', 'COMMITTED')`
	onceTaken    pg.SQL = `SELECT 1000 - available FROM @schema@_inventory.stock WHERE sku = 'tea'`
	onceAttempts pg.SQL = `SELECT count(*) FROM @schema@_orders.order_attempts`
	onceReserves pg.SQL = `SELECT count(*) FROM @schema@_orders.order_attempts WHERE operation = 'reserve'`
)

// reserveTwice tries again under a new key each time.
func reserveTwice(ctx context.Context, s *stage) error {
	m, err := s.openMarket(ctx)
	if err != nil {
		return err
	}
	m.inventoryAt.drop(s.set.Int("resets"))
	client := s.naive()
	for n := range s.set.Int("resets") + 1 {
		key := fmt.Sprintf("attempt-%d", n)
		r, err := newPost(ctx, m.inventoryURL+"/v1/reservations", key, map[string]any{"orderId": key, "lines": []inventory.Line{{SKU: tea, Quantity: 2}}})
		if err != nil {
			return err
		}
		r.Header.Set("X-Tenant-Id", tenant)
		if a, err := client.send(r); err == nil && a.status < http.StatusBadRequest {
			break
		}
	}
	return m.observeCounts(ctx, counted{"reservations", onceReserved}, counted{"stock_taken", onceTaken})
}

func (s *stage) openMarket(ctx context.Context) (*market, error) {
	m, err := s.market(ctx, nil)
	if err != nil {
		return nil, err
	}
	return m, m.open(ctx, quickLimits())
}

// reserveOnce leaves it to the shop's checkout.
func reserveOnce(ctx context.Context, s *stage) error {
	m, err := s.openMarket(ctx)
	if err != nil {
		return err
	}
	m.inventoryAt.drop(s.set.Int("resets"))
	b, err := m.buy(ctx, s.naive(), tenant, "order-1", "sync")
	if err != nil {
		return err
	}
	s.observe("order", b.status)
	s.observe("charges", len(m.simulator.Ledger().Charges))
	s.observe("inventory_calls", m.inventoryAt.calls())
	err = m.observeCounts(ctx, counted{"orders", recoveredOrders}, counted{"reservations", onceReserved}, counted{"stock_taken", onceTaken},
		counted{"attempts_recorded", onceAttempts}, counted{"reserve_attempts_recorded", onceReserves})
	return errors.Join(err, m.containedMarket(ctx, m.inventoryAt.highest(), 0))
}
