package orders

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

// What a customer sees of a status.
const (
	viewPending  = "pending"
	viewAccepted = "accepted"
	viewFailed   = "failed"
)

// views of the statuses.
var views = map[string]string{
	StatusPending: viewPending, StatusStockReserved: viewPending, StatusConfirmed: viewAccepted, StatusCancelled: viewFailed,
}

const (
	viewSQL store.SQL = `
SELECT id, status, coalesce(reason, ''), total_cents, currency, created_at, status_at, reserved_until, coalesce(charge_id, ''), coalesce(refund_id, '')
FROM @schema@.orders WHERE id = $1 AND tenant = $2`

	linesSQL store.SQL = `SELECT sku, name, quantity, unit_price_cents FROM @schema@.order_lines WHERE order_id = $1 ORDER BY line`
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
}

// order answers a tenant about its own orders: another one's are not there.
func (a *API) order(w http.ResponseWriter, r *http.Request) error {
	tenant, err := Tenant(r)
	if err != nil {
		return err
	}
	var v view
	t := &v.Trace
	err = a.options.Pool.QueryRow(r.Context(), viewSQL.In(a.service.schema), r.PathValue("id"), tenant).Scan(&v.OrderID, &t.Status, &v.Reason,
		&v.TotalCents, &v.Currency, &t.CreatedAt, &t.StatusAt, &t.ReservedUntil, &t.ChargeID, &t.RefundID)
	if errors.Is(err, pgx.ErrNoRows) {
		return &httpserver.Problem{Code: resilience.CodeNotFound, Detail: "There is no such order."}
	}
	if err != nil {
		return fmt.Errorf("read order: %w", err)
	}
	v.Status = views[t.Status]
	rows, err := a.options.Pool.Query(r.Context(), linesSQL.In(a.service.schema), v.OrderID)
	if err != nil {
		return fmt.Errorf("read order's lines: %w", err)
	}
	if v.Lines, err = pgx.CollectRows(rows, pgx.RowToStructByPos[event.Line]); err != nil {
		return fmt.Errorf("read order's lines: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	return json.NewEncoder(w).Encode(v)
}
