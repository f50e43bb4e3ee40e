package shop_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/payments"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
)

func TestSameOrderAgainIsOneOrder(t *testing.T) {
	b := newBench(t)
	id := b.submit()
	again, err := b.shop.Submit(t.Context(), order())
	require.NoError(t, err)
	require.Equal(t, orders.Submitted{ID: id}, again)
	b.collect()
	require.Len(t, b.waiting, 1)
}

func TestKeyOfAnotherOrderIsRefused(t *testing.T) {
	b := newBench(t)
	b.submit()
	_, err := b.shop.Submit(t.Context(), order(func(o *orders.Order) { o.Lines[0].Quantity++ }))
	var reused *orders.KeyReusedError
	require.ErrorAs(t, err, &reused)
	require.ErrorContains(t, err, orders.CodeKeyReused)
	b.run()
	require.Equal(t, int64(3*1290+890), b.ends(orders.StatusConfirmed, "").NetCents, "nothing of the second was applied")
	submitted, err := b.shop.Submit(t.Context(), order(func(o *orders.Order) { o.Tenant = "bazaar" }))
	require.NoError(t, err)
	require.True(t, submitted.Created, "keys are the tenant's own")
}

func TestInvalidOrderIsRefusedWithEveryFault(t *testing.T) {
	t.Parallel()
	line := event.Line{SKU: "tea", Name: "Thé", Quantity: 1, UnitPriceCents: 1}
	for want, change := range map[string]func(*orders.Order){
		"tenant":           func(o *orders.Order) { o.Tenant = "" },
		"idempotencyKey":   func(o *orders.Order) { o.IdempotencyKey = "a b" },
		"card":             func(o *orders.Order) { o.Card = strings.Repeat("x", 65) },
		"currency":         func(o *orders.Order) { o.Currency = "eur" },
		"customer.name":    func(o *orders.Order) { o.Customer.Name = "\xff" },
		"customer.email":   func(o *orders.Order) { o.Customer.Email = "nobody" },
		"note":             func(o *orders.Order) { o.Note = "a\x00b" },
		"not 0":            func(o *orders.Order) { o.Lines = nil },
		"not 9":            func(o *orders.Order) { o.Lines = []event.Line{line, line, line, line, line, line, line, line, line} },
		"lines[0].sku":     func(o *orders.Order) { o.Lines[0].SKU = `"; DROP` },
		"lines[1].name":    func(o *orders.Order) { o.Lines[1].Name = "" },
		"quantity":         func(o *orders.Order) { o.Lines[0].Quantity = 0 },
		"unitPriceCents":   func(o *orders.Order) { o.Lines[0].UnitPriceCents = -1 },
		"cost something":   func(o *orders.Order) { o.Lines = []event.Line{{SKU: "tea", Name: "free", Quantity: 1}} },
		orders.CodeInvalid: func(o *orders.Order) { o.Note = strings.Repeat("x", orders.MaxNote+1) },
	} {
		err := order(change).Validate()
		var invalid *orders.InvalidError
		require.ErrorAs(t, err, &invalid, want)
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, order().Validate())
}

func TestTimesThatDoNotFitAreAWarning(t *testing.T) {
	t.Parallel()
	queue, _ := shop.Topology().Find(payments.Queue)
	fits := shop.Timing{RetryWindow: shop.RetryWindow(queue), PaymentLimit: shop.DefaultPaymentLimit, Hold: 15 * time.Minute}
	require.Equal(t, 4*30*time.Second+5*30*time.Second, fits.RetryWindow)
	require.NoError(t, fits.Check(), "the defaults fit")
	late := fits
	late.PaymentLimit = 16 * time.Minute
	require.ErrorContains(t, late.Check(), "sold to others before the customer is refunded")
	early := fits
	early.PaymentLimit = time.Minute
	require.ErrorContains(t, early.Check(), "about to succeed")
}
