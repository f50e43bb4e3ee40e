package message_test

import (
	"math"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/message"
)

// delivered is the publishing as a consumer receives it.
func delivered(p amqp.Publishing, exchange, routingKey string) *amqp.Delivery {
	return &amqp.Delivery{
		Headers: p.Headers, ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, DeliveryMode: p.DeliveryMode,
		Priority: p.Priority, CorrelationId: p.CorrelationId, ReplyTo: p.ReplyTo, Expiration: p.Expiration, MessageId: p.MessageId,
		Timestamp: p.Timestamp, Type: p.Type, UserId: p.UserId, AppId: p.AppId, Body: p.Body,
		Exchange: exchange, RoutingKey: routingKey,
	}
}

// validText draws a text that fits into n bytes and has no NUL.
func validText(n int) *rapid.Generator[string] {
	return rapid.StringOfN(rapid.Rune().Filter(func(r rune) bool { return r != 0 }), 0, -1, n)
}

func validMessage() *rapid.Generator[message.Message] {
	return rapid.Custom(func(t *rapid.T) message.Message {
		text := validText(255)
		typ := text.Filter(func(s string) bool { return s != "" }).Draw(t, "type")
		return message.Message{
			ID: text.Draw(t, "id"), Type: typ, Key: text.Draw(t, "key"),
			Exchange: text.Draw(t, "exchange"), RoutingKey: typ,
			OccurredAt: time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "seconds"), 0).UTC(),
			Source:     text.Draw(t, "source"), CorrelationID: text.Draw(t, "correlation"),
			CausationID: validText(512).Draw(t, "causation"), RequestID: validText(512).Draw(t, "request"),
			ContentType: validText(255).Filter(func(s string) bool { return s != "" }).Draw(t, "content type"),
			Payload:     rapid.SliceOf(rapid.Byte()).Draw(t, "payload"),
			Headers:     userHeaders(3).Draw(t, "headers"),
			TraceParent: validText(512).Draw(t, "parent"), TraceState: validText(512).Draw(t, "state"),
		}
	})
}

// userHeaders draws headers in the types that they have after a trip: int64, float64, amqp.Table.
func userHeaders(depth int) *rapid.Generator[message.Headers] {
	return rapid.Custom(func(t *rapid.T) message.Headers {
		fields := rapid.MapOfN(headerName(), headerValue(depth), 1, 5).Draw(t, "fields")
		return message.Headers(fields)
	})
}

func headerName() *rapid.Generator[string] {
	return rapid.OneOf(rapid.SampledFrom([]string{"$bytes", "$time", "$float", "$map", "x-tenant", "cc"}), validText(255)).
		Filter(func(s string) bool { return s != "" && !message.Reserved(s) })
}

func headerValue(depth int) *rapid.Generator[any] {
	values := []*rapid.Generator[any]{
		rapid.Just(any(nil)), rapid.Bool().AsAny(), rapid.Int64().AsAny(), rapid.Float64().AsAny(), validText(300).AsAny(),
		rapid.SliceOfN(rapid.Byte(), 0, 100).AsAny(), rapid.Just(any(1.0)), rapid.Just(any(math.Copysign(0, -1))), rapid.Just(any(1e21)),
		rapid.Map(rapid.Int64Range(0, 4e9), func(s int64) any { return time.Unix(s, 0).UTC() }),
	}
	if depth > 0 {
		field := rapid.Deferred(func() *rapid.Generator[any] { return headerValue(depth - 1) })
		values = append(values, rapid.SliceOfN(field, 0, 4).AsAny(),
			rapid.Map(rapid.MapOfN(headerName(), field, 0, 4), func(m map[string]any) any { return amqp.Table(m) }))
	}
	return rapid.OneOf(values...)
}

func TestMessageSurvivesTheTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := validMessage().Draw(t, "message")
		if m.Validate(0) != nil {
			t.Skip("drawn headers are too large")
		}
		p, err := m.Publishing()
		require.NoError(t, err)
		require.NoError(t, p.Headers.Validate())
		require.Equal(t, amqp.Persistent, p.DeliveryMode)
		d := delivered(p, m.Exchange, m.Route())
		require.Equal(t, m, message.FromDelivery(d))
		// A retry keeps everything, and the route of its first publish.
		again := message.Republishing(d)
		message.SetOrigin(again.Headers, message.Origin{Exchange: m.Exchange, RoutingKey: m.Route(), Queue: "q"})
		again.Headers[message.HeaderAttempts] = int64(2)
		m.Attempts = 2
		require.Equal(t, m, message.FromDelivery(delivered(again, "shop.events.retry", "q")))
	})
}

func TestPublishingDefaultsAndRefusals(t *testing.T) {
	t.Parallel()
	p, err := message.Message{Type: "a"}.Publishing()
	require.NoError(t, err)
	require.Equal(t, "application/json", p.ContentType)
	require.NotNil(t, p.Headers)
	require.Empty(t, p.Headers)
	_, err = message.Message{Type: "a", Headers: message.Headers{"x": make(chan int)}}.Publishing()
	var invalid *message.InvalidError
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, "Headers", invalid.Field)
}

func TestHeadersAreWidened(t *testing.T) {
	t.Parallel()
	p, err := message.Message{Type: "a", Headers: message.Headers{
		"int": 1 << 40, "uint32": uint32(7), "float32": float32(0.5), "time": time.Unix(5, 999).In(time.FixedZone("x", 60)),
		"list": []any{int8(1), map[string]any{"a": uint16(2)}}, "map": message.Headers{"b": 3},
	}}.Publishing()
	require.NoError(t, err)
	require.Equal(t, amqp.Table{
		"int": int64(1 << 40), "uint32": int64(7), "float32": 0.5, "time": time.Unix(5, 0).UTC(),
		"list": []any{int64(1), amqp.Table{"a": int64(2)}}, "map": amqp.Table{"b": int64(3)},
	}, p.Headers)
}

func TestRepublishingDropsWhatTheBrokerOwns(t *testing.T) {
	t.Parallel()
	d := &amqp.Delivery{
		Headers:    amqp.Table{"x-death": []any{amqp.Table{"queue": "q"}}, "CC": []any{"a"}, "x-delivery-count": int64(3), "x-tenant": "a"},
		Expiration: "1000", UserId: "guest", DeliveryMode: amqp.Transient, ContentEncoding: "gzip", Priority: 4, ReplyTo: "r",
		MessageId: "1", Body: []byte("body"),
	}
	require.Equal(t, amqp.Publishing{
		Headers: amqp.Table{"x-tenant": "a"}, DeliveryMode: amqp.Persistent, ContentEncoding: "gzip", Priority: 4, ReplyTo: "r",
		MessageId: "1", Body: []byte("body"),
	}, message.Republishing(d))
	require.Contains(t, d.Headers, "x-death", "the delivery stays as it is")
	require.NotNil(t, message.Republishing(&amqp.Delivery{}).Headers)
}

func TestTheFirstOriginStays(t *testing.T) {
	t.Parallel()
	h := amqp.Table{}
	first := message.Origin{Exchange: "x", RoutingKey: "r", Queue: "q"}
	message.SetOrigin(h, first)
	message.SetOrigin(h, message.Origin{Exchange: "x.retry", RoutingKey: "q", Queue: "q"})
	require.Equal(t, first, message.OriginOf(h))
	require.Zero(t, message.OriginOf(nil))
}

func TestClearFailureKeepsTheHistory(t *testing.T) {
	t.Parallel()
	h := amqp.Table{message.HeaderAttempts: int64(5), message.HeaderNotBefore: int64(1), "x-tenant": "a"}
	message.Failure{Class: "permanent", Message: "no", Stack: "stack"}.Write(h, 5)
	message.ClearFailure(h)
	require.Zero(t, message.Attempts(h))
	require.NotContains(t, h, message.HeaderNotBefore)
	f := message.FailureOf(h)
	require.Empty(t, f.Stack)
	require.Equal(t, "no", f.Message)
	require.Len(t, f.Log, 1)
	require.Equal(t, "a", h["x-tenant"])
}
