package payments

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/web"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/fallback"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

// Codes of refusals.
const (
	// CodeDeclined is final: the provider will never charge for this order.
	CodeDeclined resilience.Code = event.ReasonCardDeclined
	// CodeReversed is final: the payment was given up, and what was charged is paid back.
	CodeReversed resilience.Code = "PAYMENT_REVERSED"
)

// What a client is told of a payment.
const (
	paymentPending   = "PendingConfirmation"
	paymentConfirmed = "Confirmed"
	paymentDeclined  = "Declined"
	paymentReversed  = "Reversed"
)

// views of the statuses.
var views = map[string]string{
	StatusCharging: paymentPending, StatusCharged: paymentConfirmed, StatusDeclined: paymentDeclined,
	StatusRefunding: paymentReversed, StatusRefunded: paymentReversed, StatusCancelled: paymentReversed,
}

// Bounds of a payment.
const maxCents = 1_000_000_000_00

// answerTime is kept back from the caller's time: an honest "pending" must reach it before it gives up.
const answerTime = 150 * time.Millisecond

// API answers over HTTP, to each tenant about its own orders:
//
//	POST /v1/payments          Idempotency-Key: ORDER   {"orderId": ORDER, "amountCents": 100, "currency": "EUR", "card": "tok_good"}
//	GET  /v1/payments/{order}
//
// The order is the key. That a charge is asked for is written down before the provider is called; when its outcome is not known,
// the answer is 202 and says so, and whoever asks again gets the latest status: the provider is asked, and nothing is charged
// twice. A declined card is 402, for ever. It is safe for concurrent use.
type API struct{ desk desk }

// API returns the service's API over a pool of its database, with a provider that has a policy; see [provider.Guard].
func (s *Service) API(pool *pgxpool.Pool, p Provider) *API {
	return &API{desk{service: s, pool: pool, provider: p}}
}

// Routes registers the API's requests.
func (a *API) Routes(mux *http.ServeMux) {
	mux.Handle("POST /v1/payments", httpserver.Handler(a.authorise))
	mux.Handle("GET /v1/payments/{order}", httpserver.Handler(a.payment))
}

// request is the body of POST /v1/payments.
type request struct {
	OrderID string `json:"orderId"`
	event.Payment
}

// answer has the members of [fallback.Pending] also when the outcome is known.
type answer struct {
	fallback.Pending
}

func (a *API) authorise(w http.ResponseWriter, r *http.Request) error {
	tenant, err := web.Tenant(r)
	if err != nil {
		return err
	}
	var in request
	if err := web.Decode(r, &in); err != nil {
		return err
	}
	if !web.Plain(in.OrderID) || !web.Plain(in.Card) || !isCurrency(in.Currency) || in.AmountCents <= 0 || in.AmountCents > maxCents {
		return web.Invalid(fmt.Errorf("a payment needs orderId and card of 1 to 64 plain characters, a currency of three capital letters, and 1 to %d amountCents", int64(maxCents)))
	}
	if err := web.CheckKey(r, in.OrderID); err != nil {
		return err
	}
	ctx, cancel := a.inTime(r.Context())
	defer cancel()
	p, err := a.desk.authorise(ctx, event.Ref{OrderID: in.OrderID, Tenant: tenant}, in.Payment)
	return reply(w, p, err, http.StatusCreated)
}

func (a *API) payment(w http.ResponseWriter, r *http.Request) error {
	tenant, err := web.Tenant(r)
	if err != nil {
		return err
	}
	order, err := web.Path(r, "order", "payment")
	if err != nil {
		return err
	}
	ctx, cancel := a.inTime(r.Context())
	defer cancel()
	ref := event.Ref{OrderID: order, Tenant: tenant}
	p, err := a.desk.find(ctx, a.desk.pool, ref)
	if err == nil && p.Status == StatusCharging {
		p, err = a.desk.ask(ctx, ref)
	}
	return reply(w, p, err, http.StatusOK)
}

func isCurrency(s string) bool {
	return len(s) == 3 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// inTime leaves time to answer.
func (a *API) inTime(ctx context.Context) (context.Context, context.CancelFunc) {
	left, limited := resilience.Left(ctx)
	if !limited {
		return context.WithCancel(ctx)
	}
	return resilience.WithBudget(ctx, left-answerTime)
}

// reply tells what is known of a payment; err is why its outcome is not.
func reply(w http.ResponseWriter, p Payment, err error, done int) error {
	switch {
	case errors.Is(err, ErrUnknown):
		return web.NotFound("payment")
	case errors.Is(err, ErrOther):
		return &httpserver.Problem{Code: resilience.CodeIdempotencyKeyReused, Detail: "The order has another payment; nothing was changed.", Err: err}
	case p.Status == StatusCharging:
		return web.JSON(w, http.StatusAccepted, pending(p, err))
	case err != nil:
		return err
	case done == http.StatusCreated && p.Status == StatusDeclined:
		return &httpserver.Problem{Code: CodeDeclined, Status: http.StatusPaymentRequired, Detail: "The card was declined. Nothing was charged, and never will be for this order."}
	case done == http.StatusCreated && p.Status != StatusCharged:
		return &httpserver.Problem{Code: CodeReversed, Status: http.StatusConflict, Detail: "The payment was given up. What was charged is paid back."}
	}
	known := fallback.Pending{PaymentStatus: views[p.Status], PaymentConfirmed: p.Status == StatusCharged, Source: Name, IdempotencyKey: p.OrderID}
	if p.ChargeID != "" {
		known.TransactionID = &p.ChargeID
	}
	return web.JSON(w, done, answer{known})
}

// pending is the honest answer about a payment whose outcome is not known.
func pending(p Payment, err error) answer {
	if err == nil || errors.Is(err, provider.ErrUnknownKey) || errors.Is(err, provider.ErrReversed) {
		err = &provider.UncertainError{Op: opCheck, Key: p.OrderID, Err: resilience.ErrTimeout}
	}
	unknown, ok := fallback.PendingPayment(err, "payment-provider", p.OrderID)
	if !ok { // what failed was no call: the database
		unknown, _ = fallback.PendingPayment(&provider.UncertainError{Op: opCheck, Key: p.OrderID, Err: context.Canceled}, "payment-provider", p.OrderID)
	}
	return answer{unknown}
}
