package orders

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/inventory"
	"github.com/surefoot-mq/surefoot/examples/shop/payments"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/fallback"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// Inventory holds stock for orders. [*inventory.Client] is one.
type Inventory interface {
	Reserve(ctx context.Context, ref event.Ref, lines []inventory.Line) (inventory.Reservation, error)
	Reservation(ctx context.Context, ref event.Ref) (inventory.Reservation, error)
	Release(ctx context.Context, ref event.Ref, reason string) (inventory.Reservation, error)
}

// Payments charges for orders. [*payments.Client] is one.
type Payments interface {
	Authorise(ctx context.Context, ref event.Ref, p event.Payment) (chargeID string, err error)
	Payment(ctx context.Context, ref event.Ref) (chargeID string, err error)
}

// Reasons of recovery cases: what is not known of an order.
const (
	ReasonReservationUnknown = "RESERVATION_UNKNOWN"
	ReasonPaymentUnknown     = "PAYMENT_UNKNOWN"
	ReasonPaymentNotAsked    = "PAYMENT_NOT_ASKED"
	ReasonInterrupted        = "INTERRUPTED"
)

// taken is an order as the books have it.
type taken struct {
	event.Ref
	key            string
	status, reason string
	payment        event.Payment
	age            time.Duration
	lines          []inventory.Line
}

const (
	takenSQL store.SQL = `
SELECT id, tenant, idempotency_key, status, coalesce(reason, ''), total_cents, currency, card, now() - created_at FROM @schema@.orders WHERE id = $1`

	wantedSQL store.SQL = `SELECT sku, sum(quantity)::integer FROM @schema@.order_lines WHERE order_id = $1 GROUP BY sku ORDER BY sku`

	heldSQL store.SQL = `
UPDATE @schema@.orders SET status = 'STOCK_RESERVED', reserved_until = $2, status_at = now() WHERE id = $1 AND status = 'PENDING'`

	answeredSQL store.SQL = `UPDATE @schema@.orders SET answered_at = now() WHERE id = $1 AND answered_at IS NULL`

	// Only while nothing is known of it anywhere, and nobody recovers it.
	undoSQL store.SQL = `
DELETE FROM @schema@.orders AS o WHERE id = $1 AND status = 'PENDING' AND checkout = 'sync'
    AND NOT EXISTS (SELECT FROM @schema@.recovery_cases AS c WHERE c.order_id = o.id)`
)

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (s *Service) taken(ctx context.Context, db querier, id string) (o taken, err error) {
	err = db.QueryRow(ctx, takenSQL.In(s.schema), id).Scan(&o.OrderID, &o.Tenant, &o.key, &o.status, &o.reason,
		&o.payment.AmountCents, &o.payment.Currency, &o.payment.Card, &o.age)
	if err != nil {
		return o, fmt.Errorf("read order: %w", err)
	}
	rows, _ := db.Query(ctx, wantedSQL.In(s.schema), id) // its error is that of the rows
	o.lines, err = pgx.CollectRows(rows, pgx.RowToStructByPos[inventory.Line])
	if err != nil {
		return o, fmt.Errorf("read order's lines: %w", err)
	}
	return o, nil
}

// end is what asking the services has come to.
type end int

const (
	endOpen     end = iota // not known yet: a case
	endAccepted            // stock is held, and paid
	endRefused             // it cannot go on, and holds nothing any more
	endNothing             // nothing has happened anywhere
	endManual              // the services contradict each other: a person must look
)

// finding is what the services said of an order.
type finding struct {
	end      end
	reason   string // of a refusal, or of the case
	chargeID string
	held     time.Time         // until when stock is held; zero: that is not known
	pending  *fallback.Pending // what to tell of the payment
	why      error             // what keeps the outcome from being known
	evidence map[string]string
	attempts attempts
}

// checkout asks the services for orders.
type checkout struct {
	inventory Inventory
	payments  Payments
}

// first reserves and authorises for an order that has just been taken.
func (c checkout) first(ctx context.Context, o taken) finding {
	f := finding{evidence: map[string]string{}}
	if !c.reserve(ctx, o, &f) || !c.authorise(ctx, o, &f) {
		return f
	}
	f.end = endAccepted
	return f
}

// reserve reports whether stock is held.
func (c checkout) reserve(ctx context.Context, o taken, f *finding) bool {
	var r inventory.Reservation
	err := f.attempts.call(ctx, "reserve", inventory.Name, func(ctx context.Context) (err error) {
		r, err = c.inventory.Reserve(ctx, o.Ref, o.lines)
		return err
	})
	if rejected, ok := errors.AsType[*inventory.RejectedError](err); ok {
		f.end, f.reason, f.evidence["reservation"] = endRefused, rejected.Reason, "rejected"
		return false
	}
	if err != nil {
		f.unknown(ReasonReservationUnknown, "reservation", err)
		if untouched(err) {
			f.end = endNothing
		}
		return false
	}
	f.held, f.evidence["reservation"] = r.ExpiresAt, r.Status
	return true
}

// authorise reports whether the order is paid.
func (c checkout) authorise(ctx context.Context, o taken, f *finding) bool {
	err := f.attempts.call(ctx, "authorise", payments.Name, func(ctx context.Context) (err error) {
		f.chargeID, err = c.payments.Authorise(ctx, o.Ref, o.payment)
		return err
	})
	return c.paid(ctx, o, f, err)
}

// paid judges what the payments said.
func (c checkout) paid(ctx context.Context, o taken, f *finding, err error) bool {
	switch {
	case err == nil:
		f.evidence["payment"] = "confirmed"
		return true
	case errors.Is(err, payments.ErrDeclined):
		f.evidence["payment"] = "declined"
		c.giveUp(ctx, o, f, event.ReasonCardDeclined)
		return false
	case errors.Is(err, payments.ErrReversed):
		f.evidence["payment"] = "reversed"
		c.giveUp(ctx, o, f, event.ReasonPaymentTimeout)
		return false
	}
	reason := ReasonPaymentUnknown
	if untouched(err) {
		reason = ReasonPaymentNotAsked
	}
	f.unknown(reason, "payment", err)
	if told, ok := errors.AsType[*payments.PendingError](err); ok {
		f.pending = &told.Answer
	} else if p, ok := fallback.PendingPayment(err, payments.Name, o.OrderID); ok {
		f.pending = &p
	}
	return false
}

// giveUp releases what is held for an order that cannot go on. The release is idempotent, and keeps stock from being held later.
func (c checkout) giveUp(ctx context.Context, o taken, f *finding, reason string) {
	err := f.attempts.call(ctx, "release", inventory.Name, func(ctx context.Context) error {
		_, err := c.inventory.Release(ctx, o.Ref, reason)
		return err
	})
	switch {
	case err == nil:
		f.end, f.reason, f.evidence["release"] = endRefused, reason, inventory.StatusReleased
	case errors.Is(err, inventory.ErrCommitted):
		f.end, f.reason, f.why, f.evidence["release"] = endManual, reason, err, inventory.StatusCommitted
	default:
		f.unknown(reason, "release", err)
	}
}

func (f *finding) unknown(reason, of string, err error) {
	f.end, f.reason, f.why = endOpen, reason, err
	f.evidence[of] = "unknown: " + string(resilience.Classify(err)) + ", " + string(resilience.CodeOf(err))
}

// untouched tells whether a call has certainly had no effect.
func untouched(err error) bool {
	call, ok := errors.AsType[*policy.Error](err)
	return ok && call.Effect == policy.EffectNone
}

// conclude writes what was found of an order, and returns it as it is now: whoever else has ended it was first.
func (s *Service) conclude(ctx context.Context, tx pgx.Tx, o taken, f finding, caseID int64) (taken, error) {
	if err := f.attempts.write(ctx, tx, s.schema, o.Ref, caseID); err != nil {
		return o, err
	}
	var err error
	switch f.end {
	case endAccepted:
		err = s.confirm(ctx, tx, event.PaymentConfirmed{Ref: o.Ref, ChargeID: f.chargeID, AmountCents: o.payment.AmountCents})
	case endRefused:
		err = s.cancel(ctx, tx, o.Ref, f.reason)
	case endOpen, endManual:
		if !f.held.IsZero() {
			_, err = s.update(ctx, tx, heldSQL, o.OrderID, f.held)
		}
	case endNothing:
	}
	if err != nil {
		return o, err
	}
	now, err := s.taken(ctx, tx, o.OrderID)
	if err == nil && now.ended() {
		_, err = s.update(ctx, tx, answeredSQL, o.OrderID)
	}
	return now, err
}

func (o taken) ended() bool { return o.status == StatusConfirmed || o.status == StatusCancelled }

// answer is what the customer is told of an order: 201, why not, or that it is being recovered.
func (o taken) answer(pending *fallback.Pending) idempotency.Answer {
	body := map[string]any{"orderId": o.OrderID, "totalCents": o.payment.AmountCents, "currency": o.payment.Currency}
	switch o.status {
	case StatusConfirmed:
		body["status"] = viewAccepted
		return o.located(idempotency.JSON(http.StatusCreated, body))
	case StatusCancelled:
		return o.located(o.refusal())
	}
	body["status"] = viewRecovering
	if pending != nil {
		body["payment"] = pending
	}
	a := o.located(idempotency.JSON(http.StatusAccepted, body))
	a.Pending = true
	return a
}

func (o taken) located(a idempotency.Answer) idempotency.Answer {
	a.Header.Set("Location", "/v1/orders/"+o.OrderID)
	return a
}

// refusals are the statuses of reasons; any other is 409.
var refusals = map[string]struct {
	status int
	detail string
}{
	event.ReasonOutOfStock:   {http.StatusConflict, "There is not enough of an item. Nothing was charged."},
	event.ReasonUnknownItem:  {http.StatusUnprocessableEntity, "There is no such item. Nothing was charged."},
	event.ReasonCardDeclined: {http.StatusPaymentRequired, "The card was declined. Nothing was charged."},
}

func (o taken) refusal() idempotency.Answer {
	known, ok := refusals[o.reason]
	if !ok {
		known.status, known.detail = http.StatusConflict, "The order was cancelled. What was charged is paid back."
	}
	return problemAnswer(known.status, resilience.Code(o.reason), known.detail, o.OrderID)
}

// problemAnswer is a problem (RFC 9457) that is remembered.
func problemAnswer(status int, code resilience.Code, detail, orderID string) idempotency.Answer {
	members := map[string]any{"title": http.StatusText(status), "status": status, "code": code, "detail": detail}
	if orderID != "" {
		members["orderId"] = orderID
	}
	body, _ := json.Marshal(members) // only text and numbers
	return idempotency.Answer{Status: status, Header: http.Header{"Content-Type": {"application/problem+json"}, "Cache-Control": {"no-store"}}, Body: append(body, '\n')}
}

// retryLater is the answer when nothing has happened: the key stays free.
func retryLater(ctx context.Context, err error) idempotency.Answer {
	p := httpserver.ProblemOf(ctx, err)
	code := p.Code
	if code.Status() != http.StatusServiceUnavailable {
		code = resilience.CodeDependencyUnavailable
	}
	a := problemAnswer(http.StatusServiceUnavailable, code, "A service that is needed for this does not answer. Nothing has happened; try again later.", "")
	a.Header.Set("Retry-After", strconv.FormatInt(max(1, int64((p.RetryAfter+time.Second-1)/time.Second)), 10))
	a.Forget = true
	return a
}

// answerTime is kept back from a request's time, to write down what was found.
const answerTime = 250 * time.Millisecond

// ask reserves and authorises within the budget of the request.
func (a *API) ask(ctx context.Context, _ *http.Request) (idempotency.Finish, error) {
	key, _ := idempotency.KeyFrom(ctx)
	o, err := a.service.taken(ctx, a.options.Pool, Order{Tenant: key.Caller, IdempotencyKey: key.Key}.ID())
	if err != nil {
		return nil, err
	}
	limit := a.options.Checkout
	if left, limited := resilience.Left(ctx); limited {
		limit = min(limit, left-answerTime)
	}
	within, cancel := resilience.WithBudget(ctx, limit)
	defer cancel()
	f := checkout{a.options.Inventory, a.options.Payments}.first(within, o)
	return func(ctx context.Context, tx pgx.Tx) (idempotency.Answer, error) { return a.finish(ctx, tx, o, f) }, nil
}

// finish is the order's end, or its case, with the answer.
func (a *API) finish(ctx context.Context, tx pgx.Tx, o taken, f finding) (idempotency.Answer, error) {
	s := a.service
	if f.end == endNothing {
		gone, err := s.update(ctx, tx, undoSQL, o.OrderID)
		if err != nil {
			return idempotency.Answer{}, err
		}
		if gone {
			return retryLater(ctx, f.why), nil
		}
		f.end = endOpen
	}
	now, err := s.conclude(ctx, tx, o, f, 0)
	if err != nil {
		return idempotency.Answer{}, err
	}
	if now.ended() {
		return now.answer(nil), s.closeCases(ctx, tx, now)
	}
	return now.answer(f.pending), s.openCase(ctx, tx, now, f)
}

// check answers a request that comes again while its outcome is not known: by the latest status, and without asking anybody.
func (a *API) check(ctx context.Context, _ *http.Request) (idempotency.Finish, error) {
	key, _ := idempotency.KeyFrom(ctx)
	return func(ctx context.Context, tx pgx.Tx) (idempotency.Answer, error) {
		o, err := a.service.taken(ctx, tx, Order{Tenant: key.Caller, IdempotencyKey: key.Key}.ID())
		if err != nil {
			return idempotency.Answer{}, err
		}
		return o.answer(nil), nil
	}, nil
}
