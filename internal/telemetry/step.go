package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Step is something that happened to a message on its way: it was published, moved to a retry tier or to the dead-letter queue, or redriven.
type Step struct {
	// Operation is one of the operations of this package.
	Operation string
	// Destination is the exchange or queue that the message went to.
	Destination string
	// MessageID and EventType of the message. Other than those, nothing of it is told.
	MessageID, EventType string
	// Attempt that has failed; 0: none has.
	Attempt int
	// Parent and State are the message's trace context: that of the Enqueue.
	Parent, State string
	// Began and Ended bound it; it is over when it is told.
	Began, Ended time.Time
}

// Record makes a span of the step, linked to the one that created the message. A message without a trace has none, and costs nothing.
//
//nolint:contextcheck,nolintlint // looked at where it is called: a span of its own, whatever is going on around it
func (s Step) Record() {
	if s.Parent == "" {
		return
	}
	links := TraceLinks(s.Parent, s.State)
	if len(links) == 0 {
		return
	}
	_, span := otel.Tracer(TracerName).Start(context.Background(), SpanName(s.Operation, s.Destination),
		trace.WithTimestamp(s.Began), trace.WithSpanKind(trace.SpanKindProducer), trace.WithLinks(links...))
	if span.IsRecording() {
		span.SetAttributes(
			attribute.String(AttrSystem, SystemRabbitMQ), attribute.String(AttrOperationName, s.Operation), attribute.String(AttrOperationType, TypeSend),
			attribute.String(AttrDestination, s.Destination), attribute.String(AttrMessageID, clip(s.MessageID)), attribute.String(AttrEventType, clip(s.EventType)),
		)
		if s.Attempt > 0 {
			span.SetAttributes(attribute.Int(AttrAttempt, s.Attempt))
		}
	}
	span.End(trace.WithTimestamp(s.Ended))
}

// clip bounds what comes from a message.
func clip(s string) string { return s[:min(len(s), 255)] }
