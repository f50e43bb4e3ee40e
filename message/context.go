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
// caused this one: its correlation (or, at the start of a chain, its ID), its ID and its request id. What
// a foreign producer wrote there is made fit to be sent: a handler must not fail for the ids of its cause.
func (m Message) Inherit(cause Message) Message {
	inherit := func(field *string, limit int, from ...string) {
		for _, value := range from {
			if *field == "" {
				*field = Storable(value, limit)
			}
		}
	}
	inherit(&m.CorrelationID, MaxShortString, cause.CorrelationID, cause.ID)
	inherit(&m.CausationID, maxText, cause.ID)
	inherit(&m.RequestID, maxText, cause.RequestID)
	return m
}
