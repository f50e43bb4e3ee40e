package shop

import (
	"errors"
	"fmt"
	"time"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/inventory"
	"github.com/surefoot-mq/surefoot/examples/shop/notifications"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/payments"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/topology"
	"github.com/surefoot-mq/surefoot/watchdog"
)

const runbook = "docs/runbooks/dlq.md"

// Topology is the shop's queues, as in examples/shop/surefoot.yaml.
func Topology() topology.Spec {
	return topology.Spec{Exchange: event.Exchange, Queues: []topology.Queue{
		{
			Name: orders.Queue, Owner: "orders", Runbook: runbook,
			Bindings: []string{
				event.TypeStockReserved, event.TypeStockRejected, event.TypeStockReleased,
				event.TypePaymentConfirmed, event.TypePaymentRejected, event.TypePaymentRefunded,
			},
		},
		{
			Name: inventory.Queue, Owner: "inventory", Runbook: runbook,
			Bindings: []string{event.TypeOrderCreated, event.TypeOrderConfirmed, event.TypeOrderCancelled, event.TypeStockExpired},
		},
		{
			Name: payments.Queue, Owner: "payments", Runbook: runbook,
			Bindings: []string{event.TypeStockReserved, event.TypeChargeRequested, event.TypeOrderCancelled, event.TypeRefundRequested},
		},
		{
			Name: notifications.Queue, Owner: "customer-care", Runbook: runbook,
			Bindings: []string{event.TypeOrderConfirmed, event.TypeOrderCancelled, event.TypePaymentRefunded},
		},
	}}
}

// DefaultPaymentLimit is how long an order may wait for its payment: below the 15 min of its reservation.
const DefaultPaymentLimit = 10 * time.Minute

// PaymentTimeout cancels orders that wait for their payment for too long. Prefix "" is "shop", limit 0 is 10 min.
func PaymentTimeout(prefix string, limit time.Duration) watchdog.Rule {
	if limit <= 0 {
		limit = DefaultPaymentLimit
	}
	return watchdog.Rule{
		Name: event.ReasonPaymentTimeout, Table: store.Schema(prefix, orders.Name) + ".orders",
		Key: "id", Status: "status", Stuck: []string{orders.StatusStockReserved}, Clock: "status_at", Limit: limit,
		NewStatus: orders.StatusCancelled, Reason: event.ReasonPaymentTimeout, EventType: event.TypeOrderCancelled,
		Exchange: event.Exchange, ReasonColumn: "reason", ChangedColumn: "status_at",
		Payload: map[string]string{"orderId": "id", "tenant": "tenant"},
	}
}

// ReservationExpired gives up reservations that have outlived their time. The inventory then gives the stock
// back and the orders cancel what was waiting for it.
func ReservationExpired(prefix string) watchdog.Rule {
	return watchdog.Rule{
		Name: event.ReasonReservationExpired, Table: store.Schema(prefix, inventory.Name) + ".reservations",
		Key: "order_id", Status: "status", Stuck: []string{"ACTIVE"}, Clock: "expires_at", Limit: time.Millisecond,
		NewStatus: "EXPIRED", Reason: event.ReasonReservationExpired, EventType: event.TypeStockExpired,
		Exchange: event.Exchange, ReasonColumn: "reason",
		Payload: map[string]string{"orderId": "order_id", "tenant": "tenant"},
	}
}

// Timing is what must fit together: retries of a payment end before the watchdog cancels its order, and the
// watchdog cancels before the reservation expires.
type Timing struct {
	// RetryWindow is the longest that a message can be retried.
	RetryWindow time.Duration
	// PaymentLimit is the watchdog's.
	PaymentLimit time.Duration
	// Hold is the reservation's.
	Hold time.Duration
}

// RetryWindow of a queue: all waits and all handler timeouts.
func RetryWindow(q topology.Queue) time.Duration {
	q, _ = topology.Spec{Queues: []topology.Queue{q}}.Find(q.Name)
	tiers := q.Tiers()
	window := time.Duration(q.MaxAttempts) * q.HandlerTimeout
	for failed := range q.MaxAttempts - 1 {
		window += tiers[min(failed, len(tiers)-1)].Delay
	}
	return window
}

// Check says what does not fit, nil when all does. The shop runs all the same: it is a warning.
func (t Timing) Check() error {
	var faults []error
	if t.RetryWindow >= t.PaymentLimit {
		faults = append(faults, fmt.Errorf("a payment may be retried for %s, but the watchdog cancels its order after %s: it would cancel orders whose payment is about to succeed",
			t.RetryWindow, t.PaymentLimit))
	}
	if t.PaymentLimit >= t.Hold {
		faults = append(faults, fmt.Errorf("the watchdog cancels an order after %s, but its reservation expires after %s: the stock is sold to others before the customer is refunded",
			t.PaymentLimit, t.Hold))
	}
	return errors.Join(faults...)
}

// CheckTiming is [Timing.Check] of this shop under a watchdog's limit.
func (s *Shop) CheckTiming(paymentLimit time.Duration) error {
	queue, _ := s.options.Topology.Find(payments.Queue)
	hold := s.options.Hold
	if hold <= 0 {
		hold = inventory.DefaultHold
	}
	return Timing{RetryWindow: RetryWindow(queue), PaymentLimit: paymentLimit, Hold: hold}.Check()
}
