package message_test

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/message"
)

func TestValidateNamesTheFieldAndTheReason(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 256)
	longer := strings.Repeat("x", 513)
	for name, c := range map[string]struct {
		change        func(*message.Message)
		field, reason string
	}{
		"no type":           {func(m *message.Message) { m.Type = "" }, "Type", "is empty"},
		"long id":           {func(m *message.Message) { m.ID = long }, "ID", "256 bytes"},
		"long type":         {func(m *message.Message) { m.Type = long }, "Type", "256 bytes"},
		"long key":          {func(m *message.Message) { m.Key = long }, "Key", "256 bytes"},
		"long exchange":     {func(m *message.Message) { m.Exchange = long }, "Exchange", "256 bytes"},
		"long routing key":  {func(m *message.Message) { m.RoutingKey = long }, "RoutingKey", "256 bytes"},
		"long source":       {func(m *message.Message) { m.Source = long }, "Source", "256 bytes"},
		"long correlation":  {func(m *message.Message) { m.CorrelationID = long }, "CorrelationID", "256 bytes"},
		"long content type": {func(m *message.Message) { m.ContentType = long }, "ContentType", "256 bytes"},
		"long causation":    {func(m *message.Message) { m.CausationID = longer }, "CausationID", "513 bytes"},
		"long request":      {func(m *message.Message) { m.RequestID = longer }, "RequestID", "513 bytes"},
		"long traceparent":  {func(m *message.Message) { m.TraceParent = longer }, "TraceParent", "513 bytes"},
		"long tracestate":   {func(m *message.Message) { m.TraceState = longer }, "TraceState", "513 bytes"},
		"odd traceparent":   {func(m *message.Message) { m.TraceParent = "zz" }, "TraceParent", "W3C trace context"},
		"NUL in key":        {func(m *message.Message) { m.Key = "a\x00b" }, "Key", "NUL"},
		"bad UTF-8 in id":   {func(m *message.Message) { m.ID = "a\xff" }, "ID", "UTF-8"},
		"year 1969":         {func(m *message.Message) { m.OccurredAt = time.Unix(-1, 0) }, "OccurredAt", "1970"},
		"year 10000":        {func(m *message.Message) { m.OccurredAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, "OccurredAt", "9999"},
		"year 10000 in UTC only": {func(m *message.Message) {
			m.OccurredAt = time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("west", -2*3600))
		}, "OccurredAt", "9999"},
		"long payload":    {func(m *message.Message) { m.Payload = make([]byte, 101) }, "Payload", "more than the limit of 100"},
		"header type":     {func(m *message.Message) { m.Headers = message.Headers{"a": struct{}{}} }, "Headers", "struct {}"},
		"header unsigned": {func(m *message.Message) { m.Headers = message.Headers{"a": uint64(math.MaxUint64)} }, "Headers", "send it as text"},
		"header name":     {func(m *message.Message) { m.Headers = message.Headers{long: 1} }, "Headers", "name"},
		"no header name":  {func(m *message.Message) { m.Headers = message.Headers{"": 1} }, "Headers", "empty"},
		"header NUL":      {func(m *message.Message) { m.Headers = message.Headers{"a": "\x00"} }, "Headers", "NUL"},
		"header time":     {func(m *message.Message) { m.Headers = message.Headers{"a": time.Time{}} }, "Headers", "1970"},
		"reserved header": {func(m *message.Message) { m.Headers = message.Headers{"X-Attempts": 1} }, "Headers", "another name"},
		"broker's header": {func(m *message.Message) { m.Headers = message.Headers{"x-death": 1} }, "Headers", "another name"},
		"nested too deep": {func(m *message.Message) { m.Headers = nested(17) }, "Headers", "nested"},
		"headers too big": {func(m *message.Message) {
			m.Headers = message.Headers{"a": strings.Repeat("x", message.MaxUserHeaders)}
		}, "Headers", "more than the limit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := message.Message{ID: "1", Type: "order.created"}
			require.NoError(t, m.Validate(100))
			c.change(&m)
			var invalid *message.InvalidError
			require.ErrorAs(t, m.Validate(100), &invalid)
			require.Equal(t, c.field, invalid.Field)
			require.Contains(t, invalid.Error(), c.reason)
			require.LessOrEqual(t, len(invalid.Error()), 600, "an error must not carry the whole of a hostile text")
		})
	}
}

func TestValidateAcceptsWhatStandsAtTheLimits(t *testing.T) {
	t.Parallel()
	edge := strings.Repeat("ü", 127) + "x"
	m := message.Message{
		ID: edge, Type: edge, Key: edge, Exchange: edge, RoutingKey: edge, Source: edge, CorrelationID: edge, ContentType: edge,
		CausationID: edge + edge, RequestID: edge, TraceState: edge,
		OccurredAt: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), Payload: make([]byte, message.MaxBody), Headers: nested(16),
	}
	require.NoError(t, m.Validate(0))
	m.Payload = make([]byte, message.MaxBody+1)
	require.Error(t, m.Validate(0))
}

func nested(depth int) message.Headers {
	h := message.Headers{"leaf": 1}
	for range depth - 1 {
		h = message.Headers{"a": h}
	}
	return h
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := message.Message{Type: "a"}.WithDefaults(now)
	require.Len(t, m.ID, 36)
	require.Equal(t, now, m.OccurredAt)
	require.Equal(t, "application/json", m.ContentType)
	require.Equal(t, "a", m.Route())
	m.RoutingKey = "b"
	require.Equal(t, "b", m.Route())
	require.Equal(t, m, m.WithDefaults(now.Add(time.Hour)))
	first, second := message.NewID(), message.NewID()
	require.Less(t, first, second, "ids sort by time")
}

func TestInherit(t *testing.T) {
	t.Parallel()
	cause := message.Message{ID: "1", CorrelationID: "c", RequestID: "r"}
	require.Equal(t, message.Message{CorrelationID: "c", CausationID: "1", RequestID: "r"}, message.Message{}.Inherit(cause))
	cause.CorrelationID = ""
	require.Equal(t, "1", message.Message{}.Inherit(cause).CorrelationID, "the cause starts the chain")
	own := message.Message{CorrelationID: "x", CausationID: "y", RequestID: "z"}
	require.Equal(t, own, own.Inherit(cause))
	ctx := message.NewContext(t.Context(), cause)
	found, ok := message.FromContext(ctx)
	require.True(t, ok)
	require.Equal(t, cause, found)
	_, ok = message.FromContext(t.Context())
	require.False(t, ok)
}

func TestTheRequestIDOfAContext(t *testing.T) {
	t.Parallel()
	require.Empty(t, message.RequestIDFrom(t.Context()))
	ctx := message.WithRequestID(t.Context(), "a-Z_0.9:/+=@")
	require.Equal(t, "a-Z_0.9:/+=@", message.RequestIDFrom(ctx))
	for _, bad := range []string{"", "a b", "a\r\nb", "ü", "a\x00", `"`, "<", ";", ",", strings.Repeat("x", 129)} {
		require.False(t, message.ValidRequestID(bad), "%q", bad)
		require.Empty(t, message.RequestIDFrom(message.WithRequestID(t.Context(), bad)))
	}
	handled := message.NewContext(t.Context(), message.Message{RequestID: "handled"})
	require.Equal(t, "handled", message.RequestIDFrom(handled))
	require.Equal(t, "served", message.RequestIDFrom(message.WithRequestID(handled, "served")))
	hostile := message.NewContext(t.Context(), message.Message{RequestID: "a\r\nSet-Cookie: b"})
	require.Empty(t, message.RequestIDFrom(hostile), "what goes into headers must be fit for them")
}

// A handler's own event must be valid whatever stands in the ids of the message that caused it.
func TestInheritFromAnyMessageIsValid(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringN(0, -1, 1000), rapid.Just("a\xff\x00b"), rapid.Just(strings.Repeat("x", 2000)))
		cause := message.Message{ID: text.Draw(t, "id"), CorrelationID: text.Draw(t, "correlation"), RequestID: text.Draw(t, "request")}
		require.NoError(t, message.Message{Type: "a"}.Inherit(cause).Validate(0))
	})
}

func TestClipProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "text")
		limit := rapid.IntRange(-2, 80).Draw(t, "limit")
		got := message.Clip(raw, limit)
		require.True(t, utf8.ValidString(got), "%q", got)
		require.LessOrEqual(t, len(got), max(limit, 0))
		if len(raw) <= limit && utf8.ValidString(raw) {
			require.Equal(t, raw, got)
		}
		if len(raw) > limit && limit >= 3 {
			require.True(t, strings.HasSuffix(got, "..."))
			require.GreaterOrEqual(t, len(got), min(limit-utf8.UTFMax+1, 3), "only a part of one rune may go")
		}
		if len(raw) > limit && limit > 8 && utf8.ValidString(raw) {
			require.GreaterOrEqual(t, len(got), limit-(utf8.UTFMax-1))
			require.Equal(t, raw[:len(got)-3], got[:len(got)-3])
		}
	})
}

func TestClip(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in, want string
		limit    int
	}{
		{"abc", "abc", 3},
		{"abcdef", "ab...", 5},
		{"abcdef", "..", 2},
		{"abcdef", "", 0},
		{"abcdef", "", -1},
		{"ääääää", "ä...", 5},
		{"ääääää", "ä...", 6},
		{"a\xffb", "a?b", 10},
	} {
		require.Equal(t, c.want, message.Clip(c.in, c.limit), "%q at %d", c.in, c.limit)
	}
}

func TestACloneSharesNoMemory(t *testing.T) {
	t.Parallel()
	deep := func() message.Message {
		return message.Message{Payload: []byte("abc"), Headers: message.Headers{
			"a": []byte("abc"), "b": []any{"x", []byte("y")}, "c": map[string]any{"d": []any{message.Headers{"e": "f"}}},
		}}
	}
	m := deep()
	c := m.Clone()
	require.Equal(t, m, c)
	c.Payload[0], c.Headers["a"].([]byte)[0], c.Headers["b"].([]any)[1].([]byte)[0] = 'X', 'X', 'X'
	c.Headers["c"].(map[string]any)["d"].([]any)[0].(message.Headers)["e"] = "X"
	require.Equal(t, deep(), m)
	require.Nil(t, message.Message{}.Clone().Headers)
}

func BenchmarkClone(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 16 << 20} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			m := message.Message{Payload: make([]byte, size), Headers: message.Headers{"tenant": "acme"}}
			for b.Loop() {
				m.Clone()
			}
		})
	}
}
