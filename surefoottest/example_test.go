package surefoottest_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/surefoottest"
)

// A test of a handler: what it does with a message, what it enqueues, and that a second delivery does nothing. In a
// test of yours, t is its *testing.T, and the schema is made by [surefoottest.Schema].
func ExampleHandleTwice() {
	t, done := testkit.Example()
	defer done()
	db := testkit.Database(t)

	handler := func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		// ... UPDATE stock SET reserved = reserved + 1 ... through tx
		return outbox.Enqueue(ctx, tx, message.Message{Type: "stock.reserved", Key: m.Key, Payload: m.Payload})
	}

	result := surefoottest.HandleTwice(t, surefoottest.Options{Pool: db.Pool, Schema: db.Schema}, handler,
		message.Message{ID: "1c1e", Type: "order.created", Key: "42", Payload: []byte(`{"orderId":"42"}`)})
	for _, m := range result.Enqueued {
		fmt.Println(m.Type, m.Key, string(m.Payload), "caused by", m.CausationID)
	}
	// Output:
	// stock.reserved 42 {"orderId":"42"} caused by 1c1e
}

// What happens to a message that fails: the consumer's own decision, and nothing committed.
func ExampleHandle() {
	t, done := testkit.Example()
	defer done()
	db := testkit.Database(t)
	o := surefoottest.Options{Pool: db.Pool, Schema: db.Schema, Queue: "orders.saga"}

	busy := func(context.Context, pgx.Tx, message.Message) error { return errors.New("payment provider: 503") }
	m := message.Message{ID: "1c1e", Type: "order.created"}
	first := surefoottest.Handle(t, o, busy, m)
	fmt.Println(first.Fate, first.Queue, first.Delay, first.Attempts)

	m.Attempts = 4 // four tries have failed before
	last := surefoottest.Handle(t, o, busy, m)
	fmt.Println(last.Fate, last.Queue, last.Err)

	poison := func(context.Context, pgx.Tx, message.Message) error {
		return consumer.Permanent(errors.New("orderId is missing"))
	}
	fmt.Println(surefoottest.Handle(t, o, poison, message.Message{ID: "2b7a", Type: "order.created"}).Fate)
	// Output:
	// retry orders.saga.retry 30s 1
	// dead-letter orders.saga.dlq payment provider: 503
	// dead-letter
}

// A test of a producer: what its transaction has enqueued.
func ExampleEnqueued() {
	t, done := testkit.Example()
	defer done()
	db := testkit.Database(t)
	ctx := outbox.WithSchema(context.Background(), db.Schema)

	tx, _ := db.Pool.Begin(ctx)
	defer tx.Rollback(ctx)
	_ = outbox.Enqueue(ctx, tx, message.Message{Type: "order.created", Key: "42"}) // your code

	for _, m := range surefoottest.Enqueued(t, ctx, tx) {
		fmt.Println(m.Type, m.Key)
	}
	// Output:
	// order.created 42
}
