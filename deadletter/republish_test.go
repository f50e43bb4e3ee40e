package deadletter_test

import (
	"fmt"
	"maps"
	"math"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/message"
)

// A redrive changes nothing of a message but the headers that it must: those of the broker and of the attempts go, the three of
// the redrive come, and a letter of the broker's own gets the origin that its history names.
func TestRedriveChangesOnlyTheListedHeaders(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := drawDelivery(t)
		before := maps.Clone(d.Headers)
		now := time.Unix(rapid.Int64Range(0, 4_000_000_000).Draw(t, "now"), 0)
		p := deadletter.Republishing(&d, work, "run-1", now)
		require.Equal(t, before, d.Headers, "the letter itself is untouched")
		require.Equal(t, amqp.Publishing{
			Headers: p.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: amqp.Persistent,
			Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId, Timestamp: d.Timestamp,
			Type: d.Type, AppId: d.AppId, Body: d.Body,
		}, p)

		require.Equal(t, redriven(before, "run-1", now.UTC().Format(time.RFC3339)), p.Headers)
	})
}

// redriven are the headers of a message after a redrive.
func redriven(before amqp.Table, run string, at any) amqp.Table {
	want := amqp.Table{}
	for name, value := range before {
		if !message.BrokerOwned(name) {
			want[name] = value
		}
	}
	for _, gone := range []string{"x-attempts", "sf-not-before", "sf-error-stack"} {
		delete(want, gone)
	}
	count, _ := message.Integer(before["sf-redrive-count"])
	want["x-reprocess"], want["sf-redrive-count"], want["sf-redrive-run"] = at, max(count, 0)+1, run
	if _, dead := before["x-death"]; dead && message.Text(before, "sf-origin-queue") == "" {
		want["sf-origin-exchange"], want["sf-origin-routing-key"], want["sf-origin-queue"] = "shop.events", "order.paid", work
	}
	return want
}

// The same of any messages through a run and the broker: redrive(m) = m, but for the listed headers.
func TestARunChangesOnlyTheListedHeaders(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	drawn := map[string]amqp.Publishing{}
	var letters []amqp.Publishing
	for seed := range 150 {
		d := rapid.Custom(drawDelivery).Example(seed)
		for _, name := range []string{"", "CC", "x-death", "sf-origin-queue"} { // what routes, or another queue's, or cannot be sent
			delete(d.Headers, name)
		}
		m := amqp.Publishing{
			Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, Priority: d.Priority, CorrelationId: d.CorrelationId,
			ReplyTo: d.ReplyTo, MessageId: fmt.Sprintf("%d %s", seed, d.MessageId), Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId,
			Body: d.Body, DeliveryMode: amqp.Persistent,
		}
		drawn[m.MessageId], letters = m, append(letters, m)
	}
	s.fill(dlq, letters...)
	run, err := s.start(s.plan(func(r *deadletter.PlanRequest) { r.IncludeRepeaters = true }))
	require.NoError(t, err)
	require.Equal(t, []any{deadletter.RunDone, len(letters)}, []any{run.State, run.Moved}, run.Note)
	for _, d := range s.take(work) {
		m := drawn[d.MessageId]
		delete(d.Headers, "x-delivery-count") // the work queue's own
		got := amqp.Publishing{
			ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo,
			MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Body: d.Body, DeliveryMode: d.DeliveryMode,
		}
		at := d.Headers["x-reprocess"]
		require.NotNil(t, at)
		require.Equal(t, redriven(m.Headers, run.ID.String(), at), d.Headers, d.MessageId)
		if m.Headers = nil; len(m.Body) == 0 {
			m.Body, got.Body = nil, nil
		}
		require.Equal(t, m, got)
		delete(drawn, d.MessageId)
	}
	require.Empty(t, drawn)
}

func TestACountOfRedrivesNeverTurnsAround(t *testing.T) {
	t.Parallel()
	for before, want := range map[int64]int64{0: 1, -5: 1, math.MaxInt64 - 1: math.MaxInt64, math.MaxInt64: math.MaxInt64} {
		d := amqp.Delivery{Headers: amqp.Table{message.HeaderRedriveCount: before}}
		require.Equal(t, want, deadletter.Republishing(&d, work, "run-1", time.Now()).Headers[message.HeaderRedriveCount])
	}
}

func drawDelivery(t *rapid.T) amqp.Delivery {
	text := rapid.StringN(0, 20, 60)
	known := []string{
		"sf-key", "x-attempts", "sf-not-before", "sf-error-stack", "sf-error-class", "sf-attempt-log", "sf-redrive-count", "sf-redrive-run",
		"x-reprocess", "sf-origin-queue", "traceparent", "x-first-death-queue", "X-Delivery-Count", "x-opt-anything", "CC", "tenant",
	}
	value := rapid.OneOf(
		rapid.Just[any](nil), rapid.Map(text, func(s string) any { return s }), rapid.Map(rapid.Int64(), func(n int64) any { return n % 1000 }),
		rapid.Map(rapid.Bool(), func(b bool) any { return b }), rapid.Just[any]([]any{amqp.Table{"a": "b"}}),
	)
	h := amqp.Table(rapid.MapOf(rapid.OneOf(rapid.SampledFrom(known), text), value).Draw(t, "headers"))
	if rapid.Bool().Draw(t, "died at the broker") {
		h["x-death"] = []any{amqp.Table{
			"queue": work, "reason": "delivery_limit", "count": int64(1), "exchange": "shop.events", "routing-keys": []any{"order.paid"},
		}}
	} else {
		delete(h, "x-death")
	}
	return amqp.Delivery{
		Headers: h, ContentType: text.Draw(t, "content type"), ContentEncoding: text.Draw(t, "encoding"), Priority: rapid.Byte().Draw(t, "priority"),
		CorrelationId: text.Draw(t, "correlation"), ReplyTo: text.Draw(t, "reply to"), MessageId: text.Draw(t, "id"), Type: text.Draw(t, "type"),
		AppId: text.Draw(t, "app"), Expiration: "1000", UserId: "guest", Body: rapid.SliceOf(rapid.Byte()).Draw(t, "body"),
		Timestamp: time.Unix(rapid.Int64Range(0, 4_000_000_000).Draw(t, "timestamp"), 0),
	}
}
