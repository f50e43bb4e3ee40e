package message_test

import (
	"math"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/message"
)

// plain turns maps of any name into map[string]any, as JSON knows but one kind.
func plain(value any) any {
	switch v := value.(type) {
	case amqp.Table:
		return plain(map[string]any(v))
	case message.Headers:
		return plain(map[string]any(v))
	case map[string]any:
		out := map[string]any{}
		for name, field := range v {
			out[name] = plain(field)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, field := range v {
			out[i] = plain(field)
		}
		return out
	default:
		return v
	}
}

func TestHeadersJSONKeepsTypes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := userHeaders(3).Draw(t, "headers")
		text, err := message.HeadersJSON(h)
		require.NoError(t, err)
		back, err := message.ParseHeadersJSON(text)
		require.NoError(t, err, "%s", text)
		require.Equal(t, plain(h), plain(back), "%s", text)
		again, err := message.HeadersJSON(back)
		require.NoError(t, err)
		require.Equal(t, string(text), string(again))
	})
}

func TestHeadersJSONGolden(t *testing.T) {
	t.Parallel()
	h := message.Headers{
		"int": int64(math.MaxInt64), "min": int64(math.MinInt64), "whole": 3.0, "half": 0.5, "huge": 1e300,
		"text": "a<b>&ü \"q\"", "bytes": []byte{0, 255}, "time": time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("x", 3600)),
		"nil": nil, "yes": true, "list": []any{1, "a", []byte("b"), 2.0}, "map": message.Headers{"a": 1, "b": nil},
		"like a tag": message.Headers{"$bytes": "no bytes"}, "not alone": message.Headers{"$bytes": "a", "x": 1},
	}
	text, err := message.HeadersJSON(h)
	require.NoError(t, err)
	golden(t, "headers.json", append(text, '\n'))
}

func TestHeadersJSONOfNothing(t *testing.T) {
	t.Parallel()
	for _, h := range []message.Headers{nil, {}} {
		text, err := message.HeadersJSON(h)
		require.NoError(t, err)
		require.Nil(t, text)
	}
	h, err := message.ParseHeadersJSON(nil)
	require.NoError(t, err)
	require.Nil(t, h)
}

func TestParseHeadersJSONRefuses(t *testing.T) {
	t.Parallel()
	for text, reason := range map[string]string{
		`[]`: "not a JSON object", `{`: "not a JSON object", `{} {}`: "more than one", `{}}`: "more than one", `{},`: "more than one",
		`{"a":9223372036854775808}`: "64 signed bits", `{"a":1e999}`: "out of range",
		`{"a":{"$bytes":"***"}}`: "illegal base64", `{"a":{"$time":"noon"}}`: "cannot parse", `{"a":{"$time":"0001-01-01T00:00:00Z"}}`: "1970",
		`{"a":{"$float":"x"}}`: "invalid syntax", `{"a":{"$float":1}}`: "wrong type", `{"a":{"$map":"x"}}`: "needs an object", `{"a":{"$bytes":{}}}`: "wrong type",
		`{"x-death":1}`: "another name", `{"sf-key":"a"}`: "another name", `{"":1}`: "empty", `{"a":"\u0000"}`: "NUL",
		`{"a":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`: "nested",
	} {
		_, err := message.ParseHeadersJSON([]byte(text))
		require.ErrorContains(t, err, reason, "%s", text)
	}
}
