package inventory

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/web"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

// Codes of refusals.
const (
	CodeOutOfStock  resilience.Code = event.ReasonOutOfStock
	CodeUnknownItem resilience.Code = event.ReasonUnknownItem
	// CodeReleased: the reservation of the order has ended; nothing is held, and never will be.
	CodeReleased resilience.Code = "RESERVATION_RELEASED"
	// CodeCommitted: what was held is sold, and cannot be released.
	CodeCommitted resilience.Code = "RESERVATION_COMMITTED"
)

// Bounds of a reservation.
const (
	maxLines    = 50
	maxQuantity = 100_000
)

// API answers over HTTP, to each tenant about its own orders:
//
//	POST /v1/reservations                  Idempotency-Key: ORDER           {"orderId": ORDER, "lines": [{"sku": "tea-01", "quantity": 2}]}
//	GET  /v1/reservations/{order}
//	POST /v1/reservations/{order}/release  Idempotency-Key: release:ORDER   {"reason": "PAYMENT_TIMEOUT"}
//
// The order is the key: one order, one reservation, however often it is asked for. It is safe for concurrent use.
type API struct {
	service *Service
	pool    *pgxpool.Pool
}

// API returns the service's API over a pool of its database.
func (s *Service) API(pool *pgxpool.Pool) *API { return &API{s, pool} }

// Routes registers the API's requests.
func (a *API) Routes(mux *http.ServeMux) {
	mux.Handle("POST /v1/reservations", httpserver.Handler(a.reserve))
	mux.Handle("GET /v1/reservations/{order}", httpserver.Handler(a.reservation))
	mux.Handle("POST /v1/reservations/{order}/release", httpserver.Handler(a.release))
}

// request is the body of POST /v1/reservations.
type request struct {
	OrderID string `json:"orderId"`
	Lines   []Line `json:"lines"`
}

func (r request) validate() error {
	var faults []error
	if !web.Plain(r.OrderID) {
		faults = append(faults, errors.New("orderId must be 1 to 64 plain characters"))
	}
	if len(r.Lines) == 0 || len(r.Lines) > maxLines {
		faults = append(faults, fmt.Errorf("a reservation has 1 to %d lines, not %d", maxLines, len(r.Lines)))
	}
	for i, line := range r.Lines {
		if !web.Plain(line.SKU) || line.Quantity < 1 || line.Quantity > maxQuantity {
			faults = append(faults, fmt.Errorf("lines[%d] needs a sku of 1 to 64 plain characters and a quantity of 1 to %d", i, maxQuantity))
		}
	}
	if len(faults) > 0 {
		return web.Invalid(errors.Join(faults...))
	}
	return nil
}

func (a *API) reserve(w http.ResponseWriter, r *http.Request) error {
	tenant, err := web.Tenant(r)
	if err != nil {
		return err
	}
	var in request
	if err := web.Decode(r, &in); err != nil {
		return err
	}
	if err := in.validate(); err != nil {
		return err
	}
	if err := web.CheckKey(r, in.OrderID); err != nil {
		return err
	}
	ctx := r.Context()
	var got Reservation
	var rejected *RejectedError
	err = web.Write(ctx, a.pool, func(tx pgx.Tx) error {
		got, err = a.service.Reserve(ctx, tx, event.Ref{OrderID: in.OrderID, Tenant: tenant}, in.Lines)
		if errors.As(err, &rejected) {
			return nil // remembered
		}
		return err
	})
	if err == nil && rejected != nil {
		err = rejected
	}
	if err != nil {
		return problem(err)
	}
	return web.JSON(w, http.StatusCreated, got)
}

func (a *API) reservation(w http.ResponseWriter, r *http.Request) error {
	tenant, err := web.Tenant(r)
	if err != nil {
		return err
	}
	order, err := web.Path(r, "order", "reservation")
	if err != nil {
		return err
	}
	ctx := r.Context()
	var got Reservation
	err = pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error {
		got, err = a.service.Reservation(ctx, tx, event.Ref{OrderID: order, Tenant: tenant})
		return err
	})
	if err != nil {
		return problem(err)
	}
	return web.JSON(w, http.StatusOK, got)
}

func (a *API) release(w http.ResponseWriter, r *http.Request) error {
	tenant, err := web.Tenant(r)
	if err != nil {
		return err
	}
	order := r.PathValue("order")
	var in struct {
		Reason string `json:"reason"`
	}
	if err := web.Decode(r, &in); err != nil {
		return err
	}
	if !web.Plain(order) || !web.Plain(in.Reason) {
		return web.Invalid(errors.New("order and reason must be 1 to 64 plain characters"))
	}
	if err := web.CheckKey(r, ReleaseKey(order)); err != nil {
		return err
	}
	ctx := r.Context()
	var got Reservation
	err = web.Write(ctx, a.pool, func(tx pgx.Tx) error {
		got, err = a.service.Release(ctx, tx, event.Ref{OrderID: order, Tenant: tenant}, in.Reason)
		return err
	})
	if err != nil {
		return problem(err)
	}
	return web.JSON(w, http.StatusOK, got)
}

// ReleaseKey is the idempotency key with which an order's reservation is released.
func ReleaseKey(orderID string) string { return "release:" + orderID }

// problem is what a client is told.
func problem(err error) error {
	if rejected, ok := errors.AsType[*RejectedError](err); ok {
		return rejected.problem()
	}
	switch {
	case errors.Is(err, ErrUnknown):
		return web.NotFound("reservation")
	case errors.Is(err, ErrOther):
		return &httpserver.Problem{Code: resilience.CodeIdempotencyKeyReused, Detail: "The order has a reservation of other items; nothing was changed.", Err: err}
	case errors.Is(err, ErrCommitted):
		return &httpserver.Problem{Code: CodeCommitted, Status: http.StatusConflict, Detail: "What was reserved is sold.", Err: err}
	}
	return err
}

func (e *RejectedError) problem() *httpserver.Problem {
	p := &httpserver.Problem{Code: CodeReleased, Status: http.StatusConflict, Detail: "The reservation has ended; nothing is held.", Members: map[string]any{"reason": e.Reason}}
	switch e.Reason {
	case event.ReasonOutOfStock:
		p.Code, p.Detail = CodeOutOfStock, "There is not enough of an item; nothing is held."
	case event.ReasonUnknownItem:
		p.Code, p.Status, p.Detail = CodeUnknownItem, http.StatusUnprocessableEntity, "There is no such item; nothing is held."
	}
	if e.SKU != "" {
		p.Members["sku"] = e.SKU
	}
	return p
}
