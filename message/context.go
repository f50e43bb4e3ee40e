package message

import "context"

type contextKey struct{}

// NewContext returns a context that carries the message being handled. Enqueue reads it, so that events
// emitted by a handler inherit correlation, causation and request id.
func NewContext(ctx context.Context, m Message) context.Context {
	return context.WithValue(ctx, contextKey{}, m)
}

// FromContext returns the message that is being handled, if any.
func FromContext(ctx context.Context) (Message, bool) {
	m, ok := ctx.Value(contextKey{}).(Message)
	return m, ok
}

// Inherit fills CorrelationID, CausationID and RequestID, where they are empty, from the message that
// caused this one: its correlation (or, at the start of a chain, its ID), its ID and its request id.
func (m Message) Inherit(cause Message) Message {
	if m.CorrelationID == "" {
		m.CorrelationID = cause.CorrelationID
	}
	if m.CorrelationID == "" {
		m.CorrelationID = cause.ID
	}
	if m.CausationID == "" {
		m.CausationID = cause.ID
	}
	if m.RequestID == "" {
		m.RequestID = cause.RequestID
	}
	return m
}
