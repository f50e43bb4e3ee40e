package rabbit_test

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

type unsupported struct{}

// Each of these would end the channel or the connection, with all that is in flight. All are refused, and nothing else suffers.
func TestRefusalsHurtNobody(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	q := queue(t, conn, quorum())
	p := publisher(t, conn, rabbit.PublisherOptions{MaxMessageBytes: 1 << 20})
	long := strings.Repeat("x", 256)
	nested := amqp.Table{}
	for range 40 {
		nested = amqp.Table{"t": nested}
	}
	var list any = "end"
	for range 40 {
		list = []any{list}
	}
	cases := map[string]struct {
		exchange, key, field string
		msg                  amqp.Publishing
	}{
		"exchange":         {exchange: long, field: "exchange"},
		"routing key":      {key: long, field: "routing key"},
		"message id":       {msg: amqp.Publishing{MessageId: long}, field: "message id"},
		"type":             {msg: amqp.Publishing{Type: long}, field: "type"},
		"content type":     {msg: amqp.Publishing{ContentType: long}, field: "content type"},
		"content encoding": {msg: amqp.Publishing{ContentEncoding: long}, field: "content encoding"},
		"correlation id":   {msg: amqp.Publishing{CorrelationId: long}, field: "correlation id"},
		"reply-to":         {msg: amqp.Publishing{ReplyTo: long}, field: "reply-to"},
		"app id":           {msg: amqp.Publishing{AppId: long}, field: "app id"},
		"another user":     {msg: amqp.Publishing{UserId: "somebody"}, field: "user id"},
		"expiration":       {msg: amqp.Publishing{Expiration: "soon"}, field: "expiration"},
		"expiration < 0":   {msg: amqp.Publishing{Expiration: "-1"}, field: "expiration"},
		"body":             {msg: amqp.Publishing{Body: make([]byte, 1<<20+1)}, field: "body"},
		"header name":      {msg: amqp.Publishing{Headers: amqp.Table{long: 1}}, field: "a header's name"},
		"uint":             {msg: amqp.Publishing{Headers: amqp.Table{"n": uint(1)}}, field: `header "n"`},
		"uint64":           {msg: amqp.Publishing{Headers: amqp.Table{"n": uint64(1)}}, field: `header "n"`},
		"struct":           {msg: amqp.Publishing{Headers: amqp.Table{"a": amqp.Table{"b": unsupported{}}}}, field: `header "a.b"`},
		"in an array":      {msg: amqp.Publishing{Headers: amqp.Table{"a": []any{1, []string{"x"}}}}, field: `header "a"`},
		"cut off":          {msg: amqp.Publishing{Headers: amqp.Table{"n": math.MaxInt32 + 1}}, field: `header "n"`},
		"too many headers": {msg: amqp.Publishing{Headers: many(8177, "")}, field: "headers"},
		"too long a list":  {msg: amqp.Publishing{Headers: amqp.Table{"a": make([]any, 8193)}}, field: `header "a"`},
		"too wide a table": {msg: amqp.Publishing{Headers: amqp.Table{"a": many(8193, "")}}, field: `header "a"`},
		"not a number":     {msg: amqp.Publishing{Headers: amqp.Table{"a": []any{math.NaN()}}}, field: `header "a"`},
		"infinite":         {msg: amqp.Publishing{Headers: amqp.Table{"f": float32(math.Inf(1))}}, field: `header "f"`},
		"deep tables":      {msg: amqp.Publishing{Headers: nested}, field: "header"},
		"deep arrays":      {msg: amqp.Publishing{Headers: amqp.Table{"a": list}}, field: "header"},
		"one frame":        {msg: amqp.Publishing{Headers: amqp.Table{"s": strings.Repeat("s", 131072)}}, field: "headers"},
		"many headers":     {msg: amqp.Publishing{Headers: many(5000, strings.Repeat("s", 30))}, field: "headers"},
		"CC":               {msg: amqp.Publishing{Headers: amqp.Table{"CC": "x"}}, field: `header "CC"`},
		"BCC":              {msg: amqp.Publishing{Headers: amqp.Table{"BCC": []any{1}}}, field: `header "BCC"`},
	}
	n := 0
	for name, c := range cases {
		require.NoError(t, p.Publish(t.Context(), "", q, amqp.Publishing{MessageId: name}, name))
		n++
		err := p.Publish(t.Context(), c.exchange, c.key, c.msg, "refused "+name)
		var refused *rabbit.RefusedError
		require.ErrorAs(t, err, &refused, name)
		require.True(t, rabbit.IsRefused(err))
		require.Contains(t, refused.Field, c.field, name)
		require.ErrorAs(t, p.TryPublish(c.exchange, c.key, c.msg, name), &refused, name)
	}
	for token, r := range collect(t, p, n) {
		require.Equal(t, rabbit.Confirmed, r.Outcome, token)
	}
	require.NoError(t, p.Close(t.Context()))
}

func many(n int, value string) amqp.Table {
	table := amqp.Table{}
	for i := range n {
		table[strconv.Itoa(i)] = value
	}
	return table
}

// Everything the broker takes passes, up to the frame's edge.
func TestWhatFitsIsSent(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	q := queue(t, conn, quorum())
	p := publisher(t, conn, rabbit.PublisherOptions{})
	long := strings.Repeat("x", 255)
	every := amqp.Table{
		"nil": nil, "bool": true, "byte": byte(1), "int8": int8(1), "int16": int16(1), "uint16": uint16(1), "int32": int32(1), "uint32": uint32(1),
		"int": 1, "int64": int64(1), "float32": float32(1), "float64": 1.5, "string": "s", "bytes": []byte("b"), "time": time.Now(),
		"decimal": amqp.Decimal{Scale: 2, Value: 314}, "table": amqp.Table{"a": []any{"x", 1, amqp.Table{}}}, long: "x", "CC": []any{q},
	}
	for _, msg := range []amqp.Publishing{
		{Headers: every, MessageId: long, Type: long, AppId: long, CorrelationId: long, ContentType: long, ContentEncoding: long, ReplyTo: long, UserId: conn.User(), Expiration: "86400000"},
		{Headers: amqp.Table{"s": strings.Repeat("s", 131072-200)}},
		{Body: make([]byte, 1<<20)},
	} {
		require.NoError(t, p.PublishConfirmed(t.Context(), "", q, msg))
	}
	require.NoError(t, p.Close(t.Context()))
}
