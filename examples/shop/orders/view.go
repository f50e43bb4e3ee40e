package orders

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/examples/shop/web"
)

// What a customer sees of a status.
const (
	viewPending    = "pending"
	viewAccepted   = "accepted"
	viewRecovering = "recovering"
	viewFailed     = "failed"
)

// views of the statuses.
var views = map[string]string{
	StatusPending: viewPending, StatusStockReserved: viewPending, StatusConfirmed: viewAccepted, StatusCancelled: viewFailed,
}

const (
	viewSQL store.SQL = `
SELECT id, status, coalesce(reason, ''), total_cents, currency, created_at, status_at, reserved_until, coalesce(charge_id, ''), coalesce(refund_id, ''), checkout, request_id
FROM @schema@.orders WHERE id = $1 AND tenant = $2`

	linesSQL store.SQL = `SELECT sku, name, quantity, unit_price_cents FROM @schema@.order_lines WHERE order_id = $1 ORDER BY line`

	viewCaseSQL store.SQL = `
SELECT tenant, order_id, state, reason, evidence, asked, next_at, opened_at, closed_at FROM @schema@.recovery_cases
WHERE order_id = $1 AND tenant = $2 ORDER BY id DESC LIMIT 1`

	viewAttemptsSQL store.SQL = `
SELECT operation, dependency, number, class, started_at, took_ms, left_ms FROM @schema@.order_attempts
WHERE order_id = $1 AND tenant = $2 ORDER BY id DESC LIMIT 50`
)

// view is the answer to GET /v1/orders/{id}.
type view struct {
	OrderID    string       `json:"orderId"`
	Status     string       `json:"status"`
	Reason     string       `json:"reason,omitempty"`
	TotalCents int64        `json:"totalCents"`
	Currency   string       `json:"currency"`
	Lines      []event.Line `json:"lines"`
	Trace      trace        `json:"trace"`
}

// trace is for the support: where the order stands, and what to look for at the payment provider.
type trace struct {
	Status        string     `json:"status"`
	CreatedAt     time.Time  `json:"createdAt"`
	StatusAt      time.Time  `json:"statusAt"`
	ReservedUntil *time.Time `json:"reservedUntil,omitempty"`
	ChargeID      string     `json:"chargeId,omitempty"`
	RefundID      string     `json:"refundId,omitempty"`
	Checkout      string     `json:"checkout"`
	RequestID     string     `json:"requestId,omitempty"`
	// Recovery is the order's last case, and Attempts are the last calls that were made for it, newest first.
	Recovery *Case     `json:"recovery,omitempty"`
	Attempts []tracked `json:"attempts,omitempty"`
}

// tracked is one attempt of a call.
type tracked struct {
	Operation  string    `json:"operation"`
	Dependency string    `json:"dependency"`
	Number     int       `json:"number"`
	Class      string    `json:"class"`
	StartedAt  time.Time `json:"startedAt"`
	TookMS     int64     `json:"tookMs"`
	LeftMS     int64     `json:"leftMs"`
}

// order answers a tenant about its own orders: another one's are not there.
func (a *API) order(w http.ResponseWriter, r *http.Request) error {
	tenant, err := Tenant(r)
	if err != nil {
		return err
	}
	id, err := web.Path(r, "id", "order")
	if err != nil {
		return err
	}
	var v view
	t := &v.Trace
	err = a.options.Pool.QueryRow(r.Context(), viewSQL.In(a.service.schema), id, tenant).Scan(&v.OrderID, &t.Status, &v.Reason,
		&v.TotalCents, &v.Currency, &t.CreatedAt, &t.StatusAt, &t.ReservedUntil, &t.ChargeID, &t.RefundID, &t.Checkout, &t.RequestID)
	if errors.Is(err, pgx.ErrNoRows) {
		return web.NotFound("order")
	}
	if err != nil {
		return fmt.Errorf("read order: %w", err)
	}
	v.Status = views[t.Status]
	if err := a.details(r.Context(), tenant, &v); err != nil {
		return err
	}
	return web.JSON(w, http.StatusOK, v)
}

// details are the order's lines, its recovery and its calls. One that waits for its recovery says so.
func (a *API) details(ctx context.Context, tenant string, v *view) error {
	rows, _ := a.options.Pool.Query(ctx, linesSQL.In(a.service.schema), v.OrderID) // its error is that of the rows
	lines, err := pgx.CollectRows(rows, pgx.RowToStructByPos[event.Line])
	if err != nil {
		return fmt.Errorf("read order's lines: %w", err)
	}
	v.Lines = lines
	if v.Trace.Checkout != CheckoutSync {
		return nil
	}
	rows, _ = a.options.Pool.Query(ctx, viewCaseSQL.In(a.service.schema), v.OrderID, tenant) // its error is that of the rows
	last, err := pgx.CollectOneRow(rows, pgx.RowToAddrOfStructByPos[Case])
	switch {
	case err == nil:
		v.Trace.Recovery = last
		if v.Status == viewPending && last.ClosedAt == nil {
			v.Status = viewRecovering
		}
	case !errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("read order's recovery: %w", err)
	}
	rows, err = a.options.Pool.Query(ctx, viewAttemptsSQL.In(a.service.schema), v.OrderID, tenant)
	if err != nil {
		return fmt.Errorf("read order's attempts: %w", err)
	}
	if v.Trace.Attempts, err = pgx.CollectRows(rows, pgx.RowToStructByPos[tracked]); err != nil {
		return fmt.Errorf("read order's attempts: %w", err)
	}
	return nil
}
