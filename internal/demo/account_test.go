package demo

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/sample"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
)

// ended is a shop's account in which every sample order ended as it should, with the orders themselves.
func ended() (submitted map[string]orders.Order, books *shop.Account) {
	submitted, books = map[string]orders.Order{}, &shop.Account{}
	for _, o := range sample.Orders() {
		submitted[o.ID()] = o
		status, reason := sample.Expected(o)
		books.Orders = append(books.Orders, shop.OrderAccount{ID: o.ID(), Status: status, Reason: reason})
	}
	return submitted, books
}

func TestEveryOrderMustBeAccountedFor(t *testing.T) {
	t.Parallel()
	first := sample.Orders()[0].ID()
	for want, spoil := range map[string]func(map[string]orders.Order, *shop.Account){
		"":                                  func(map[string]orders.Order, *shop.Account) {},
		"submitted, and nobody knows of it": func(_ map[string]orders.Order, b *shop.Account) { b.Orders = b.Orders[1:] },
		"never submitted":                   func(s map[string]orders.Order, _ *shop.Account) { delete(s, first) },
		"but should be CONFIRMED":           func(_ map[string]orders.Order, b *shop.Account) { b.Orders[0].Status = orders.StatusCancelled },
		"1 orders have not come":            func(_ map[string]orders.Order, b *shop.Account) { b.Pending = 1 },
		"stock leaked":                      func(_ map[string]orders.Order, b *shop.Account) { b.Violations = []string{"stock leaked"} },
		"there were no orders":              func(s map[string]orders.Order, b *shop.Account) { clear(s); b.Orders = nil },
	} {
		submitted, books := ended()
		spoil(submitted, books)
		a := &Account{}
		a.addOrders(submitted, books)
		requireOne(t, want, a.Violations)
	}
}

// whole are books in which one event went through all, one is dead, and nothing is left.
func whole() *books {
	return &books{
		enqueued:  map[string]string{"a": event.TypeStockReserved, "b": event.TypeOrderCreated},
		published: map[string]int{"a": 2, "b": 1},
		handled:   map[string]map[string]bool{"orders.saga": {"a": true}, "payments.saga": {"a": true}},
		dead:      map[string]map[string]bool{"inventory.orders": {"b": true}},
		onWay:     map[string]int{},
	}
}

func TestEveryEventMustBeAccountedFor(t *testing.T) {
	t.Parallel()
	for want, spoil := range map[string]func(*books){
		"":                              func(*books) {},
		"never published":               func(b *books) { delete(b.published, "a") },
		"published, but never enqueued": func(b *books) { b.published["stray"] = 1 },
		"is lost: due in payments.saga": func(b *books) { delete(b.handled["payments.saga"], "a") },
		"is lost: due in inventory":     func(b *books) { delete(b.dead["inventory.orders"], "b") },
		"although it was handled":       func(b *books) { b.dead["orders.saga"] = map[string]bool{"a": true} },
		"is handled in orders.saga, where it was never due": func(b *books) { b.handled["orders.saga"]["b"] = true },
		"is dead in notifications.mail, where it was never": func(b *books) { b.dead["notifications.mail"] = map[string]bool{"a": true} },
		"2 rows are still in the outbox":                    func(b *books) { b.waiting = 2 },
		"3 messages are still in orders.saga.retry":         func(b *books) { b.onWay["orders.saga.retry"] = 3 },
	} {
		b, a := whole(), &Account{}
		spoil(b)
		a.addEvents(b, spec())
		a.addQueues(b, spec())
		requireOne(t, want, a.Violations)
	}
}

func TestAccountCountsCopiesAndDeliveries(t *testing.T) {
	t.Parallel()
	a := &Account{}
	a.addEvents(whole(), spec())
	require.Equal(t, []EventLine{
		{Type: event.TypeOrderCreated, Enqueued: 1, Published: 1, Due: 1, Dead: 1},
		{Type: event.TypeStockReserved, Enqueued: 1, Published: 1, Again: 1, Due: 2, Handled: 2},
	}, a.Events)
}

func TestViolationsAreBounded(t *testing.T) {
	t.Parallel()
	a := &Account{}
	for n := range 3 * maxViolations {
		a.violated("%d", n)
	}
	require.Len(t, a.Violations, maxViolations+1)
	require.Equal(t, "and more", a.Violations[maxViolations])
}

// A run that shows nothing must not pass as one that balances.
func TestStoryMustHaveHappened(t *testing.T) {
	t.Parallel()
	good := func() (*Account, *run, *books) {
		r := &run{outage: map[string]bool{"x": true}, malformed: "b"}
		return &Account{Queues: []QueueLine{{Retried: 1, Redriven: 2}}}, r, whole()
	}
	a, r, b := good()
	a.checkStory(r, b)
	require.Empty(t, a.Violations)
	for want, spoil := range map[string]func(*Account, *run, *books){
		"is not a dead letter": func(_ *Account, _ *run, b *books) {
			maps.DeleteFunc(b.dead, func(string, map[string]bool) bool { return true })
		},
		"were redriven instead of 2":    func(a *Account, _ *run, _ *books) { a.Queues[0].Redriven = 1 },
		"nothing was retried, although": func(a *Account, _ *run, _ *books) { a.Queues[0].Retried = 0 },
	} {
		a, r, b := good()
		spoil(a, r, b)
		a.checkStory(r, b)
		requireOne(t, want, a.Violations)
	}
}

func requireOne(t *testing.T, want string, violations []string) {
	t.Helper()
	if want == "" {
		require.Empty(t, violations)
		return
	}
	require.NotEmpty(t, violations, want)
	require.Contains(t, fmt.Sprint(violations), want)
}
