package message

import (
	"bytes"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Limits of what can be sent. They come from the protocol and from the broker, not from taste.
const (
	// MaxShortString is the length in bytes of an AMQP short string. Longer ones close the whole
	// connection, with every other publish on it.
	MaxShortString = 255
	// MaxBody is the default limit of a payload in bytes: RabbitMQ from 4.0 refuses more.
	MaxBody = 16 << 20
	// MaxHeaders bounds all headers of a message together, in encoded bytes. The broker's limit is one
	// frame (131,064 bytes); the rest is kept for the record of failures.
	MaxHeaders = 64 << 10
	// MaxUserHeaders bounds the user's share of MaxHeaders, in encoded bytes.
	MaxUserHeaders = 32 << 10
	// MaxNames bounds the headers of a message in number: the Go client ends its connection at a message with more than
	// 8192 entries in one table or list. The rest is kept for what Surefoot and the broker add.
	MaxNames = 8<<10 - 64
	// maxText bounds identifiers that travel as headers (key, causation and request id, trace).
	maxText = 512
)

// DefaultContentType is the content type of a message that names none.
const DefaultContentType = "application/json"

// Message is one event or command. The zero value is not valid: Type is required, everything else has a
// default. A Message is a plain value; it may be shared between goroutines as long as nobody changes
// Payload or Headers.
type Message struct {
	// ID identifies the message for ever: through retries, dead letters and redrives. Default: a new
	// UUIDv7. Set it (for example to a UUIDv5 of a business key) to make a repeated Enqueue harmless.
	ID string
	// Type says what happened, for example "order.created". It is also the routing key unless
	// RoutingKey is set. Required, at most 255 bytes.
	Type string
	// Key orders messages: those of one key are published in the order of their commits. Empty: no
	// order is asked for. At most 255 bytes.
	Key string
	// Exchange to publish to. Default: the relay's exchange. At most 255 bytes.
	Exchange string
	// RoutingKey to publish with. Default: Type. At most 255 bytes.
	RoutingKey string
	// OccurredAt is when it happened. Default: the time of Enqueue. AMQP carries whole seconds.
	OccurredAt time.Time
	// Source names the producing service (AMQP app_id). At most 255 bytes.
	Source string
	// CorrelationID ties together everything that one business operation caused. At most 255 bytes.
	CorrelationID string
	// CausationID is the ID of the message whose handling produced this one.
	CausationID string
	// RequestID is the id of the request that started it all.
	RequestID string
	// ExpiresAt is when the whole job expires, by the clock of the producer's database, with all its waits and retries: a
	// consumer runs it no more after that, gives a handler no longer than until then, and dead-letters it as expired.
	// It is an absolute time because what is left cannot be carried through a queue: the clocks of databases must agree to
	// within what the expiry can bear. Events that a handler emits do not inherit it. In milliseconds. Default: never.
	ExpiresAt time.Time
	// Lifetime sets ExpiresAt, where that is zero, to so long after Enqueue, which asks the database for the time. It is
	// ignored elsewhere, and not read from a delivery. Default: 0, none.
	Lifetime time.Duration
	// ContentType of Payload. Default: application/json. At most 255 bytes.
	ContentType string
	// Payload is sent as it is and never re-encoded.
	Payload []byte
	// Headers are the user's own. See [Headers] for the types allowed; reserved names are refused.
	Headers Headers
	// TraceParent and TraceState carry the W3C trace context of the Enqueue, unchanged to the end.
	TraceParent, TraceState string
	// Attempts counts the failed attempts so far. It is read from a delivery and ignored by Enqueue.
	Attempts int
}

// NewID returns a new time-ordered message id (UUIDv7).
func NewID() string {
	return uuid.Must(uuid.NewV7()).String()
}

// Route returns the routing key the message is published with: RoutingKey, else Type.
func (m Message) Route() string {
	if m.RoutingKey != "" {
		return m.RoutingKey
	}
	return m.Type
}

// WithDefaults returns the message with ID, OccurredAt and ContentType filled in where they are empty.
func (m Message) WithDefaults(now time.Time) Message {
	if m.ID == "" {
		m.ID = NewID()
	}
	if m.OccurredAt.IsZero() {
		m.OccurredAt = now
	}
	if m.ContentType == "" {
		m.ContentType = DefaultContentType
	}
	return m
}

// InvalidError says why a message cannot be sent. It concerns the message alone: trying again does not
// help, and no other message is affected.
type InvalidError struct {
	// ID and Type of the refused message, shortened to what is safe to print.
	ID, Type string
	// Field that is wrong, in the words of [Message].
	Field string
	// Reason says what is wrong with it and what would be accepted.
	Reason string
}

// Error implements error.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("invalid message (id %q, type %q): %s %s", e.ID, e.Type, e.Field, e.Reason)
}

// Validate reports the first reason why the message could not be sent, as an [*InvalidError]. Pass
// maxBody 0 for [MaxBody]. A message that passes cannot close a channel or a connection for its form.
func (m Message) Validate(maxBody int) error {
	if maxBody <= 0 {
		maxBody = MaxBody
	}
	if m.Type == "" {
		return m.invalid("Type", `is empty; name what happened, for example "order.created"`)
	}
	for _, f := range m.texts() {
		if reason := textFault(f.value, f.limit); reason != "" {
			return m.invalid(f.name, reason)
		}
	}
	if m.TraceParent != "" && !isTraceParent(m.TraceParent) {
		return m.invalid("TraceParent", `is not one of W3C trace context, for example "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"`)
	}
	if !m.OccurredAt.IsZero() && outOfRange(m.OccurredAt) {
		return m.invalid("OccurredAt", "lies outside the years 1970 to 9999, which AMQP cannot carry")
	}
	if !m.ExpiresAt.IsZero() {
		if _, ok := expiry(m.ExpiresAt.UnixMilli()); !ok {
			return m.invalid("ExpiresAt", "lies outside the years 2001 to 2286")
		}
	}
	if m.Lifetime < 0 {
		return m.invalid("Lifetime", "is negative")
	}
	if len(m.Payload) > maxBody {
		return m.invalid("Payload", fmt.Sprintf("has %d bytes, more than the limit of %d; store it elsewhere and send a reference",
			len(m.Payload), maxBody))
	}
	return m.validateHeaders()
}

// isTraceParent reports whether a text is a traceparent, of version 00 or a later one, which may be longer. Readers
// drop any other, and with it the trace. The SQL function has the same rule.
func isTraceParent(s string) bool {
	const form = "vv-tttttttttttttttttttttttttttttttt-pppppppppppppppp-ff"
	if len(s) < len(form) || s[:2] == "ff" || len(s) > len(form) && (s[:2] == "00" || s[len(form)] != '-') {
		return false
	}
	for i := range len(form) {
		c := s[i]
		hex := '0' <= c && c <= '9' || 'a' <= c && c <= 'f'
		if form[i] == '-' && c != '-' || form[i] != '-' && !hex {
			return false
		}
	}
	return strings.Trim(s[3:35], "0") != "" && strings.Trim(s[36:52], "0") != ""
}

func (m Message) validateHeaders() error {
	_, err := m.table()
	return err
}

// table returns the user's headers as AMQP carries them.
func (m Message) table() (amqp.Table, error) {
	table, err := m.Headers.table()
	if err != nil {
		return nil, m.invalid("Headers", err.Error())
	}
	size := TableSize(table)
	if at, ours := table[HeaderExpiresAt]; ours {
		size -= entrySize(HeaderExpiresAt, at)
	}
	if size > MaxUserHeaders {
		return nil, m.invalid("Headers", fmt.Sprintf("take %d bytes encoded, more than the limit of %d", size, MaxUserHeaders))
	}
	return table, nil
}

type text struct {
	name, value string
	limit       int
}

func (m Message) texts() [12]text {
	return [...]text{
		{"ID", m.ID, MaxShortString},
		{"Type", m.Type, MaxShortString},
		{"Key", m.Key, MaxShortString},
		{"Exchange", m.Exchange, MaxShortString},
		{"RoutingKey", m.RoutingKey, MaxShortString},
		{"Source", m.Source, MaxShortString},
		{"CorrelationID", m.CorrelationID, MaxShortString},
		{"ContentType", m.ContentType, MaxShortString},
		{"CausationID", m.CausationID, maxText},
		{"RequestID", m.RequestID, maxText},
		{"TraceParent", m.TraceParent, maxText},
		{"TraceState", m.TraceState, maxText},
	}
}

// textFault returns what is wrong with a text, or "". NUL and invalid UTF-8 would be accepted by AMQP and
// refused by PostgreSQL, so they are refused for both.
func textFault(s string, limit int) string {
	switch {
	case len(s) > limit:
		return fmt.Sprintf("has %d bytes, more than the limit of %d", len(s), limit)
	case !utf8.ValidString(s):
		return "is not valid UTF-8"
	case strings.IndexByte(s, 0) >= 0:
		return "contains a NUL byte"
	}
	return ""
}

// Clone returns a copy that shares no memory with m: Payload and Headers may be changed.
func (m Message) Clone() Message {
	m.Payload = bytes.Clone(m.Payload)
	if m.Headers != nil {
		m.Headers = cloneValue(m.Headers).(Headers)
	}
	return m
}

// cloneValue copies what a header may hold; what cannot be changed in place is its own copy.
func cloneValue(value any) any {
	switch v := value.(type) {
	case Headers:
		return cloneMap(v)
	case map[string]any:
		return cloneMap(v)
	case amqp.Table:
		return cloneMap(v)
	case []any:
		copied := make([]any, len(v))
		for i, entry := range v {
			copied[i] = cloneValue(entry)
		}
		return copied
	case []byte:
		return bytes.Clone(v)
	}
	return value
}

func cloneMap[M ~map[string]any](m M) M {
	copied := make(M, len(m))
	for name, value := range m {
		copied[name] = cloneValue(value)
	}
	return copied
}

func (m Message) invalid(field, reason string) error {
	return &InvalidError{ID: Clip(m.ID, 64), Type: Clip(m.Type, 64), Field: field, Reason: reason}
}

// Storable makes a text from anywhere fit for a text column of PostgreSQL: at most limit bytes, valid UTF-8, no NUL. Every
// text of a message that goes to the database as it came passes here.
func Storable(s string, limit int) string { return Clip(strings.ReplaceAll(s, "\x00", ""), limit) }

// Clip shortens s to at most limit bytes without cutting a rune, replaces invalid UTF-8, and marks the
// cut with "...". It bounds text from messages and errors; it does not escape it.
func Clip(s string, limit int) string {
	limit = max(limit, 0)
	if len(s) <= limit {
		return strings.ToValidUTF8(s, "?")
	}
	mark := "..."[:min(3, limit)]
	end := limit - len(mark)
	for back := 0; back < utf8.UTFMax-1 && end > 0 && !utf8.RuneStart(s[end]); back++ {
		end--
	}
	return strings.ToValidUTF8(s[:end], "?") + mark
}
