package consumer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/resilience"
)

func TestTransient503VisitsTheRetryQueueTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	seen := make(chan message.Message, 10)
	w.start(w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		seen <- m
		if m.Attempts < 2 {
			return &resilience.StatusError{Status: 503}
		}
		return w.effect(ctx, tx, m)
	}))
	w.send(amqp.Publishing{
		MessageId: "m1", Type: "payment.requested", CorrelationId: "c1", Expiration: "60000",
		Headers: amqp.Table{"tenant": "acme", "sf-key": "order-1", "x-death": []any{amqp.Table{"queue": "q", "reason": "expired", "count": int64(1)}}},
	})
	for attempts := range 3 {
		m := receive(t, seen, "a delivery")
		require.Equal(t, attempts, m.Attempts)
		require.Equal(t, "m1", m.ID)
		require.Equal(t, "order-1", m.Key)
		require.Equal(t, "c1", m.CorrelationID)
		require.Equal(t, message.Headers{"tenant": "acme"}, m.Headers)
	}
	w.awaitEffects(1)
	w.awaitEmpty("q.retry", "q.dlq")
	deferred := w.logs.find("deferred retry")
	require.Len(t, deferred, 2)
	require.Equal(t, "200ms", deferred[0]["delay"], "with its unit")
	require.Contains(t, deferred[0]["error"], "503")
}

func TestExhaustedRetriesEndInTheDeadLetterQueueWithTheWholeRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	var runs atomic.Int32
	w.start(w.options(func(context.Context, pgx.Tx, message.Message) error {
		runs.Add(1)
		return &resilience.StatusError{Status: 503}
	}))
	w.publish("m1")
	d := w.get("q.dlq")
	require.Equal(t, int32(5), runs.Load())
	require.Equal(t, "m1", d.MessageId)
	require.Equal(t, 5, message.Attempts(d.Headers))
	require.Equal(t, message.Origin{Exchange: "", RoutingKey: "q", Queue: "q"}, message.OriginOf(d.Headers))
	f := message.FailureOf(d.Headers)
	require.Equal(t, "transient", f.Class)
	require.Equal(t, "resilience.StatusError", f.Type)
	require.Contains(t, f.Message, "503")
	require.Equal(t, "testhost", f.Host)
	require.Equal(t, "test", f.Version)
	require.Len(t, f.Log, 5)
	require.True(t, f.FirstFailedAt.Before(f.LastFailedAt))
	require.NotContains(t, d.Headers, "x-death")
	w.awaitEmpty("q.retry")
	lines := w.logs.find("retries exhausted, sending to DLQ")
	require.Len(t, lines, 1)
	require.Equal(t, "m1", lines[0]["event_id"])
}

type order struct {
	OrderID string `json:"orderId"`
}

func (o order) Validate() error {
	if o.OrderID == "" {
		return errors.New("orderId is missing")
	}
	return nil
}

func TestPoisonGoesToTheDeadLetterQueueOnTheFirstTryAndDelaysNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{tier: time.Minute})
	mux := consumer.NewMux(consumer.MuxOptions{})
	consumer.On(mux, "order.created", func(ctx context.Context, tx pgx.Tx, m message.Message, _ order) error { return w.effect(ctx, tx, m) })
	mux.Handle("panics", func(context.Context, pgx.Tx, message.Message) error { panic("boom") })
	mux.Handle("exits", func(context.Context, pgx.Tx, message.Message) error { return consumer.Permanent(errors.New("never")) })
	w.start(w.options(mux.Serve))
	w.publish("good1")
	w.send(amqp.Publishing{MessageId: "no-order", Type: "order.created", Body: []byte(`{}`)})
	w.send(amqp.Publishing{MessageId: "trailing", Type: "order.created", Body: []byte(`{"orderId":"1"} x`)})
	w.send(amqp.Publishing{MessageId: "unknown", Type: "order.vanished"})
	w.send(amqp.Publishing{MessageId: "panics", Type: "panics"})
	w.send(amqp.Publishing{MessageId: "permanent", Type: "exits"})
	w.send(amqp.Publishing{Type: "order.created", Body: []byte(`{"orderId":"1"}`)})
	w.publish("good2")
	w.awaitEffects(2)
	testkit.Eventually(t, soon, "the dead letters", func() bool { return w.depth("q.dlq") == 6 })
	w.awaitEmpty("q.retry")
	require.ElementsMatch(t, []string{"good1", "good2"}, w.effects())
	classes := map[string]string{}
	for range 6 {
		d := w.get("q.dlq")
		f := message.FailureOf(d.Headers)
		classes[d.MessageId] = f.Class
		require.Equal(t, 1, message.Attempts(d.Headers), d.MessageId)
		if d.MessageId == "panics" {
			require.Contains(t, f.Stack, "retry_test.go")
			require.Contains(t, f.Message, "boom")
		}
	}
	require.Equal(t, map[string]string{
		"no-order": "malformed", "trailing": "malformed", "unknown": "unknown-type", "panics": "panic", "permanent": "permanent", "": "no-id",
	}, classes)
	require.Len(t, w.logs.find("poison message, sending to DLQ"), 6)
}

func TestDeadlockIsRetriedInTheProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	var runs atomic.Int32
	w.start(w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if err := w.effect(ctx, tx, m); err != nil {
			return err
		}
		if runs.Add(1) < 3 {
			return &pgconn.PgError{Code: "40P01"}
		}
		return nil
	}))
	w.publish("m1")
	w.awaitEffects(1)
	w.awaitEmpty("q.retry", "q.dlq")
	require.Equal(t, []string{"m1"}, w.effects(), "the failed transactions left nothing")
	lines := w.logs.find("database retry")
	require.Len(t, lines, 2)
	require.Equal(t, "40P01", lines[0]["sqlstate"])
	require.Empty(t, w.logs.find("deferred retry"))
}

func TestDeadlocksThatDoNotEndGoToTheRetryTier(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	var runs atomic.Int32
	w.start(w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if runs.Add(1) <= 3 {
			return &pgconn.PgError{Code: "40001"}
		}
		require.Equal(t, 1, m.Attempts)
		return w.effect(ctx, tx, m)
	}))
	w.publish("m1")
	w.awaitEffects(1)
	require.Len(t, w.logs.find("deferred retry"), 1)
}

func TestRetryAfterBeyondTheLadderComesBackNotBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	seen := make(chan time.Time, 10)
	w.start(w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		seen <- time.Now()
		if m.Attempts == 0 {
			return consumer.RetryAfter(errors.New("later"), 900*time.Millisecond)
		}
		require.Equal(t, 1, m.Attempts, "deliveries that come too early are not counted")
		return w.effect(ctx, tx, m)
	}))
	w.publish("m1")
	first := receive(t, seen, "the first run")
	second := receive(t, seen, "the second run")
	require.GreaterOrEqual(t, second.Sub(first), 890*time.Millisecond)
	w.awaitEmpty("q.retry", "q.dlq")
}

func TestHandlerEffectsAndEventsAreOneTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.start(w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if err := w.effect(ctx, tx, m); err != nil {
			return err
		}
		if err := outbox.Enqueue(ctx, tx, message.Message{Type: "order.handled"}); err != nil { // into the consumer's schema
			return err
		}
		if m.Attempts == 0 {
			return errors.New("not yet")
		}
		return nil
	}))
	w.publish("m1")
	w.awaitEffects(1)
	w.awaitEmpty("q.retry")
	var events int
	var cause string
	require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT count(*), max(causation_id) FROM `+w.db.Schema+`.outbox`).Scan(&events, &cause))
	require.Equal(t, 1, events)
	require.Equal(t, "m1", cause)
	require.Equal(t, []string{"m1"}, w.effects())
}
