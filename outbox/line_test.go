package outbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/outbox"
)

func TestParseLine(t *testing.T) {
	t.Parallel()
	m, err := outbox.ParseLine([]byte(`{"id":"1","type":"a","key":"k","exchange":"x","routing_key":"r","source":"s","correlation_id":"c",`+
		`"causation_id":"ca","request_id":"rq","content_type":"ct","traceparent":"`+traceParent+`","tracestate":"ts","payload": {"b":1.0,"a":1} ,"headers":{"n":1}}`), 0)
	require.NoError(t, err)
	require.Equal(t, `{"b":1.0,"a":1}`, string(m.Payload))
	require.Equal(t, []string{"1", "a", "k", "x", "r", "s", "c", "ca", "rq", "ct", traceParent, "ts"}, []string{
		m.ID, m.Type, m.Key, m.Exchange, m.RoutingKey, m.Source, m.CorrelationID, m.CausationID, m.RequestID, m.ContentType, m.TraceParent, m.TraceState,
	})
	_, err = outbox.ParseLine([]byte(`{"type":"a","payload":"12345"}`), 6)
	require.ErrorContains(t, err, "more than the limit of 6")
}

// FuzzParseLine: what is accepted can be sent, and its payload stands in the line.
func FuzzParseLine(f *testing.F) {
	for _, seed := range []string{
		`{"type":"a","payload":{}}`, `{"type":"a","payload_base64":"AA=="}`, `{"type":"a","payload":1,"headers":{"a":{"$bytes":"AA=="}}}`,
		`{"type":"a","payload":1,"occurred_at":"2026-01-02T03:04:05Z"}`, `{"type":"a","type":"b"}`, `[`, `{"a"`, ``, `{"type":"a","payload":1}x`, "{\"type\":\"\xff\"}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := outbox.ParseLine(line, 0)
		if err != nil {
			return
		}
		require.NoError(t, m.Validate(0))
		_, err = m.Publishing()
		require.NoError(t, err)
	})
}
