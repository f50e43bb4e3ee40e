package message

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Names of the headers that Surefoot writes.
const (
	HeaderKey         = "sf-key"
	HeaderCausationID = "sf-causation-id"
	HeaderRequestID   = "x-request-id"
	HeaderTraceParent = "traceparent"
	HeaderTraceState  = "tracestate"

	// HeaderAttempts counts failed attempts so far; absent means 0.
	HeaderAttempts = "x-attempts"
	// HeaderExpiresAt (Unix milliseconds, by the database's clock) is when the whole job expires; see [Message.ExpiresAt].
	HeaderExpiresAt = "sf-expires-at"
	// HeaderNotBefore (Unix milliseconds) is set when a retry must wait longer than the longest tier.
	HeaderNotBefore = "sf-not-before"

	HeaderOriginExchange   = "sf-origin-exchange"
	HeaderOriginRoutingKey = "sf-origin-routing-key"
	HeaderOriginQueue      = "sf-origin-queue"

	HeaderErrorClass    = "sf-error-class"
	HeaderErrorType     = "sf-error-type"
	HeaderErrorMessage  = "sf-error-message"
	HeaderErrorStack    = "sf-error-stack"
	HeaderFingerprint   = "sf-error-fingerprint"
	HeaderFirstFailedAt = "sf-first-failed-at"
	HeaderLastFailedAt  = "sf-last-failed-at"
	HeaderFailedHost    = "sf-failed-host"
	HeaderFailedVersion = "sf-failed-version"
	HeaderAttemptLog    = "sf-attempt-log"
	// HeaderDropped counts headers of a foreign producer that had to go so that the rest could be sent.
	HeaderDropped = "sf-headers-dropped"

	// HeaderReprocess (RFC 3339) marks a redriven message.
	HeaderReprocess    = "x-reprocess"
	HeaderRedriveCount = "sf-redrive-count"
	HeaderRedriveRun   = "sf-redrive-run"

	// HeaderOutbox identifies the outbox row ("shard/id") and HeaderEpoch the lease that published it.
	HeaderOutbox = "sf-outbox"
	HeaderEpoch  = "sf-epoch"
)

// Headers are a user's headers. Allowed values: nil, bool, every integer type, float32, float64, string,
// []byte, time.Time (whole seconds), []any and map[string]any or Headers of these. Integers travel as
// int64, so an unsigned one above math.MaxInt64 is refused, and so are NaN and infinities. A list or map holds at most 4096
// entries and is nested at most 16 deep.
type Headers map[string]any

// maxDepth bounds nesting, so that a hostile header cannot exhaust the stack.
const maxDepth = 16

// maxEntries bounds one list or map, see [MaxNames].
const maxEntries = 4096

var errTooManyEntries = fmt.Errorf("contain a list or map of more than %d entries; send them in the payload", maxEntries)

// table returns h as an AMQP table, or the reason why that cannot be.
func (h Headers) table() (amqp.Table, error) {
	if len(h) == 0 {
		return nil, nil
	}
	for name := range h {
		if Reserved(name) && name != HeaderExpiresAt {
			return nil, fmt.Errorf("contain %q, which is written by Surefoot or the broker; use another name", Clip(name, 64))
		}
	}
	value, expires := h[HeaderExpiresAt]
	if !expires {
		return toTable(h, 1)
	}
	at, ok := expiry(value)
	if !ok {
		return nil, fmt.Errorf("contain %q, which is not Unix milliseconds; use the field ExpiresAt or Lifetime", HeaderExpiresAt)
	}
	rest := maps.Clone(h) // the user's limits are not for what Surefoot adds
	delete(rest, HeaderExpiresAt)
	table, err := toTable(rest, 1)
	if err == nil {
		table[HeaderExpiresAt] = at.UnixMilli()
	}
	return table, err
}

// expiry reads the value of [HeaderExpiresAt]. Anything else than a time from 2001 to 2286 is none.
func expiry(value any) (time.Time, bool) {
	ms, ok := Integer(value)
	if !ok || ms < minExpiry || ms > maxExpiry {
		return time.Time{}, false
	}
	return time.UnixMilli(ms), true
}

// Bounds of an expiry: the Unix milliseconds of 13 digits.
const minExpiry, maxExpiry = 1_000_000_000_000, 9_999_999_999_999

// Reserved reports whether a header name belongs to Surefoot or to the broker, so that a user may not set it;
// [HeaderExpiresAt] is one, and may be set all the same.
func Reserved(name string) bool {
	switch lower := strings.ToLower(name); lower {
	case HeaderRequestID, HeaderTraceParent, HeaderTraceState, HeaderAttempts, HeaderReprocess:
		return true
	default:
		return strings.HasPrefix(lower, "sf-") || BrokerOwned(name)
	}
}

// known reports whether Surefoot writes the header: all of them together, at [maxOwn] bytes each, leave
// room within [MaxHeaders].
func known(name string) bool {
	switch name {
	case HeaderKey, HeaderCausationID, HeaderRequestID, HeaderTraceParent, HeaderTraceState,
		HeaderExpiresAt, HeaderAttempts, HeaderNotBefore, HeaderOriginExchange, HeaderOriginRoutingKey, HeaderOriginQueue,
		HeaderErrorClass, HeaderErrorType, HeaderErrorMessage, HeaderFingerprint, HeaderFirstFailedAt,
		HeaderLastFailedAt, HeaderFailedHost, HeaderFailedVersion, HeaderDropped,
		HeaderReprocess, HeaderRedriveCount, HeaderRedriveRun, HeaderOutbox, HeaderEpoch:
		return true
	}
	return false
}

// BrokerOwned reports whether the broker, or a plugin that ships with it, writes or interprets the header
// (RabbitMQ docs: dead lettering, quorum queues, streams, sender-selected distribution, federation, shovel,
// MQTT, AMQP 1.0). Such headers are never published again: see the package comment. CC and BCC count only
// as RabbitMQ reads them, in capitals; "cc" is a user's.
func BrokerOwned(name string) bool {
	if name == "CC" || name == "BCC" {
		return true
	}
	switch lower := strings.ToLower(name); lower {
	case "x-death", "x-delivery-count", "x-acquired-count", "x-delay",
		"x-stream-offset", "x-stream-filter", "x-stream-filter-value",
		"x-received-from", "x-shovelled", "x-shovelled-timestamp":
		return true
	default:
		return hasAnyPrefix(lower, "x-first-death-", "x-last-death-", "x-opt-", "x-mqtt-", "x-amqp-1.0-")
	}
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(s, prefix) {
			return true
		}
	}
	return false
}

func toTable(m map[string]any, depth int) (amqp.Table, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("are nested more than %d levels deep", maxDepth)
	}
	if len(m) > maxEntries {
		return nil, errTooManyEntries
	}
	table := make(amqp.Table, len(m))
	for name, value := range m {
		if reason := textFault(name, MaxShortString); reason != "" || name == "" {
			return nil, fmt.Errorf("contain the name %q, which is empty, not UTF-8 or over %d bytes", Clip(name, 64), MaxShortString)
		}
		field, err := toField(value, depth)
		if err != nil {
			return nil, fmt.Errorf("%w (header %q)", err, Clip(name, 64))
		}
		table[name] = field
	}
	return table, nil
}

func toField(value any, depth int) (any, error) {
	switch v := value.(type) {
	case nil, bool, int64, []byte:
		return v, nil
	case float64:
		return toFloat(v)
	case string:
		if reason := textFault(v, MaxHeaders); reason != "" {
			return nil, fmt.Errorf("contain a text that %s", reason)
		}
		return v, nil
	case time.Time:
		return toTime(v)
	case float32:
		return toFloat(float64(v))
	case Headers:
		return toTable(v, depth+1)
	case map[string]any:
		return toTable(v, depth+1)
	case amqp.Table:
		return toTable(v, depth+1)
	case []any:
		return toArray(v, depth+1)
	default:
		return toInteger(value)
	}
}

// toFloat refuses what RabbitMQ cannot read: it closes the connection for it (541), with every other publish there.
func toFloat(f float64) (any, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, errors.New("contain a number that is infinite or none (NaN), which RabbitMQ cannot read; send it as text")
	}
	return f, nil
}

// toTime cuts to whole seconds, which is all that AMQP carries.
func toTime(t time.Time) (any, error) {
	if outOfRange(t) {
		return nil, errors.New("contain a time outside the years 1970 to 9999, which AMQP cannot carry")
	}
	return t.UTC().Truncate(time.Second), nil
}

func outOfRange(t time.Time) bool {
	year := t.UTC().Year()
	return year < 1970 || year > 9999
}

func toArray(values []any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("are nested more than %d levels deep", maxDepth)
	}
	if len(values) > maxEntries {
		return nil, errTooManyEntries
	}
	fields := make([]any, len(values))
	for i, value := range values {
		field, err := toField(value, depth)
		if err != nil {
			return nil, err
		}
		fields[i] = field
	}
	return fields, nil
}

// toInteger widens every integer to int64: the client would cut an int to 32 bits without a word.
func toInteger(value any) (any, error) {
	switch v := value.(type) {
	case int:
		return int64(v), nil
	case int8:
		return int64(v), nil
	case int16:
		return int64(v), nil
	case int32:
		return int64(v), nil
	case uint8:
		return int64(v), nil
	case uint16:
		return int64(v), nil
	case uint32:
		return int64(v), nil
	case uint:
		return unsigned(uint64(v))
	case uint64:
		return unsigned(v)
	default:
		return nil, fmt.Errorf("contain a value of type %T, which AMQP cannot carry; use text, numbers, bool, time, lists or maps of these", value)
	}
}

func unsigned(v uint64) (any, error) {
	if v > math.MaxInt64 {
		return nil, fmt.Errorf("contain the unsigned number %d, which does not fit into 64 signed bits; send it as text", v)
	}
	return int64(v), nil
}

// Integer reads a counter from any numeric header type and from text: messages that other tools published
// again carry other types than the ones first written. Fractions are cut off. It reports false when there
// is none, and for what is no number from its first to its last character ("5abc") or fits no int64:
// half a number is a guess, and a counter that was guessed is worse than none.
func Integer(value any) (int64, bool) {
	switch v := value.(type) {
	case nil: // absent, as nearly always
		return 0, false
	case int64:
		return v, true
	case float32:
		return truncated(float64(v))
	case float64:
		return truncated(v)
	case string:
		n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		if err != nil {
			return 0, false
		}
		return n, true
	case []byte:
		return Integer(string(v))
	case amqp.Decimal:
		return truncated(float64(v.Value) / math.Pow10(int(v.Scale)))
	default:
		n, err := toInteger(value)
		if err != nil {
			return 0, false
		}
		i, ok := n.(int64)
		return i, ok
	}
}

func truncated(f float64) (int64, bool) {
	if math.IsNaN(f) || f >= math.MaxInt64 || f <= math.MinInt64 {
		return 0, false
	}
	return int64(f), true
}

// Attempts returns the failed attempts recorded in the headers: 0 when absent, negative or unreadable, and never so many that
// one more would not fit into 32 bits.
func Attempts(h amqp.Table) int {
	n, _ := Integer(h[HeaderAttempts])
	return int(min(max(n, 0), math.MaxInt32-1))
}

// Text returns a header as text, or "" when it is absent or of another type.
func Text(h amqp.Table, name string) string {
	switch v := h[name].(type) {
	case string:
		return v
	case []byte:
		return string(v)
	default:
		return ""
	}
}

// TableSize returns the encoded size of a table in bytes, as the protocol counts it.
func TableSize(t amqp.Table) int {
	size := 4
	for name, value := range t {
		size += entrySize(name, value)
	}
	return size
}

func entrySize(name string, value any) int { return 1 + len(name) + fieldSize(value) }

func fieldSize(value any) int {
	switch v := value.(type) {
	case nil:
		return 1
	case bool, int8, uint8:
		return 2
	case int16, uint16:
		return 3
	case int32, uint32, float32, int:
		return 5
	case string:
		return 5 + len(v)
	case []byte:
		return 5 + len(v)
	case amqp.Decimal:
		return 6
	case amqp.Table:
		return 1 + TableSize(v)
	case []any:
		size := 5
		for _, field := range v {
			size += fieldSize(field)
		}
		return size
	default: // int64, float64, time.Time
		return 9
	}
}
