package inventory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
)

// Statuses of a reservation.
const (
	StatusActive    = "ACTIVE"
	StatusCommitted = "COMMITTED"
	StatusExpired   = "EXPIRED"
	StatusReleased  = "RELEASED"
	StatusRejected  = "REJECTED"
)

// Line is one item of a reservation.
type Line struct {
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
}

// Reservation is what is held for an order, or was.
type Reservation struct {
	OrderID   string    `json:"orderId"`
	Status    string    `json:"status"`
	Reason    string    `json:"reason,omitempty"`
	ExpiresAt time.Time `json:"expiresAt"`
	Lines     []Line    `json:"lines"`
}

// Holds tells whether stock is kept back for the order, or sold to it.
func (r Reservation) Holds() bool { return r.Status == StatusActive || r.Status == StatusCommitted }

// What keeps a reservation from being made or released. Nothing has changed.
var (
	// ErrUnknown: the tenant has no reservation for the order.
	ErrUnknown = errors.New("unknown reservation")
	// ErrOther: the order has a reservation of other items.
	ErrOther = errors.New("the order has a reservation of other items")
	// ErrCommitted: what was held is sold.
	ErrCommitted = errors.New("the reservation is committed")
)

// RejectedError says that nothing is held. It is final for the order.
type RejectedError struct {
	// Reason is event.ReasonOutOfStock or event.ReasonUnknownItem, or why the reservation has ended.
	Reason string
	// SKU that is missing, "" when it is not known any more.
	SKU string
}

// Error implements error.
func (e *RejectedError) Error() string { return "stock is not reserved: " + e.Reason }

const (
	reservationSQL store.SQL = `
SELECT status, coalesce(reason, ''), expires_at FROM @schema@.reservations WHERE order_id = $1 AND tenant = $2`

	reservedLinesSQL store.SQL = `SELECT sku, quantity FROM @schema@.reservation_lines WHERE order_id = $1 AND tenant = $2 ORDER BY sku`
)

// Reserve holds every line for an order, or none, in the caller's transaction; the same again changes nothing and has the same
// answer. Unlike an order.created it sends no event: whoever asks over HTTP goes on by itself. Errors: a [*RejectedError],
// which is remembered, so the transaction is to be committed; [ErrOther]; [ErrUnknown] for an order of another tenant.
func (s *Service) Reserve(ctx context.Context, tx pgx.Tx, ref event.Ref, lines []Line) (Reservation, error) {
	wanted := map[string]int{}
	for _, line := range lines {
		wanted[line.SKU] += line.Quantity
	}
	h, opened, err := s.open(ctx, tx, ref, wanted)
	if err != nil {
		return Reservation{}, err
	}
	if opened && h.reason != "" {
		return Reservation{}, &RejectedError{Reason: h.reason, SKU: h.missing}
	}
	r, err := s.Reservation(ctx, tx, ref)
	switch {
	case err != nil:
		return r, err
	case r.Status == StatusRejected || r.Status == StatusReleased || r.Status == StatusExpired:
		return r, &RejectedError{Reason: r.Reason}
	}
	held := map[string]int{}
	for _, line := range r.Lines {
		held[line.SKU] = line.Quantity
	}
	if !maps.Equal(held, wanted) {
		return r, ErrOther
	}
	return r, nil
}

// Reservation returns a tenant's reservation, or [ErrUnknown].
func (s *Service) Reservation(ctx context.Context, tx pgx.Tx, ref event.Ref) (Reservation, error) {
	r := Reservation{OrderID: ref.OrderID}
	err := tx.QueryRow(ctx, reservationSQL.In(s.schema), ref.OrderID, ref.Tenant).Scan(&r.Status, &r.Reason, &r.ExpiresAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, ErrUnknown
	}
	if err != nil {
		return r, fmt.Errorf("read reservation: %w", err)
	}
	rows, _ := tx.Query(ctx, reservedLinesSQL.In(s.schema), ref.OrderID, ref.Tenant) // its error is that of the rows
	if r.Lines, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Line]); err != nil {
		return r, fmt.Errorf("read reservation's lines: %w", err)
	}
	return r, nil
}

// Release gives back what is held for an order, once; again it changes nothing. An order that is not known leaves a tombstone:
// a request to reserve that is still on its way finds it, and holds nothing. Errors: [ErrCommitted], and [ErrUnknown] for an
// order of another tenant.
func (s *Service) Release(ctx context.Context, tx pgx.Tx, ref event.Ref, reason string) (Reservation, error) {
	if _, err := tx.Exec(ctx, tombstoneSQL.In(s.schema), ref.OrderID, ref.Tenant, reason); err != nil {
		return Reservation{}, fmt.Errorf("note released order: %w", err)
	}
	if err := s.release(ctx, tx, ref, reason, StatusActive, StatusExpired); err != nil {
		return Reservation{}, err
	}
	r, err := s.Reservation(ctx, tx, ref)
	if err == nil && r.Status == StatusCommitted {
		return r, ErrCommitted
	}
	return r, err
}
