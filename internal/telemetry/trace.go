package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
)

// TracerName is the instrumentation scope of every span that Surefoot makes.
const TracerName = "github.com/surefoot-mq/surefoot"

// Names of spans and attributes, after the OpenTelemetry semantic conventions for messaging, version 1.37.0
// (status: development). All of them are here, so that a new version of the conventions is one change.
const (
	// SpanEnqueue is the create span: publish and process link to it.
	SpanEnqueue = "create outbox"

	AttrSystem        = "messaging.system"
	AttrOperationName = "messaging.operation.name"
	AttrOperationType = "messaging.operation.type"
	AttrBatchCount    = "messaging.batch.message_count"
)

// TraceHeaders returns the W3C trace context of ctx as the two headers carry it; empty when ctx has no valid
// span. It follows the standard whatever propagator the program has registered, because other services read it.
func TraceHeaders(ctx context.Context) (parent, state string) {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier.Get("traceparent"), carrier.Get("tracestate")
}
