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

type requestIDKey struct{}

// maxRequestID bounds a request id in bytes.
const maxRequestID = 128

// ValidRequestID tells whether s can be the id of a request everywhere it goes, HTTP headers and logs among them: 1 to 128
// letters, digits and -_.:/+=@.
func ValidRequestID(s string) bool {
	if s == "" || len(s) > maxRequestID {
		return false
	}
	for i := range len(s) {
		c := s[i]
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '-' && c <= ':' || c == '_' || c == '+' || c == '=' || c == '@'
		if !plain {
			return false
		}
	}
	return true
}

// WithRequestID returns a context that carries the id of the request being served. Enqueue writes it to messages that have
// none. An id that is not valid is left out: see [ValidRequestID].
func WithRequestID(ctx context.Context, id string) context.Context {
	if !ValidRequestID(id) {
		return ctx
	}
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestIDFrom returns the id that [WithRequestID] put there, else that of the message being handled, where it is valid;
// else "".
func RequestIDFrom(ctx context.Context) string {
	if id, ok := ctx.Value(requestIDKey{}).(string); ok {
		return id
	}
	if m, ok := FromContext(ctx); ok && ValidRequestID(m.RequestID) {
		return m.RequestID
	}
	return ""
}
