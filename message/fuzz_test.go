package message_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/message"
)

// FuzzHeadersJSON: what is read can be sent, and is written the same way from then on.
func FuzzHeadersJSON(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `null`, `{"a":1}`, `{"a":1.0,"b":1e21,"c":-0.0}`, `{"a":{"$bytes":"AA=="}}`, `{"a":{"$map":{"$map":"x"}}}`,
		`{"a":{"$time":"2026-01-02T03:04:05Z"}}`, `{"a":{"$float":"NaN"}}`, `{"a":[[[{}]]]}`, `{"x-death":1}`, `{"a":"\ud800"}`, `{}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		headers, err := message.ParseHeadersJSON(data)
		if err != nil {
			return
		}
		p, err := message.Message{Type: "t", Headers: headers}.Publishing()
		require.NoError(t, err)
		require.NoError(t, p.Headers.Validate())
		text, err := message.HeadersJSON(headers)
		require.NoError(t, err)
		back, err := message.ParseHeadersJSON(text)
		require.NoError(t, err, "%s", text)
		again, err := message.HeadersJSON(back)
		require.NoError(t, err)
		require.Equal(t, string(text), string(again))
	})
}

// FuzzFromDelivery: a delivery of any producer becomes a message and can be republished, with bounded
// attempts and without what the broker owns.
func FuzzFromDelivery(f *testing.F) {
	f.Add("1", "order.created", "x-attempts", "4", int64(3), []byte(`{}`))
	f.Add("", "", "x-death", "\xff\x00", int64(-1), []byte(nil))
	f.Add("i", "t", "sf-origin-queue", "q", int64(1)<<40, []byte("x"))
	f.Add("i", "t", "sf-attempt-log", "log", int64(0), []byte("x"))
	f.Fuzz(func(t *testing.T, id, typ, name, text string, number int64, body []byte) {
		d := &amqp.Delivery{
			MessageId: id, Type: typ, Body: body, Exchange: "x", RoutingKey: "r",
			Headers: amqp.Table{name: text, "n" + name: number, name + "l": []any{amqp.Table{name: number}}, "x-attempts": text},
		}
		m := message.FromDelivery(d)
		require.Equal(t, id, m.ID)
		require.Equal(t, body, m.Payload)
		require.GreaterOrEqual(t, m.Attempts, 0)
		for header := range m.Headers {
			require.False(t, message.Reserved(header))
		}
		p := message.Republishing(d)
		message.SetOrigin(p.Headers, message.Origin{Exchange: d.Exchange, RoutingKey: d.RoutingKey, Queue: text})
		for header := range p.Headers {
			require.False(t, message.BrokerOwned(header))
		}
		require.NoError(t, message.Message{Type: "t"}.Inherit(m).Validate(0))
	})
}

// FuzzFailure: any error of any handler leaves headers within the limit, in valid UTF-8.
func FuzzFailure(f *testing.F) {
	f.Add("transient", "*errors.errorString", "order 42 failed", "goroutine 1", 1, 0)
	f.Add("\xff", "\x00", strings.Repeat("ü", 600), strings.Repeat("s", 9000), -1, 70_000)
	f.Add("", "", "", "", 0, 64<<10)
	f.Fuzz(func(t *testing.T, class, typ, text, stack string, number, user int) {
		h := amqp.Table{"user": strings.Repeat("u", min(max(user, 0), 1<<17))}
		f := message.Failure{Class: class, Type: typ, Message: text, Stack: stack, Host: class, Version: typ}
		for range 3 {
			f.Write(h, number)
			require.LessOrEqual(t, message.TableSize(h), message.MaxHeaders)
		}
		got := message.FailureOf(h)
		for _, s := range []string{got.Class, got.Type, got.Message, got.Stack, got.Host, got.Version, got.Fingerprint} {
			require.True(t, utf8.ValidString(s))
		}
		require.Equal(t, message.Fingerprint(class, typ, text), got.Fingerprint)
	})
}
