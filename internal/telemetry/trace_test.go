package telemetry_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

func TestNamesAreThoseOfTheConventions(t *testing.T) {
	t.Parallel()
	require.Equal(t, semconv.SchemaURL, telemetry.SchemaURL)
	for want, got := range map[string]string{
		string(semconv.MessagingSystemKey):                  telemetry.AttrSystem,
		string(semconv.MessagingOperationNameKey):           telemetry.AttrOperationName,
		string(semconv.MessagingOperationTypeKey):           telemetry.AttrOperationType,
		string(semconv.MessagingDestinationNameKey):         telemetry.AttrDestination,
		string(semconv.MessagingMessageIDKey):               telemetry.AttrMessageID,
		string(semconv.MessagingMessageBodySizeKey):         telemetry.AttrBodySize,
		string(semconv.MessagingBatchMessageCountKey):       telemetry.AttrBatchCount,
		string(semconv.ErrorTypeKey):                        telemetry.AttrErrorType,
		semconv.MessagingOperationTypeSend.Value.AsString(): telemetry.TypeSend,
		semconv.MessagingSystemRabbitMQ.Value.AsString():    telemetry.SystemRabbitMQ,
	} {
		require.Equal(t, want, got)
	}
}

const (
	parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	state  = "vendor=x"
)

func TestTraceSurvivesTheHeaders(t *testing.T) {
	t.Parallel()
	gotParent, gotState := telemetry.TraceHeaders(telemetry.TraceContext(t.Context(), parent, state))
	require.Equal(t, parent, gotParent)
	require.Equal(t, state, gotState)
	links := telemetry.TraceLinks(parent, state)
	require.Len(t, links, 1)
	require.Equal(t, "b7ad6b7169203331", links[0].SpanContext.SpanID().String())
	require.Equal(t, "publish shop.events", telemetry.SpanName(telemetry.OpPublish, "shop.events"))
}

func TestForgedTraceHeadersAreIgnored(t *testing.T) {
	t.Parallel()
	for _, forged := range []string{
		"", "x", parent + "x", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "ff" + parent[2:], "\x1b[2J",
	} {
		require.Empty(t, telemetry.TraceLinks(forged, state), forged)
		require.False(t, trace.SpanContextFromContext(telemetry.TraceContext(t.Context(), forged, state)).IsValid())
		gotParent, gotState := telemetry.TraceHeaders(telemetry.TraceContext(t.Context(), forged, state))
		require.Empty(t, gotParent+gotState)
	}
}

// TestTracing sets the process-wide provider, as the application does; no other test here may make spans.
func TestTracing(t *testing.T) { //nolint:paralleltest // see above
	for name, environ := range map[string][]string{
		"no endpoint": nil,
		"disabled":    {"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_SDK_DISABLED=true"},
		"no exporter": {"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_TRACES_EXPORTER=none"},
	} {
		stop, err := telemetry.StartTracing(t.Context(), telemetry.TracingOptions{Environ: environ})
		require.NoError(t, err)
		require.False(t, makeSpan(t.Context()), name)
		require.NoError(t, stop(t.Context()))
	}

	var posted atomic.Int32
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/traces" {
			posted.Add(1)
		}
	}))
	defer collector.Close()
	stop, err := telemetry.StartTracing(t.Context(), telemetry.TracingOptions{Endpoint: collector.URL, SampleRatio: 1, Version: "v1"})
	require.NoError(t, err)
	require.True(t, makeSpan(t.Context()))
	require.Zero(t, posted.Load(), "the work waits for the collector")
	require.NoError(t, stop(t.Context()))
	require.EqualValues(t, 1, posted.Load(), "stopping does not flush")
}

func makeSpan(ctx context.Context) bool {
	_, span := otel.Tracer(telemetry.TracerName).Start(ctx, telemetry.SpanEnqueue)
	defer span.End()
	return span.IsRecording()
}
