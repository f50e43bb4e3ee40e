package payments

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// Payment is what is known of an order's payment.
type Payment struct {
	OrderID  string
	Status   string
	ChargeID string
	event.Payment
}

// What keeps a payment from being made. Nothing has changed.
var (
	// ErrUnknown: the tenant has no payment for the order.
	ErrUnknown = errors.New("unknown payment")
	// ErrOther: the order has a payment of another amount or card.
	ErrOther = errors.New("the order has another payment")
)

// Operations and outcomes of attempts, as they are written down.
const (
	opCharge = "charge"
	opCheck  = "check"

	outcomeStarted  = "STARTED"
	outcomeCharged  = "CHARGED"
	outcomeDeclined = "DECLINED"
	outcomeReversed = "REVERSED"
	outcomeNotFound = "NOT_FOUND"
	outcomeUnknown  = "UNKNOWN"
)

const (
	paymentSQL store.SQL = `
SELECT order_id, status, coalesce(charge_id, ''), amount_cents, currency, card FROM @schema@.payments WHERE order_id = $1 AND tenant = $2`

	attemptSQL store.SQL = `INSERT INTO @schema@.payment_attempts (order_id, tenant, operation, outcome, class) VALUES ($1, $2, $3, $4, $5)`

	// Only what was never asked for is forgotten: its one attempt is the start.
	forgetSQL store.SQL = `
DELETE FROM @schema@.payments AS p WHERE order_id = $1 AND tenant = $2 AND status = 'CHARGING'
    AND (SELECT count(*) FROM @schema@.payment_attempts AS a WHERE a.order_id = p.order_id) = 1`
)

// writeTimeout bounds what is written after the provider has answered; the client may be gone by then.
const writeTimeout = 5 * time.Second

// desk works on payments whose provider is asked between transactions.
type desk struct {
	service  *Service
	pool     *pgxpool.Pool
	provider Provider
}

// find returns a tenant's payment, or [ErrUnknown].
func (d *desk) find(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, ref event.Ref,
) (Payment, error) {
	rows, _ := db.Query(ctx, paymentSQL.In(d.service.schema), ref.OrderID, ref.Tenant) // its error is that of the rows
	p, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (p Payment, err error) {
		err = row.Scan(&p.OrderID, &p.Status, &p.ChargeID, &p.AmountCents, &p.Currency, &p.Card)
		return p, err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return p, ErrUnknown
	}
	if err != nil {
		return p, fmt.Errorf("read payment: %w", err)
	}
	return p, nil
}

// start writes down that a charge is about to be asked for; false when there is a payment already.
func (d *desk) start(ctx context.Context, ref event.Ref, want event.Payment) (p Payment, fresh bool, err error) {
	s := d.service
	err = pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		fresh, err = s.update(ctx, tx, intendSQL, ref.OrderID, ref.Tenant, want.AmountCents, want.Currency, want.Card)
		if err != nil {
			return err
		}
		if fresh {
			err = d.attempt(ctx, tx, ref, opCharge, outcomeStarted, nil)
		}
		if err != nil {
			return err
		}
		p, err = d.find(ctx, tx, ref)
		return err
	})
	return p, fresh, err
}

// authorise charges for an order, once. Of a charge whose outcome is not known it asks what became of it, and never charges
// again. The payment that it returns may still be StatusCharging, with the error that keeps its outcome from being known; with
// a Payment that has no status, nothing has happened.
func (d *desk) authorise(ctx context.Context, ref event.Ref, want event.Payment) (Payment, error) {
	p, fresh, err := d.start(ctx, ref, want)
	switch {
	case err != nil:
		return Payment{}, err
	case p.Payment != want && p.Status != StatusCancelled:
		return Payment{}, ErrOther
	case !fresh && p.Status == StatusCharging:
		return d.ask(ctx, ref)
	case !fresh:
		return p, nil
	}
	charge, err := d.provider.Charge(ctx, ref.OrderID, provider.ChargeRequest{
		OrderID: ref.OrderID, Tenant: ref.Tenant, AmountCents: want.AmountCents, Currency: want.Currency, Card: want.Card,
	})
	if refused, ok := errors.AsType[*policy.Error](err); ok && refused.Effect == policy.EffectNone {
		return Payment{}, errors.Join(err, d.forget(ctx, ref))
	}
	return d.learn(ctx, ref, opCharge, charge, err)
}

// ask asks the provider what became of a charge, and writes down what it says.
func (d *desk) ask(ctx context.Context, ref event.Ref) (Payment, error) {
	charge, err := d.provider.Check(ctx, ref.OrderID)
	return d.learn(ctx, ref, opCheck, charge, err)
}

// learn writes down what the provider answered, or that it did not.
func (d *desk) learn(ctx context.Context, ref event.Ref, op string, charge provider.Charge, unknown error) (p Payment, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	err = pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		if err := d.settle(ctx, tx, ref, op, charge, unknown); err != nil {
			return err
		}
		p, err = d.find(ctx, tx, ref)
		return err
	})
	if err != nil {
		return Payment{OrderID: ref.OrderID, Status: StatusCharging}, err
	}
	if p.Status == StatusCharging {
		return p, unknown
	}
	return p, nil
}

func (d *desk) settle(ctx context.Context, tx pgx.Tx, ref event.Ref, op string, charge provider.Charge, err error) error {
	switch {
	case err == nil:
		return errors.Join(d.attempt(ctx, tx, ref, op, outcomeCharged, nil), d.service.charged(ctx, tx, ref, charge))
	case errors.Is(err, provider.ErrDeclined):
		return errors.Join(d.attempt(ctx, tx, ref, op, outcomeDeclined, nil), d.service.declined(ctx, tx, ref))
	case errors.Is(err, provider.ErrReversed):
		return d.attempt(ctx, tx, ref, op, outcomeReversed, nil) // whoever reversed it does the rest
	case errors.Is(err, provider.ErrUnknownKey):
		return d.attempt(ctx, tx, ref, op, outcomeNotFound, nil) // the request may still be on its way
	}
	return d.attempt(ctx, tx, ref, op, outcomeUnknown, err)
}

func (d *desk) attempt(ctx context.Context, tx pgx.Tx, ref event.Ref, op, outcome string, why error) error {
	if _, err := tx.Exec(ctx, attemptSQL.In(d.service.schema), ref.OrderID, ref.Tenant, op, outcome, string(resilience.Classify(why))); err != nil {
		return fmt.Errorf("note attempt: %w", err)
	}
	return nil
}

func (d *desk) forget(ctx context.Context, ref event.Ref) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	if _, err := d.pool.Exec(ctx, forgetSQL.In(d.service.schema), ref.OrderID, ref.Tenant); err != nil {
		return fmt.Errorf("forget payment that was not begun: %w", err)
	}
	return nil
}
