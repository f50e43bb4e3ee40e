package outbox_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

// exampleDatabase stands in for your own database, migrated by `surefoot migrate up`.
func exampleDatabase() (testkit.DB, func()) {
	tb, done := testkit.Example()
	return testkit.Database(tb), done
}

// The business row and its event are one transaction: both are there, or neither.
func Example() {
	db, done := exampleDatabase()
	defer done()
	ctx := context.Background()
	// For the default schema, outbox.Enqueue(ctx, tx, messages...) is all there is.
	box, err := outbox.New(outbox.Options{Schema: db.Schema, Source: "shop"})
	if err != nil {
		panic(err)
	}

	err = pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
		// INSERT INTO orders ... through tx, and in the same transaction:
		_, err := box.Enqueue(ctx, tx, message.Message{
			Type:    "order.created",
			Key:     "42", // events of one order keep their order
			Payload: []byte(`{"orderId": "42", "total": 10.00}`),
		})
		return err
	})
	fmt.Println("committed:", err == nil)

	err = pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
		_, _ = box.Enqueue(ctx, tx, message.Message{Type: "order.created", Key: "43"})
		return errors.New("out of stock") // rolls back the order and its event
	})
	fmt.Println("rolled back:", err)

	var pending int
	_ = db.Pool.QueryRow(ctx, `SELECT count(*) FROM `+db.Schema+`.outbox`).Scan(&pending)
	fmt.Println("pending:", pending)
	// Output:
	// committed: true
	// rolled back: out of stock
	// pending: 1
}

// A job that runs again enqueues nothing twice, when its messages have ids of their own.
func ExampleOptions_once() {
	db, done := exampleDatabase()
	defer done()
	ctx := context.Background()
	box, _ := outbox.New(outbox.Options{Schema: db.Schema, Once: true})

	for range 2 {
		err := pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
			written, err := box.Enqueue(ctx, tx,
				message.Message{ID: "invoice-2026-01-a", Type: "invoice.due"},
				message.Message{ID: "invoice-2026-01-b", Type: "invoice.due"})
			fmt.Println("written:", written)
			return err
		})
		if err != nil {
			panic(err)
		}
	}
	// Output:
	// written: 2
	// written: 0
}

// Writers that share no row lock keep the order of a key with LockKeys: a second transaction waits in Enqueue until
// the first has committed. Enqueue everything in one call; several calls can deadlock with each other.
func ExampleOptions_lockKeys() {
	db, done := exampleDatabase()
	defer done()
	ctx := context.Background()
	box, _ := outbox.New(outbox.Options{Schema: db.Schema, LockKeys: true})

	err := pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
		_, err := box.Enqueue(ctx, tx,
			message.Message{Type: "account.debited", Key: "account-1"},
			message.Message{Type: "account.credited", Key: "account-2"})
		return err
	})
	fmt.Println(err)
	// Output:
	// <nil>
}

// What the broker would choke on is refused before anything is written, with an error that says what to mend.
func ExampleOutbox_Enqueue_invalid() {
	db, done := exampleDatabase()
	defer done()
	ctx := context.Background()
	box, _ := outbox.New(outbox.Options{Schema: db.Schema})
	tx, _ := db.Pool.Begin(ctx)
	defer tx.Rollback(ctx)

	_, err := box.Enqueue(ctx, tx, message.Message{ID: "1", Type: "a", Headers: message.Headers{"x-attempts": 3}})
	var invalid *message.InvalidError
	fmt.Println(errors.As(err, &invalid), invalid.Field)
	fmt.Println(err)
	// Output:
	// true Headers
	// invalid message (id "1", type "a"): Headers contain "x-attempts", which is written by Surefoot or the broker; use another name
}

// Callers without Go use the SQL function, here as any driver would.
func Example_sql() {
	db, done := exampleDatabase()
	defer done()
	var id string
	err := db.Pool.QueryRow(context.Background(), `
		SELECT `+db.Schema+`.enqueue('order.created', convert_to('{"orderId": "42"}', 'UTF8'),
		                             key => '42', message_id => 'order-42-created', headers => '{"x-tenant": "a"}')`).Scan(&id)
	fmt.Println(id, err)
	// Output:
	// order-42-created <nil>
}
