// Package orders takes orders and leads them through their saga. Its state machine:
//
//	PENDING -> STOCK_RESERVED -> CONFIRMED
//	   |             |
//	   '-------------'--> CANCELLED (OUT_OF_STOCK, UNKNOWN_ITEM, CARD_DECLINED, PAYMENT_TIMEOUT, RESERVATION_EXPIRED)
//
// Every step is an UPDATE guarded by the statuses it may start from. What comes too late changes nothing: a
// payment for a cancelled order is asked back instead.
package orders

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/web"
)

// Bounds of an order.
const (
	MaxLines    = 8
	MaxQuantity = 1000
	MaxCents    = 100_000_00
	MaxName     = 200
	MaxNote     = 256 << 10
)

// Statuses of an order.
const (
	StatusPending       = "PENDING"
	StatusStockReserved = "STOCK_RESERVED"
	StatusConfirmed     = "CONFIRMED"
	StatusCancelled     = "CANCELLED"
)

// Order is what a customer sends. The zero value is not valid.
type Order struct {
	// Tenant is the shop that sells. Required.
	Tenant string `json:"tenant"`
	// IdempotencyKey makes sending the same order again harmless. Required, unique within the tenant.
	IdempotencyKey string `json:"idempotencyKey"`
	// Customer who orders. Required.
	Customer event.Customer `json:"customer"`
	// Lines are the items, 1 to 8.
	Lines []event.Line `json:"lines"`
	// Currency of all prices, three capital letters. Default: EUR.
	Currency string `json:"currency,omitempty"`
	// Card is the payment provider's token. Required.
	Card string `json:"card"`
	// Note is a gift message, at most 256 KiB.
	Note string `json:"note,omitempty"`
	// Checkout is how the services are asked: "" by events, [CheckoutSync] over HTTP.
	Checkout string `json:"checkout,omitempty"`
}

// Ways of a checkout.
const (
	CheckoutSync = "sync"
	checkoutSaga = "saga"
)

// namespace of the orders' ids.
var namespace = uuid.MustParse("5a7c7b1e-8b1d-5a38-9d5c-0f1f5f2f6c11")

// ID is the order's id: the same for the same tenant and idempotency key.
func (o Order) ID() string {
	return uuid.NewSHA1(namespace, []byte(o.Tenant+"\x00"+o.IdempotencyKey)).String()
}

// TotalCents is the sum of all lines.
func (o Order) TotalCents() int64 {
	var total int64
	for _, line := range o.Lines {
		total += int64(line.Quantity) * line.UnitPriceCents
	}
	return total
}

// hash tells the same order, sent again, from another one under the same key.
func (o Order) hash() ([]byte, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode order: %w", err)
	}
	sum := sha256.Sum256(body)
	return sum[:], nil
}

// InvalidError lists everything that is wrong with an order.
type InvalidError struct{ Faults error }

// CodeInvalid is the stable code of an [InvalidError].
const CodeInvalid = "INVALID_ORDER"

// Error implements error.
func (e *InvalidError) Error() string { return CodeInvalid + ": " + e.Faults.Error() }

// Unwrap returns the faults.
func (e *InvalidError) Unwrap() error { return e.Faults }

// Validate lists every fault in an [*InvalidError].
func (o Order) Validate() error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(web.Plain(o.Tenant), "tenant must be 1 to 64 plain characters")
	check(web.Plain(o.IdempotencyKey), "idempotencyKey must be 1 to 64 plain characters")
	check(web.Plain(o.Card), "card must be 1 to 64 plain characters")
	check(o.Checkout == "" || o.Checkout == CheckoutSync, "checkout must be %q or left out", CheckoutSync)
	check(o.Currency == "" || isCurrency(o.Currency), "currency must be three capital letters")
	check(isText(o.Customer.Name, MaxName), "customer.name must be 1 to %d bytes of UTF-8 text", MaxName)
	check(isText(o.Customer.Email, MaxName) && strings.Contains(o.Customer.Email, "@"), "customer.email must be an address of at most %d bytes", MaxName)
	check(o.Note == "" || isText(o.Note, MaxNote), "note must be at most %d bytes of UTF-8 text", MaxNote)
	check(len(o.Lines) >= 1 && len(o.Lines) <= MaxLines, "an order has 1 to %d lines, not %d", MaxLines, len(o.Lines))
	for i, line := range o.Lines {
		check(web.Plain(line.SKU), "lines[%d].sku must be 1 to 64 plain characters", i)
		check(isText(line.Name, MaxName), "lines[%d].name must be 1 to %d bytes of UTF-8 text", i, MaxName)
		check(line.Quantity >= 1 && line.Quantity <= MaxQuantity, "lines[%d].quantity must be 1 to %d", i, MaxQuantity)
		check(line.UnitPriceCents >= 0 && line.UnitPriceCents <= MaxCents, "lines[%d].unitPriceCents must be 0 to %d", i, MaxCents)
	}
	check(o.TotalCents() > 0, "an order must cost something")
	if len(faults) > 0 {
		return &InvalidError{Faults: errors.Join(faults...)}
	}
	return nil
}

// isText refuses what PostgreSQL and JSON would not carry.
func isText(s string, limit int) bool {
	return s != "" && len(s) <= limit && utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}

func isCurrency(s string) bool {
	return len(s) == 3 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}
