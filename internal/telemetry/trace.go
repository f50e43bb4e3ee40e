package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// TracerName is the instrumentation scope of every span that Surefoot makes.
const TracerName = "github.com/surefoot-mq/surefoot"

// SchemaURL pins the version of the semantic conventions (messaging: status development) that the names below
// follow. All names are here, so that a new version of the conventions is one change.
const SchemaURL = "https://opentelemetry.io/schemas/1.43.0"

// Operations. A span is called after its operation and its destination; see [SpanName].
const (
	// SpanEnqueue is the create span: publish and process link to it.
	SpanEnqueue = "create outbox"

	OpPublish = "publish"
	OpProcess = "process"
	OpRetry   = "retry"
	OpDead    = "dead-letter"
	OpRedrive = "redrive"
)

// Attributes of spans.
const (
	AttrSystem        = "messaging.system"
	AttrOperationName = "messaging.operation.name"
	AttrOperationType = "messaging.operation.type"
	AttrDestination   = "messaging.destination.name"
	AttrMessageID     = "messaging.message.id"
	AttrBodySize      = "messaging.message.body.size"
	AttrBatchCount    = "messaging.batch.message_count"
	AttrErrorType     = "error.type"
	// AttrAttempt and AttrEventType are ours: the conventions have no name for them.
	AttrAttempt   = "surefoot.attempt"
	AttrEventType = "surefoot.event.type"

	// TypeSend is the value of AttrOperationType for everything that goes to the broker.
	TypeSend = "send"
	// SystemRabbitMQ is the value of AttrSystem.
	SystemRabbitMQ = "rabbitmq"
)

// SpanName is the name of a span: the operation and the exchange or queue that it concerns.
func SpanName(operation, destination string) string { return operation + " " + destination }

// TraceHeaders returns the W3C trace context of ctx as the two headers carry it; empty when ctx has no valid
// span. It follows the standard whatever propagator the program has registered, because other services read it.
func TraceHeaders(ctx context.Context) (parent, state string) {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier.Get("traceparent"), carrier.Get("tracestate")
}

// TraceContext returns ctx with the trace that the two headers name as its remote parent. Headers that are not
// valid, which anybody may have sent, leave ctx as it is.
func TraceContext(ctx context.Context, parent, state string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": parent, "tracestate": state})
}

// TraceLinks is the link to the span that the two headers name: the one that created the message. It is empty
// when they name none. A consumer links instead of becoming a child, because a message may be handled long
// after, and more than once.
func TraceLinks(parent, state string) []trace.Link {
	span := trace.SpanContextFromContext(TraceContext(context.Background(), parent, state))
	if !span.IsValid() {
		return nil
	}
	return []trace.Link{{SpanContext: span}}
}
