// Package surefoottest helps to test handlers and producers: what did this transaction enqueue, and what would the
// consumer do with this message. It works on a real PostgreSQL and needs no broker.
//
//	schema := surefoottest.Schema(t, databaseURL)             // a fresh one, dropped when the test ends
//	result := surefoottest.Handle(t, surefoottest.Options{Pool: pool, Schema: schema}, handler, message)
//
// What a handler enqueues goes into that schema, as in production into the consumer's: with outbox.Enqueue, or an Outbox
// without a Schema of its own. One with another Schema writes there, and Enqueued does not show it. A producer is given
// the schema with its context:
//
//	ctx := outbox.WithSchema(t.Context(), schema)
//	placeOrder(ctx, tx)                                       // yours; it calls outbox.Enqueue(ctx, tx, ...)
//	got := surefoottest.Enqueued(t, ctx, tx)
//
// Inbox, transaction, classification of errors and the decision are the consumer's own code. Helpers fail the test
// when something is wrong with the set-up; what the handler did is in the [Result].
package surefoottest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/resilience"
)

// cleanupTimeout bounds the end of a test.
const cleanupTimeout = 30 * time.Second

// Options say where and how handlers run.
type Options struct {
	// Pool of the database. Required.
	Pool *pgxpool.Pool
	// Schema that `surefoot migrate up`, or [Schema], made. Default: "surefoot".
	Schema string
	// Queue and Name of the consumer; the inbox remembers messages by its name. Default: "surefoottest", and Queue.
	Queue, Name string
	// Retry, MaxAttempts, Timeout, AllowNoID and Classifier are those of the consumer, with its defaults.
	Retry       []consumer.Tier
	MaxAttempts int
	Timeout     time.Duration
	AllowNoID   bool
	Classifier  resilience.Classifier
}

func (o Options) consumer(h consumer.Handler) consumer.Options {
	if o.Queue == "" {
		o.Queue = "surefoottest"
	}
	return consumer.Options{
		Queue: o.Queue, Name: o.Name, Handler: h, Pool: o.Pool, Schema: o.Schema, Retry: o.Retry, MaxAttempts: o.MaxAttempts,
		Timeout: o.Timeout, AllowNoID: o.AllowNoID, Classifier: o.Classifier, Prefetch: 1,
	}
}

// Schema makes a schema with a random name in the database at url, migrates it, and drops it when the test ends.
func Schema(t testing.TB, url string) string {
	t.Helper()
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	schema := "surefoottest_" + hex.EncodeToString(random[:])
	if url == "" {
		t.Fatalf("surefoottest: the database URL is empty: is the environment variable that the test takes it from set?")
	}
	_, err := pg.Migrate(t.Context(), pg.MigrateOptions{URL: url, Schema: schema})
	if err != nil {
		_ = dropSchema(t.Context(), url, schema) // what there is of it
		t.Fatalf("surefoottest: make a schema: %v", err)
	}
	t.Cleanup(func() {
		if err := dropSchema(context.WithoutCancel(t.Context()), url, schema); err != nil {
			t.Errorf("surefoottest: drop schema %s (is a transaction still open?): %v", schema, err)
		}
	})
	return schema
}

func dropSchema(ctx context.Context, url, schema string) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	pool, err := pg.Open(ctx, pg.Options{URL: url, Name: "surefoottest"})
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+schema+" CASCADE")
	return err
}

// Enqueued returns what the transaction has enqueued so far in the schema, in order. Without one: that of ctx (see
// outbox.WithSchema), else "surefoot".
func Enqueued(t testing.TB, ctx context.Context, tx pgx.Tx, schema ...string) []message.Message { //nolint:revive // t comes first in helpers
	t.Helper()
	if len(schema) > 1 {
		t.Fatalf("surefoottest: Enqueued takes one schema")
	}
	if len(schema) == 1 {
		ctx = outbox.WithSchema(ctx, schema[0])
	}
	msgs, err := outbox.Enqueued(ctx, tx)
	if err != nil {
		t.Fatalf("surefoottest: %v", err)
	}
	return msgs
}

// Result is what became of a message.
type Result struct {
	consumer.Rehearsal
	// Enqueued is what the handler's last try enqueued, in order; it was published only if Fate is Done.
	Enqueued []message.Message
	// Ran is how often the handler ran: 0 for a duplicate, more than 1 after a deadlock or serialisation failure.
	Ran int
}

// Handle delivers a message to a handler as the consumer would, and returns its decision. What the handler wrote is
// committed when Fate is Done, and rolled back otherwise. Set m.Attempts to see what happens at a later try.
func Handle(t testing.TB, o Options, h consumer.Handler, m message.Message) Result {
	t.Helper()
	var result Result
	observed := func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		result.Ran++
		result.Enqueued = nil
		if err := h(ctx, tx, m); err != nil {
			return err
		}
		enqueued, err := outbox.Enqueued(ctx, tx)
		result.Enqueued = enqueued
		return err
	}
	rehearsal, err := consumer.Rehearse(t.Context(), o.consumer(observed), m)
	if err != nil {
		t.Fatalf("surefoottest: %v", err)
	}
	result.Rehearsal = rehearsal
	return result
}

// HandleTwice delivers a message twice, as happens when a process dies between COMMIT and acknowledgement, and fails the
// test unless the first delivery is done and the second has no effect. It returns the first result.
func HandleTwice(t testing.TB, o Options, h consumer.Handler, m message.Message) Result {
	t.Helper()
	first := Handle(t, o, h, m)
	if first.Fate != consumer.Done {
		t.Fatalf("surefoottest: the first delivery is %s (%v), not done", first.Fate, first.Err)
	}
	if second := Handle(t, o, h, m); second.Fate != consumer.Duplicate || second.Ran != 0 {
		t.Fatalf("surefoottest: the second delivery is %s and ran the handler %d times; it must be a duplicate: "+
			"does the message have an id, and do both deliveries carry the same?", second.Fate, second.Ran)
	}
	return first
}
