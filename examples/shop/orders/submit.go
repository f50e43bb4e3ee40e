package orders

import (
	"bytes"
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	insertSQL store.SQL = `
INSERT INTO @schema@.orders (id, tenant, idempotency_key, request_hash, customer_name, customer_email, total_cents, currency, card, note, status,
    checkout, request_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 'PENDING', $11, $12) ON CONFLICT (tenant, idempotency_key) DO NOTHING`

	insertLinesSQL store.SQL = `
INSERT INTO @schema@.order_lines (order_id, line, sku, name, quantity, unit_price_cents)
SELECT $1, n, sku, name, quantity, price FROM unnest($2::text[], $3::text[], $4::integer[], $5::bigint[])
    WITH ORDINALITY AS l(sku, name, quantity, price, n)`

	hashSQL store.SQL = `SELECT request_hash FROM @schema@.orders WHERE tenant = $1 AND idempotency_key = $2`
)

// CodeKeyReused is the stable code of a [KeyReusedError].
const CodeKeyReused = "IDEMPOTENCY_KEY_REUSED"

// KeyReusedError says that the idempotency key belongs to another order. Nothing was changed.
type KeyReusedError struct{ Tenant, Key string }

// Error implements error.
func (e *KeyReusedError) Error() string {
	return fmt.Sprintf("%s: key %q of tenant %q was used for another order; use a new key", CodeKeyReused, e.Key, e.Tenant)
}

// Submitted tells what became of an order.
type Submitted struct {
	// ID of the order.
	ID string
	// Created is false when the order was there already: then nothing was changed.
	Created bool
}

// Submit takes an order: the order and its event order.created, in the caller's transaction. The same order
// again changes nothing; another one under its key is a [*KeyReusedError]; a wrong one an [*InvalidError]. An order with the
// checkout "sync" has no event: whoever submits it asks the services for it, and a [Recovery] does when that one has gone.
func (s *Service) Submit(ctx context.Context, tx pgx.Tx, o Order) (Submitted, error) {
	if err := o.Validate(); err != nil {
		return Submitted{}, err
	}
	if o.Currency == "" {
		o.Currency = "EUR"
	}
	created, err := s.insert(ctx, tx, o)
	if err != nil {
		return Submitted{}, fmt.Errorf("submit order: %w", err)
	}
	submitted := Submitted{ID: o.ID(), Created: created}
	if !created {
		return submitted, s.checkSame(ctx, tx, o)
	}
	if o.Checkout == CheckoutSync {
		return submitted, nil
	}
	return submitted, s.emit(ctx, tx, event.TypeOrderCreated, submitted.ID, event.OrderCreated{
		Ref: event.Ref{OrderID: submitted.ID, Tenant: o.Tenant}, Customer: o.Customer, Lines: o.Lines, Note: o.Note,
		Payment: event.Payment{AmountCents: o.TotalCents(), Currency: o.Currency, Card: o.Card},
	})
}

func (s *Service) insert(ctx context.Context, tx pgx.Tx, o Order) (bool, error) {
	hash, err := o.hash()
	if err != nil {
		return false, err
	}
	tag, err := tx.Exec(ctx, insertSQL.In(s.schema), o.ID(), o.Tenant, o.IdempotencyKey, hash,
		o.Customer.Name, o.Customer.Email, o.TotalCents(), o.Currency, o.Card, o.Note,
		cmp.Or(o.Checkout, checkoutSaga), message.RequestIDFrom(ctx))
	if err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	var skus, names []string
	var quantities []int
	var prices []int64
	for _, line := range o.Lines {
		skus, names = append(skus, line.SKU), append(names, line.Name)
		quantities, prices = append(quantities, line.Quantity), append(prices, line.UnitPriceCents)
	}
	_, err = tx.Exec(ctx, insertLinesSQL.In(s.schema), o.ID(), skus, names, quantities, prices)
	return err == nil, err
}

func (s *Service) checkSame(ctx context.Context, tx pgx.Tx, o Order) error {
	hash, err := o.hash()
	if err != nil {
		return err
	}
	stored, _, err := store.One[[]byte](ctx, tx, hashSQL.In(s.schema), o.Tenant, o.IdempotencyKey)
	if err != nil {
		return fmt.Errorf("compare order: %w", err)
	}
	if !bytes.Equal(stored, hash) {
		return &KeyReusedError{Tenant: o.Tenant, Key: o.IdempotencyKey}
	}
	return nil
}
