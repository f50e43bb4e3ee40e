package shop_test

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

func TestOrderIsConfirmedAndPaidOnce(t *testing.T) {
	b := newBench(t)
	b.submit()
	b.run()
	o := b.ends(orders.StatusConfirmed, "")
	require.Equal(t, 1, o.Charges)
	require.Equal(t, int64(3*1290+890), o.NetCents)
	require.Equal(t, "COMMITTED", o.Reservation)
	require.Equal(t, 1, o.Mails)
	require.Empty(t, b.failed)
}

func TestSoldOutOrderIsCancelledWithoutACharge(t *testing.T) {
	for item, reason := range map[string]string{"gone": event.ReasonOutOfStock, "unheard-of": event.ReasonUnknownItem} {
		t.Run(item, func(t *testing.T) {
			b := newBench(t)
			b.submit(func(o *orders.Order) { o.Lines[1].SKU = item })
			b.run()
			o := b.ends(orders.StatusCancelled, reason)
			require.Equal(t, "REJECTED", o.Reservation)
			require.Zero(t, o.Charges)
			require.Empty(t, b.simulator.Ledger().ChargeRequests)
		})
	}
}

func TestDeclinedCardReleasesTheStock(t *testing.T) {
	b := newBench(t)
	b.submit(func(o *orders.Order) { o.Card = provider.CardDeclined })
	b.run()
	o := b.ends(orders.StatusCancelled, event.ReasonCardDeclined)
	require.Equal(t, "RELEASED", o.Reservation)
	require.Equal(t, "DECLINED", o.Payment)
	require.Zero(t, o.Charges)
}

func TestTransient503IsChargedOnceInTheEnd(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.simulator.SetRules(provider.Rule{Fault: provider.FaultUnavailable, Times: 2}))
	id := b.submit()
	b.run()
	b.failedWith(resilience.ClassTransient)
	b.retry()
	b.failedWith(resilience.ClassTransient)
	b.retry()
	require.Equal(t, 1, b.ends(orders.StatusConfirmed, "").Charges)
	require.Equal(t, 3, b.simulator.Ledger().ChargeRequests[id])
}

// The provider has charged and the answer is lost: that is neither success nor failure, and the same key again
// is no second charge.
func TestHangAfterTheChargeIsUncertainAndNotChargedTwice(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.simulator.SetRules(provider.Rule{Fault: provider.FaultHang, Times: 1}))
	b.submit()
	b.run()
	d := b.failedWith(resilience.ClassTimeout)
	var uncertain *provider.UncertainError
	require.ErrorAs(t, d.err, &uncertain)
	require.Len(t, b.simulator.Ledger().Charges, 1)
	require.Equal(t, 1, b.account().Pending, "honestly pending: neither confirmed nor cancelled")
	b.retry()
	require.Equal(t, 1, b.ends(orders.StatusConfirmed, "").Charges)
}

func TestPaymentTimeoutCancelsReleasesAndRefundsWhatWasChargedMeanwhile(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.simulator.SetRules(provider.Rule{Fault: provider.FaultHang, Times: 1}))
	id := b.submit()
	b.run() // charged, but nobody here knows
	timeouts, _ := b.watch(0)
	require.Zero(t, timeouts, "not over the limit yet")
	b.age(id, 11*time.Minute)
	timeouts, expired := b.watch(0)
	require.Equal(t, 1, timeouts)
	require.Zero(t, expired, "the limit is below the reservation's time")
	timeouts, _ = b.watch(0)
	require.Zero(t, timeouts, "a second cycle finds nothing")
	b.run()
	o := b.ends(orders.StatusCancelled, event.ReasonPaymentTimeout)
	require.Equal(t, 1, o.Charges)
	require.Equal(t, 1, o.Refunds)
	require.Equal(t, "RELEASED", o.Reservation)

	b.retry() // the charge's message comes again: nothing is charged
	o = b.ends(orders.StatusCancelled, event.ReasonPaymentTimeout)
	require.Equal(t, 1, o.Charges)
	require.Empty(t, b.failed)
}

func TestNothingIsChargedAfterTheTimeout(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.simulator.SetRules(provider.Rule{Fault: provider.FaultUnavailable}))
	id := b.submit()
	b.run()
	b.age(id, 11*time.Minute)
	b.watch(0)
	b.run()
	require.NoError(t, b.simulator.SetRules())
	b.retry()
	o := b.ends(orders.StatusCancelled, event.ReasonPaymentTimeout)
	require.Zero(t, o.Charges)
	require.Equal(t, "CANCELLED", o.Payment)
	require.Equal(t, 1, b.simulator.Ledger().ChargeRequests[id], "the provider is not even asked")
}

// A charge that is still under way at the provider when the order is cancelled: the reversal gets there first
// and keeps the charge from ever happening.
func TestSlowChargeIsOvertakenByTheReversal(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.simulator.SetRules(provider.Rule{Fault: provider.FaultSlow, Times: 1}))
	id := b.submit()
	b.run()
	b.failedWith(resilience.ClassTimeout)
	b.age(id, 11*time.Minute)
	b.watch(0)
	b.run()
	require.NoError(t, b.simulator.SetRules()) // lets the slow one go on
	b.retry()
	o := b.ends(orders.StatusCancelled, event.ReasonPaymentTimeout)
	require.Zero(t, o.NetCents)
}

// The incident: payment.confirmed lies in the dead-letter queue, the watchdog cancels, and then it is redriven.
func TestLatePaymentConfirmedIsIgnoredAndRefundedOnce(t *testing.T) {
	b := newBench(t)
	id := b.submit()
	late := holding(orders.Queue, event.TypePaymentConfirmed)
	b.run(late)
	b.age(id, 11*time.Minute)
	b.watch(0)
	b.run(late)
	o := b.ends(orders.StatusCancelled, event.ReasonPaymentTimeout)
	require.Equal(t, 1, o.Refunds, "the refund does not wait for the redrive")
	require.Len(t, b.waiting, 1)
	b.run() // the redrive
	o = b.ends(orders.StatusCancelled, event.ReasonPaymentTimeout)
	require.Equal(t, 1, o.Charges)
	require.Equal(t, 1, o.Refunds)
	require.Empty(t, b.failed)
}

// Here the cancellation has not reached the payments yet: the orders ask the money back themselves.
func TestPaymentConfirmedForACancelledOrderIsAskedBack(t *testing.T) {
	b := newBench(t)
	id := b.submit()
	late, slow := holding(orders.Queue, event.TypePaymentConfirmed), holding("payments.saga", event.TypeOrderCancelled)
	b.run(late, slow)
	b.age(id, 11*time.Minute)
	b.watch(0)
	b.run(slow)
	require.Equal(t, 1, b.account().Orders[0].Refunds)
	b.run()
	require.Equal(t, 1, b.ends(orders.StatusCancelled, event.ReasonPaymentTimeout).Refunds)
}

// The other order of the two: payment first, then the watchdog, which waits for its row and finds it paid.
func TestWatchdogPassesOverAnOrderThatIsBeingPaid(t *testing.T) {
	b := newBench(t)
	id := b.submit()
	b.run(holding(orders.Queue, event.TypePaymentConfirmed))
	b.age(id, 11*time.Minute)
	paid := b.waiting[0]
	require.NoError(t, pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		if err := paid.role.Handler(message.NewContext(t.Context(), paid.msg), tx, paid.msg); err != nil {
			return err
		}
		timeouts, _ := b.watch(0)
		require.Zero(t, timeouts, "the row is locked by the payment")
		return nil
	}))
	timeouts, _ := b.watch(0)
	require.Zero(t, timeouts)
	b.waiting = nil
	b.run()
	require.Equal(t, 1, b.ends(orders.StatusConfirmed, "").Charges)
}

// Why the limit is below the reservation's time: above it the stock is for sale again while the customer's
// money is still away.
func TestLimitAboveTheReservationLetsItExpireFirst(t *testing.T) {
	b := newBench(t)
	id := b.submit()
	b.run(holding(orders.Queue, event.TypePaymentConfirmed))
	b.age(id, 15*time.Minute+time.Second)
	timeouts, expired := b.watch(16 * time.Minute)
	require.Zero(t, timeouts, "not yet")
	require.Equal(t, 1, expired, "the reservation goes first")
	hold := func(d delivery) bool {
		return d.role.Queue == orders.Queue // the orders hear of it late
	}
	b.run(hold)
	o := b.account().Orders[0]
	require.Equal(t, "RELEASED", o.Reservation, "the stock is for sale")
	require.Equal(t, orders.StatusStockReserved, o.Status)
	require.Equal(t, 1, o.Charges)
	require.Zero(t, o.Refunds, "and the money is not back")
	b.age(id, time.Minute)
	timeouts, _ = b.watch(16 * time.Minute)
	require.Equal(t, 1, timeouts)
	b.run()
	require.Equal(t, 1, b.ends(orders.StatusCancelled, event.ReasonPaymentTimeout).Refunds)
}

func TestExpiredReservationCancelsItsOrder(t *testing.T) {
	b := newBench(t)
	id := b.submit()
	b.run(holding("payments.saga", event.TypeStockReserved))
	b.age(id, 16*time.Minute)
	_, err := b.Pool.Exec(t.Context(), `UPDATE `+b.shop.Orders.Schema()+`.orders SET status_at = now()`)
	require.NoError(t, err)
	_, expired := b.watch(0)
	require.Equal(t, 1, expired)
	b.run()
	o := b.ends(orders.StatusCancelled, event.ReasonReservationExpired)
	require.Zero(t, o.NetCents)
}

// A redelivery without an inbox row, as after its retention: the guards alone must hold.
func TestEveryMessageTwiceChangesNothing(t *testing.T) {
	for name, change := range map[string]func(*orders.Order){
		"confirmed": func(*orders.Order) {},
		"declined":  func(o *orders.Order) { o.Card = provider.CardDeclined },
		"sold out":  func(o *orders.Order) { o.Lines[0].SKU = "gone" },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.submit(change)
			var all []delivery
			for b.collect(); len(b.waiting) > 0; b.collect() {
				d := b.waiting[0]
				b.waiting = b.waiting[1:]
				all = append(all, d)
				require.NoError(t, b.handle(d))
			}
			before := b.account()
			for _, d := range all {
				require.NoError(t, b.handle(d))
				b.collect()
				require.Empty(t, b.waiting, "%s to %s has an effect the second time", d.msg.Type, d.role.Queue)
			}
			require.Equal(t, before, b.account())
		})
	}
}

// Cancelled before its beginning was seen: stock.reserved is redriven to the payments after the end.
func TestReservedStockOfACancelledOrderIsNotCharged(t *testing.T) {
	b := newBench(t)
	id := b.submit()
	b.run(holding("payments.saga", event.TypeStockReserved))
	b.age(id, 11*time.Minute)
	b.watch(0)
	b.run(holding("payments.saga", event.TypeStockReserved))
	b.run()
	o := b.ends(orders.StatusCancelled, event.ReasonPaymentTimeout)
	require.Zero(t, o.Charges)
	require.Empty(t, b.simulator.Ledger().ChargeRequests)
}

func TestOrderThatIsCancelledBeforeItIsSeenHoldsNothing(t *testing.T) {
	b := newBench(t)
	id := b.submit()
	created := holding("inventory.orders", event.TypeOrderCreated)
	b.run(created)
	cancelled, err := event.New(event.TypeOrderCancelled, id, event.OrderCancelled{Ref: event.Ref{OrderID: id, Tenant: "alpine"}, Reason: "CUSTOMER"})
	require.NoError(t, err)
	for _, role := range b.roles {
		if role.Queue == "inventory.orders" {
			require.NoError(t, b.handle(delivery{role: role, msg: cancelled}))
		}
	}
	b.run()
	require.Equal(t, "RELEASED", b.account().Orders[0].Reservation)
	require.Empty(t, b.simulator.Ledger().ChargeRequests)
}

// The reservation expired between the payment and the news of it: the stock is taken again while there is some.
func TestConfirmedOrderTakesItsStockAgain(t *testing.T) {
	for name, sold := range map[string]bool{"still there": false, "sold meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			lines := []event.Line{{SKU: "last", Name: "Last", Quantity: 1, UnitPriceCents: 100}}
			id := b.submit(func(o *orders.Order) { o.Lines = lines })
			confirmed := holding("inventory.orders", event.TypeOrderConfirmed)
			b.run(confirmed)
			b.age(id, time.Hour)
			_, expired := b.watch(0)
			require.Equal(t, 1, expired)
			news := b.waiting
			b.waiting = nil
			b.run()
			if sold {
				b.submit(func(o *orders.Order) { o.IdempotencyKey, o.Lines = "k2", lines })
				b.run()
			}
			b.waiting = news
			b.run()
			if sold {
				b.failedWith(resilience.ClassPermanent)
				return
			}
			require.Equal(t, "COMMITTED", b.ends(orders.StatusConfirmed, "").Reservation)
		})
	}
}

func TestLastItemIsSoldOnce(t *testing.T) {
	b := newBench(t)
	for _, key := range []string{"a", "b", "c"} {
		b.submit(func(o *orders.Order) {
			o.IdempotencyKey, o.Lines = key, []event.Line{{SKU: "last", Name: "Last", Quantity: 1, UnitPriceCents: 100}}
		})
	}
	b.run()
	confirmed := 0
	account := b.account()
	for _, o := range account.Orders {
		if o.Status == orders.StatusConfirmed {
			confirmed++
		}
	}
	require.Equal(t, 1, confirmed)
	require.Zero(t, account.Pending)
}

func TestPoisonMessageIsADeadLetter(t *testing.T) {
	b := newBench(t)
	types := map[string]string{
		"orders.saga": event.TypeStockReserved, "inventory.orders": event.TypeOrderCreated,
		"payments.saga": event.TypeStockReserved, "notifications.mail": event.TypeOrderCancelled,
	}
	for _, role := range b.roles {
		for _, body := range []string{`{"tenant":"alpine"}`, `{"orderId":7}`, `not JSON`, `null`} {
			err := b.handle(delivery{role: role, msg: message.Message{ID: "m", Type: types[role.Queue], Payload: []byte(body)}})
			var malformed *consumer.MalformedError
			require.ErrorAs(t, err, &malformed, "%s: %s", role.Queue, body)
		}
	}
	err := b.handle(delivery{role: b.roles[0], msg: message.Message{ID: "m", Type: event.TypeStockReserved, Payload: []byte(`{"orderId":"nobody","tenant":"x"}`)}})
	require.Equal(t, resilience.ClassPermanent, resilience.Classify(err), "an order that nobody placed")
}

// An event about another tenant's order changes nothing, whoever sent it: neither the order, its stock nor its money.
func TestEventsOfAnotherTenantChangeNothing(t *testing.T) {
	for name, paid := range map[string]bool{"paid": true, "under way": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			id := b.submit()
			if paid {
				b.run()
			} else {
				b.run(holding("payments.saga", event.TypeChargeRequested))
				b.waiting = nil
			}
			before := b.account()
			foreign := event.Ref{OrderID: id, Tenant: "bazaar"}
			for eventType, payload := range map[string]any{
				event.TypeStockReserved: event.StockReserved{Ref: foreign}, event.TypeStockRejected: event.StockRejected{Ref: foreign, Reason: "R"},
				event.TypeStockReleased:    event.StockReleased{Ref: foreign, Reason: event.ReasonReservationExpired},
				event.TypePaymentConfirmed: event.PaymentConfirmed{Ref: foreign, ChargeID: "ch"}, event.TypePaymentRejected: event.PaymentRejected{Ref: foreign, Reason: "R"},
				event.TypePaymentRefunded: event.PaymentRefunded{Ref: foreign, RefundID: "re"}, event.TypeChargeRequested: event.ChargeRequested{Ref: foreign},
				event.TypeOrderCancelled: event.OrderCancelled{Ref: foreign, Reason: "R"}, event.TypeStockExpired: event.StockExpired{Ref: foreign, Reason: "R"},
				event.TypeOrderConfirmed: event.OrderConfirmed{Ref: foreign}, event.TypeRefundRequested: event.RefundRequested{Ref: foreign, Reason: "R"},
			} {
				m, err := event.New(eventType, id, payload)
				require.NoError(t, err)
				for _, role := range b.roles {
					queue, _ := shop.Topology().Find(role.Queue)
					if role.Queue == "notifications.mail" || !slices.Contains(queue.Bindings, eventType) {
						continue
					}
					if err := b.handle(delivery{role: role, msg: m}); err != nil {
						require.Equal(t, resilience.ClassPermanent, resilience.Classify(err), "%s to %s: %v", eventType, role.Queue, err)
					}
				}
			}
			b.collect()
			require.Empty(t, b.waiting)
			require.Equal(t, before, b.account())
			require.Empty(t, b.simulator.Ledger().Refunds)
			require.Len(t, b.simulator.Ledger().Charges, before.Orders[0].Charges)
		})
	}
}

func TestFailingMailHoldsNobodyUp(t *testing.T) {
	b := newBench(t)
	b.submit(func(o *orders.Order) { o.Customer.Email = "gone@bounce.example" })
	b.run()
	require.Equal(t, "notifications.mail", b.failedWith(resilience.ClassPermanent).role.Queue)
	require.Zero(t, b.ends(orders.StatusConfirmed, "").Mails)
}
