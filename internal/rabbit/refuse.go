package rabbit

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// shortStringMax is the most bytes of a short string. A longer one would kill the whole connection, with all that is in flight on it.
const shortStringMax = 255

// tableDepthMax bounds nested header tables.
const tableDepthMax = 32

// entriesMax bounds the entries of one table or list: the client library ends its connection when it receives more, and then nobody who uses it could
// take the message. Of the headers themselves, headersMax leave room for those that the broker adds.
const (
	entriesMax = 8192
	headersMax = entriesMax - 16
)

// RefusedError says that a message can never be sent as it is. Nothing was written. Trying again without a change is useless.
type RefusedError struct {
	Field  string // the faulty field, such as "routing key" or "header sf-key"
	Reason string
}

// Error never contains a value from the message.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("rabbit: message refused before sending: %s %s", e.Field, e.Reason)
}

// IsRefused says whether err is a permanent refusal.
func IsRefused(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused)
}

// Limits are what a connection accepts.
type Limits struct {
	// FrameMax is the negotiated frame size in bytes, which must hold all properties and headers; 0 is unlimited.
	FrameMax int
	// MaxMessageBytes bounds the body; 0 is unlimited.
	MaxMessageBytes int
	// User must equal a message's user id when that is set; the broker closes the channel otherwise. Empty: not checked.
	User string
}

// Check finds what would make the broker close the channel or the connection, or the library send half a message (it writes the method frame
// before it encodes the headers). It returns nil or a *RefusedError.
func (l Limits) Check(exchange, key string, msg *amqp.Publishing) error {
	size := 14 // class, weight, body size, flags
	for _, s := range [...]struct{ name, value string }{
		{"exchange", exchange},
		{"routing key", key},
		{"content type", msg.ContentType},
		{"content encoding", msg.ContentEncoding},
		{"correlation id", msg.CorrelationId},
		{"reply-to", msg.ReplyTo},
		{"message id", msg.MessageId},
		{"type", msg.Type},
		{"user id", msg.UserId},
		{"app id", msg.AppId},
		{"expiration", msg.Expiration},
	} {
		if len(s.value) > shortStringMax {
			return &RefusedError{s.name, fmt.Sprintf("has %d bytes; at most %d fit an AMQP short string", len(s.value), shortStringMax)}
		}
		size += 1 + len(s.value)
	}
	headers, err := tableSize(msg.Headers, "", 0)
	if err != nil {
		return err
	}
	size += headers + 16 // delivery mode, priority, timestamp
	if frameOverhead := 8; l.FrameMax > 0 && size > l.FrameMax-frameOverhead {
		return &RefusedError{"headers", fmt.Sprintf("take %d bytes with the properties; one frame of this connection holds %d", size, l.FrameMax-frameOverhead)}
	}
	return l.checkSpecial(msg)
}

func (l Limits) checkSpecial(msg *amqp.Publishing) error {
	if l.MaxMessageBytes > 0 && len(msg.Body) > l.MaxMessageBytes {
		return &RefusedError{"body", fmt.Sprintf("has %d bytes; the broker's limit is %d", len(msg.Body), l.MaxMessageBytes)}
	}
	if msg.Expiration != "" {
		if _, err := strconv.ParseUint(msg.Expiration, 10, 32); err != nil {
			return &RefusedError{"expiration", "is not a whole number of milliseconds below 2^32"}
		}
	}
	if l.User != "" && msg.UserId != "" && msg.UserId != l.User {
		return &RefusedError{"user id", "differs from the connection's user; the broker would close the channel"}
	}
	for _, name := range [...]string{"CC", "BCC"} {
		if value, has := msg.Headers[name]; has && !isStringArray(value) {
			return &RefusedError{"header " + strconv.Quote(name), "must be an array of strings; the broker would close the channel"}
		}
	}
	return nil
}

func isStringArray(value any) bool {
	list, ok := value.([]any)
	for _, v := range list {
		if _, isString := v.(string); !isString {
			return false
		}
	}
	return ok
}

// tableSize returns the encoded size of a table with its length field.
func tableSize(table amqp.Table, path string, depth int) (int, error) {
	if depth > tableDepthMax {
		return 0, &RefusedError{"header " + strconv.Quote(path), fmt.Sprintf("is nested more than %d deep", tableDepthMax)}
	}
	if depth == 0 && len(table) > headersMax {
		return 0, &RefusedError{"headers", fmt.Sprintf("are %d; the client library takes %d", len(table), headersMax)}
	}
	if len(table) > entriesMax {
		return 0, &RefusedError{"header " + strconv.Quote(path), fmt.Sprintf("has %d entries; the client library takes %d", len(table), entriesMax)}
	}
	size := 4
	for key, value := range table {
		if len(key) > shortStringMax {
			return 0, &RefusedError{"a header's name", fmt.Sprintf("has %d bytes; at most %d fit an AMQP short string", len(key), shortStringMax)}
		}
		name := key
		if path != "" {
			name = path + "." + key
		}
		n, err := fieldSize(value, name, depth)
		if err != nil {
			return 0, err
		}
		size += 1 + len(key) + n
	}
	return size, nil
}

// fieldSize returns the encoded size of a header value with its type octet, or a refusal for a Go type that AMQP has not.
func fieldSize(value any, name string, depth int) (int, error) {
	switch v := value.(type) {
	case nil:
		return 1, nil
	case bool, byte, int8:
		return 2, nil
	case int16, uint16:
		return 3, nil
	case int32, uint32:
		return 5, nil
	case float32:
		return 5, finite(float64(v), name)
	case float64:
		return 9, finite(v, name)
	case int:
		if v < math.MinInt32 || v > math.MaxInt32 {
			return 0, &RefusedError{"header " + strconv.Quote(name), "is a Go int outside 32 bits, which the client would cut off; use int64"}
		}
		return 5, nil
	case int64, time.Time:
		return 9, nil
	case amqp.Decimal:
		return 6, nil
	case string:
		return 5 + len(v), nil
	case []byte:
		return 5 + len(v), nil
	case amqp.Table:
		n, err := tableSize(v, name, depth+1)
		return 1 + n, err
	case []any:
		return arraySize(v, name, depth+1)
	default:
		return 0, &RefusedError{"header " + strconv.Quote(name), fmt.Sprintf("has the Go type %T, which AMQP cannot carry", value)}
	}
}

// finite refuses a number that the broker cannot read: it would close the connection with an internal error.
func finite(f float64, name string) error {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return &RefusedError{"header " + strconv.Quote(name), "is infinite or no number (NaN), which RabbitMQ cannot read"}
	}
	return nil
}

func arraySize(list []any, name string, depth int) (int, error) {
	if depth > tableDepthMax {
		return 0, &RefusedError{"header " + strconv.Quote(name), fmt.Sprintf("is nested more than %d deep", tableDepthMax)}
	}
	if len(list) > entriesMax {
		return 0, &RefusedError{"header " + strconv.Quote(name), fmt.Sprintf("has %d entries; the client library takes %d", len(list), entriesMax)}
	}
	size := 5
	for _, value := range list {
		n, err := fieldSize(value, name, depth)
		if err != nil {
			return 0, err
		}
		size += n
	}
	return size, nil
}
