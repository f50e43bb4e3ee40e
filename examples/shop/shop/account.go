package shop

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
)

// Reservation, payment and mails are another service's view of the order: empty when it knows nothing of it.
const accountSQL store.SQL = `
SELECT o.id, o.tenant, o.idempotency_key, o.status, coalesce(o.reason, ''), o.total_cents, coalesce(r.status, ''), coalesce(p.status, ''),
       (SELECT count(*) FROM {notifications}.mails AS m WHERE m.order_id = o.id)
FROM {orders}.orders AS o
LEFT JOIN {inventory}.reservations AS r ON r.order_id = o.id
LEFT JOIN {payments}.payments AS p ON p.order_id = o.id
ORDER BY o.created_at, o.id`

// What is held or sold must be missing in stock, and nothing else: together they stay what they were at the start.
const stockSQL store.SQL = `
SELECT s.sku, s.available + s.sold::integer + coalesce((
    SELECT sum(l.quantity) FROM {inventory}.reservation_lines AS l JOIN {inventory}.reservations AS r USING (order_id)
    WHERE l.sku = s.sku AND r.status IN ('ACTIVE', 'EXPIRED', 'COMMITTED')), 0)::integer
FROM {inventory}.stock AS s ORDER BY s.sku`

const orphansSQL store.SQL = `
SELECT order_id FROM {inventory}.reservations AS r WHERE NOT EXISTS (SELECT FROM {orders}.orders AS o WHERE o.id = r.order_id)
UNION SELECT order_id FROM {payments}.payments AS p WHERE NOT EXISTS (SELECT FROM {orders}.orders AS o WHERE o.id = p.order_id)`

// OrderAccount is what became of one order, in every service's books and in the provider's.
type OrderAccount struct {
	ID             string `json:"id"`
	Tenant         string `json:"tenant"`
	IdempotencyKey string `json:"idempotency_key"`
	Status         string `json:"status"`
	Reason         string `json:"reason"`
	TotalCents     int64  `json:"total_cents"`
	// Reservation and Payment are the states in the other services; empty: they know nothing of it.
	Reservation string `json:"reservation"`
	Payment     string `json:"payment"`
	Mails       int    `json:"mails"`
	// Charges, Refunds and Net are the provider's: counts, and what it kept in the end.
	Charges  int   `json:"charges"`
	Refunds  int   `json:"refunds"`
	NetCents int64 `json:"net_cents"`
}

// Account is the whole shop's.
type Account struct {
	Orders []OrderAccount `json:"orders"`
	// Pending orders are on their way; with any, an account is not final.
	Pending int `json:"pending"`
	// Violations of what must always hold, and, when nothing is pending, of what must hold in the end.
	Violations []string `json:"violations"`
}

// LedgerReader tells what happened at the provider. [*provider.Client] is one.
type LedgerReader interface {
	Ledger(ctx context.Context) (provider.Ledger, error)
}

// Account compares all books. Stock is what [Shop.Seed] was given; nil leaves it out. It reads without locks:
// call it while nothing changes, or take the pending ones as what they are.
func (s *Shop) Account(ctx context.Context, ledger LedgerReader, stock map[string]int) (*Account, error) {
	entries, err := ledger.Ledger(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the provider's ledger: %w", err)
	}
	account := &Account{Violations: []string{}}
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, s.options.Pool, options, func(tx pgx.Tx) error { return s.read(ctx, tx, account, stock) })
	if err != nil {
		return nil, fmt.Errorf("read the shop's books: %w", err)
	}
	account.addLedger(entries)
	for i := range account.Orders {
		account.judge(&account.Orders[i])
	}
	return account, nil
}

func (s *Shop) read(ctx context.Context, tx pgx.Tx, a *Account, stock map[string]int) error {
	rows, _ := tx.Query(ctx, s.named(accountSQL)) // its error is that of the rows
	orders, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o OrderAccount, err error) {
		err = row.Scan(&o.ID, &o.Tenant, &o.IdempotencyKey, &o.Status, &o.Reason, &o.TotalCents, &o.Reservation, &o.Payment, &o.Mails)
		return o, err
	})
	if err != nil {
		return err
	}
	a.Orders = orders
	rows, _ = tx.Query(ctx, s.named(orphansSQL)) // its error is that of the rows
	orphans, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, id := range orphans {
		a.violated("order %s is known to a service, but not to the orders", id)
	}
	if err != nil || stock == nil {
		return err
	}
	return s.readStock(ctx, tx, a, stock)
}

func (s *Shop) readStock(ctx context.Context, tx pgx.Tx, a *Account, stock map[string]int) error {
	rows, _ := tx.Query(ctx, s.named(stockSQL)) // its error is that of the rows
	var sku string
	var total int
	_, err := pgx.ForEachRow(rows, []any{&sku, &total}, func() error {
		if seeded, ok := stock[sku]; ok && seeded != total {
			a.violated("item %s: %d in stock, held and sold together, but %d at the start: stock leaked", sku, total, seeded)
		}
		return nil
	})
	return err
}

func (a *Account) violated(format string, args ...any) {
	a.Violations = append(a.Violations, fmt.Sprintf(format, args...))
}

func (a *Account) addLedger(ledger provider.Ledger) {
	byID := make(map[string]*OrderAccount, len(a.Orders))
	for i := range a.Orders {
		byID[a.Orders[i].ID] = &a.Orders[i]
	}
	for _, charge := range ledger.Charges {
		if o := byID[charge.Key]; o != nil {
			o.Charges++
			o.NetCents += charge.AmountCents
			continue
		}
		a.violated("charge %s is for order %s, which is not there", charge.ID, charge.Key)
	}
	for _, refund := range ledger.Refunds {
		if o := byID[refund.Key]; o != nil {
			o.Refunds++
			o.NetCents -= refund.AmountCents
			continue
		}
		a.violated("refund %s is for order %s, which is not there", refund.RefundID, refund.Key)
	}
}

// judge holds one order against what must be true. What is on its way is only pending.
func (a *Account) judge(o *OrderAccount) {
	if o.Charges > 1 {
		a.violated("order %s was charged %d times", o.ID, o.Charges)
	}
	if o.Refunds > o.Charges {
		a.violated("order %s was refunded %d times for %d charges", o.ID, o.Refunds, o.Charges)
	}
	if o.pending() {
		a.Pending++
		return
	}
	switch o.Status {
	case orders.StatusConfirmed:
		if o.NetCents != o.TotalCents {
			a.violated("order %s is confirmed, but the provider kept %d cents of %d", o.ID, o.NetCents, o.TotalCents)
		}
		if o.Reservation != "COMMITTED" {
			a.violated("order %s is confirmed, but its reservation is %s", o.ID, o.Reservation)
		}
	case orders.StatusCancelled:
		if o.NetCents != 0 {
			a.violated("order %s is cancelled, but the provider kept %d cents", o.ID, o.NetCents)
		}
	}
}

// pending tells whether a service has still to do with the order.
func (o *OrderAccount) pending() bool {
	switch o.Status {
	case orders.StatusConfirmed:
		return o.Reservation == "ACTIVE" || o.Reservation == "EXPIRED"
	case orders.StatusCancelled:
		return o.Reservation == "ACTIVE" || o.Reservation == "EXPIRED" ||
			o.Reservation == "" || o.Payment == "CHARGING" || o.Payment == "CHARGED" || o.Payment == "REFUNDING" || o.Payment == ""
	default:
		return true
	}
}

// named puts the services' schemas into a statement.
func (s *Shop) named(sql store.SQL) string {
	return strings.NewReplacer("{orders}", s.Orders.Schema(), "{inventory}", s.Inventory.Schema(),
		"{payments}", s.Payments.Schema(), "{notifications}", s.Notifications.Schema()).Replace(string(sql))
}
