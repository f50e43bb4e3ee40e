// Package event holds the events that the shop's services send each other: their names, and their payloads
// as JSON. Every payload names the order and its tenant; the order's id is also the message's key.
package event

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/surefoot-mq/surefoot/message"
)

// Exchange that all events are published to.
const Exchange = "shop.events"

// Types of the events, in the order in which an order meets them.
const (
	TypeOrderCreated     = "order.created"
	TypeStockReserved    = "stock.reserved"
	TypeStockRejected    = "stock.rejected"
	TypeChargeRequested  = "payment.charge.requested"
	TypePaymentConfirmed = "payment.confirmed"
	TypePaymentRejected  = "payment.rejected"
	TypeOrderConfirmed   = "order.confirmed"
	TypeOrderCancelled   = "order.cancelled"
	TypeStockExpired     = "stock.expired"
	TypeStockReleased    = "stock.released"
	TypeRefundRequested  = "payment.refund.requested"
	TypePaymentRefunded  = "payment.refunded"
)

// Reasons of rejections and cancellations.
const (
	ReasonOutOfStock         = "OUT_OF_STOCK"
	ReasonUnknownItem        = "UNKNOWN_ITEM"
	ReasonCardDeclined       = "CARD_DECLINED"
	ReasonPaymentTimeout     = "PAYMENT_TIMEOUT"
	ReasonReservationExpired = "RESERVATION_EXPIRED"
	ReasonLatePayment        = "LATE_PAYMENT"
)

// Ref names the order that an event is about.
type Ref struct {
	OrderID string `json:"orderId"`
	Tenant  string `json:"tenant"`
}

// Validate refuses an event that names no order: trying it again cannot help.
func (r Ref) Validate() error {
	if r.OrderID == "" || r.Tenant == "" {
		return errors.New("orderId and tenant must not be empty")
	}
	return nil
}

// Payment says what is to be paid, and with what. It travels with the order, so that the payment service
// needs nobody to ask.
type Payment struct {
	AmountCents int64  `json:"amountCents"`
	Currency    string `json:"currency"`
	// Card is a token of the payment provider, never a number.
	Card string `json:"card"`
}

// Customer is who ordered.
type Customer struct {
	Name  string `json:"name"`
	Email string `json:"email"`
}

// Line is one item of an order.
type Line struct {
	SKU            string `json:"sku"`
	Name           string `json:"name"`
	Quantity       int    `json:"quantity"`
	UnitPriceCents int64  `json:"unitPriceCents"`
}

// OrderCreated starts the saga.
type OrderCreated struct {
	Ref
	Customer Customer `json:"customer"`
	Lines    []Line   `json:"lines"`
	Payment  Payment  `json:"payment"`
	Note     string   `json:"note,omitempty"`
}

// StockReserved says that every line is held until ExpiresAt.
type StockReserved struct {
	Ref
	ExpiresAt time.Time `json:"expiresAt"`
	Payment   Payment   `json:"payment"`
}

// StockRejected says which item is missing; nothing is held.
type StockRejected struct {
	Ref
	Reason string `json:"reason"`
	SKU    string `json:"sku"`
}

// ChargeRequested is the payment service's note to itself: the intent is committed before the provider is
// called, so that no crash can forget that it may have been.
type ChargeRequested struct {
	Ref
}

// PaymentConfirmed says that the provider has charged.
type PaymentConfirmed struct {
	Ref
	ChargeID    string `json:"chargeId"`
	AmountCents int64  `json:"amountCents"`
}

// PaymentRejected says that the provider will not charge.
type PaymentRejected struct {
	Ref
	Reason string `json:"reason"`
}

// OrderConfirmed is the good end.
type OrderConfirmed struct {
	Ref
	Customer Customer `json:"customer"`
}

// OrderCancelled is the other end. It comes from the orders or, with more fields than these, from the watchdog.
type OrderCancelled struct {
	Ref
	Reason string `json:"reason"`
}

// StockExpired comes from the watchdog over the reservations: one has outlived its time.
type StockExpired struct {
	Ref
	Reason string `json:"reason"`
}

// StockReleased says that what was held is for sale again.
type StockReleased struct {
	Ref
	Reason string `json:"reason"`
}

// RefundRequested asks for the money back, if there was any.
type RefundRequested struct {
	Ref
	Reason string `json:"reason"`
}

// PaymentRefunded says that the provider has paid back.
type PaymentRefunded struct {
	Ref
	RefundID    string `json:"refundId"`
	AmountCents int64  `json:"amountCents"`
}

// namespace of the shop's message ids.
var namespace = uuid.MustParse("0b1a8f6c-3f57-5d57-8a3b-41e3a1a5f0d2")

// New returns a message of one type about one order. Its id is made of both, so that the same event, sent
// again for whatever reason, is one message to every inbox.
func New(eventType, orderID string, payload any) (message.Message, error) {
	body, err := json.Marshal(payload)
	if err != nil {
		return message.Message{}, fmt.Errorf("encode %s: %w", eventType, err)
	}
	id := uuid.NewSHA1(namespace, []byte(eventType+"\x00"+orderID)).String()
	return message.Message{ID: id, Type: eventType, Key: orderID, Exchange: Exchange, Payload: body}, nil
}
