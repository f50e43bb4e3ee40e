package rabbit

import (
	"encoding/binary"
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

// The bits of the properties that a content header has, in the order in which these follow.
const (
	hasContentType = 1 << (15 - iota)
	hasContentEncoding
	hasHeaders
	hasDeliveryMode
	hasPriority
	hasCorrelationID
	hasReplyTo
	hasExpiration
	hasMessageID
	hasTimestamp
	hasType
	hasUserID
	hasAppID
)

// mandatory is the bit of basic.publish that asks for a return when no queue matches.
const mandatory = 1

// encoder appends AMQP to buf. The first thing that AMQP cannot carry is kept in err; what is in buf then is of no use. For one goroutine at a time.
type encoder struct {
	buf []byte
	err error // a *RefusedError
}

// publish returns the frames of one publish, valid until the next call, or a *RefusedError. The client library would encode the same bytes, at
// many times the cost: it allocates for every field. And it writes the method before it has looked at the headers.
func (e *encoder) publish(l limits, channel uint16, exchange, key string, msg *amqp.Publishing) ([]byte, error) {
	e.buf, e.err = reuse(e.buf), nil
	at := e.frame(frameMethod, channel)
	e.uint32(basicPublish)
	e.uint16(0) // reserved
	e.short("exchange", exchange)
	e.short("routing key", key)
	e.buf = append(e.buf, mandatory)
	e.endFrame(at)
	at = e.frame(frameHeader, channel)
	e.uint32(basicPublish &^ 0xffff) // the class, and a weight of 0
	e.uint64(uint64(len(msg.Body)))
	e.properties(msg)
	if size := len(e.buf) - at; l.FrameMax > 0 && size > l.FrameMax-frameOverhead {
		e.refuse("headers", "take %d bytes with the properties; one frame of this connection holds %d", size, l.FrameMax-frameOverhead)
	}
	e.endFrame(at)
	l.check(e, msg)
	if e.err != nil {
		return nil, e.err
	}
	for body := msg.Body; len(body) > 0; {
		n := len(body)
		if l.FrameMax > 0 {
			n = min(n, l.FrameMax-frameOverhead)
		}
		at = e.frame(frameBody, channel)
		e.buf = append(e.buf, body[:n]...)
		e.endFrame(at)
		body = body[n:]
	}
	return e.buf, nil
}

// confirmSelect returns the frame that makes the broker confirm publishes, without an answer.
func (e *encoder) confirmSelect(channel uint16) []byte {
	const noWait = 1
	e.buf = e.buf[:0]
	at := e.frame(frameMethod, channel)
	e.uint32(confirmSelect)
	e.buf = append(e.buf, noWait)
	e.endFrame(at)
	return e.buf
}

// settlement returns the frame that settles a delivery, with multiple all up to it.
func (e *encoder) settlement(channel uint16, how method, tag uint64, multiple, requeue bool) []byte {
	const multipleBit, requeueBit, rejectRequeueBit = 1, 2, 1
	var bits byte
	switch {
	case how == basicReject && requeue:
		bits = rejectRequeueBit
	case how == basicNack && requeue:
		bits = requeueBit
	}
	if multiple {
		bits |= multipleBit
	}
	e.buf = e.buf[:0]
	at := e.frame(frameMethod, channel)
	e.uint32(how)
	e.uint64(tag)
	e.buf = append(e.buf, bits)
	e.endFrame(at)
	return e.buf
}

// frame begins a frame and returns where its payload does, which endFrame wants to know.
func (e *encoder) frame(kind byte, channel uint16) (at int) {
	e.buf = append(e.buf, kind)
	e.uint16(channel)
	return e.sized()
}

func (e *encoder) endFrame(at int) {
	e.endSized(at)
	e.buf = append(e.buf, frameEnd)
}

// sized begins what its size in four bytes precedes, and returns where, which endSized wants to know.
func (e *encoder) sized() (at int) {
	e.uint32(0)
	return len(e.buf)
}

func (e *encoder) endSized(at int) {
	binary.BigEndian.PutUint32(e.buf[at-4:], uint32(len(e.buf)-at))
}

func (e *encoder) properties(msg *amqp.Publishing) {
	at := len(e.buf)
	e.uint16(0)
	flags := e.text(hasContentType, "content type", msg.ContentType) | e.text(hasContentEncoding, "content encoding", msg.ContentEncoding)
	if len(msg.Headers) > 0 {
		flags |= hasHeaders
		e.table(msg.Headers, "", 0)
	}
	flags |= e.octet(hasDeliveryMode, msg.DeliveryMode) | e.octet(hasPriority, msg.Priority)
	flags |= e.text(hasCorrelationID, "correlation id", msg.CorrelationId)
	flags |= e.text(hasReplyTo, "reply-to", msg.ReplyTo)
	flags |= e.text(hasExpiration, "expiration", msg.Expiration)
	flags |= e.text(hasMessageID, "message id", msg.MessageId)
	if !msg.Timestamp.IsZero() {
		flags |= hasTimestamp
		e.uint64(uint64(msg.Timestamp.Unix()))
	}
	flags |= e.text(hasType, "type", msg.Type) | e.text(hasUserID, "user id", msg.UserId)
	flags |= e.text(hasAppID, "app id", msg.AppId)
	binary.BigEndian.PutUint16(e.buf[at:], flags)
}

// text appends a property unless it is empty, and returns its flag if it did.
func (e *encoder) text(flag uint16, name, value string) uint16 {
	if value == "" {
		return 0
	}
	e.short(name, value)
	return flag
}

// octet does so with a number.
func (e *encoder) octet(flag uint16, value uint8) uint16 {
	if value == 0 {
		return 0
	}
	e.buf = append(e.buf, value)
	return flag
}

func (e *encoder) short(name, value string) {
	if len(value) > shortStringMax {
		e.refuse(name, "has %d bytes; at most %d fit an AMQP short string", len(value), shortStringMax)
		return
	}
	e.buf = append(e.buf, byte(len(value)))
	e.buf = append(e.buf, value...)
}

func (e *encoder) long(kind byte, value string) {
	e.buf = append(e.buf, kind)
	e.uint32(uint32(len(value)))
	e.buf = append(e.buf, value...)
}

// table appends the headers, or a table in them; path leads to it.
func (e *encoder) table(table amqp.Table, path string, depth int) {
	if depth == 0 && len(table) > headersMax {
		e.refuse("headers", "are %d; the client library takes %d", len(table), headersMax)
	}
	if !e.fits(len(table), path, depth) {
		return
	}
	at := e.sized()
	for key, value := range table {
		e.short("a header's name", key)
		name := key
		if path != "" {
			name = path + "." + key
		}
		e.field(value, name, depth)
		if e.err != nil {
			return
		}
	}
	e.endSized(at)
}

func (e *encoder) array(list []any, path string, depth int) {
	if !e.fits(len(list), path, depth) {
		return
	}
	at := e.sized()
	for _, value := range list {
		e.field(value, path, depth)
		if e.err != nil {
			return
		}
	}
	e.endSized(at)
}

// fits refuses a table or list that is too deep or too large.
func (e *encoder) fits(entries int, path string, depth int) bool {
	if depth > tableDepthMax {
		e.refuseHeader(path, "is nested more than %d deep", tableDepthMax)
	}
	if entries > entriesMax {
		e.refuseHeader(path, "has %d entries; the client library takes %d", entries, entriesMax)
	}
	return e.err == nil
}

// field appends a header's value as the library reads it back: the Go types are the library's own.
func (e *encoder) field(value any, name string, depth int) {
	switch v := value.(type) {
	case nil:
		e.buf = append(e.buf, 'V')
	case string:
		e.long('S', v)
	case []byte:
		e.long('x', string(v))
	case amqp.Table:
		e.buf = append(e.buf, 'F')
		e.table(v, name, depth+1)
	case []any:
		e.buf = append(e.buf, 'A')
		e.array(v, name, depth+1)
	case bool:
		e.bool(v)
	case time.Time:
		e.buf = append(e.buf, 'T')
		e.uint64(uint64(v.Unix()))
	default:
		e.number(value, name)
	}
}

func (e *encoder) bool(v bool) {
	if v {
		e.buf = append(e.buf, 't', 1)
		return
	}
	e.buf = append(e.buf, 't', 0)
}

func (e *encoder) number(value any, name string) {
	switch v := value.(type) {
	case byte:
		e.buf = append(e.buf, 'B', v)
	case int8:
		e.buf = append(e.buf, 'b', byte(v))
	case int16:
		e.buf = append(e.buf, 's')
		e.uint16(uint16(v))
	case uint16:
		e.buf = append(e.buf, 'u')
		e.uint16(v)
	case int32:
		e.buf = append(e.buf, 'I')
		e.uint32(uint32(v))
	case int:
		if v < math.MinInt32 || v > math.MaxInt32 {
			e.refuseHeader(name, "is a Go int outside 32 bits, which would be cut off; use int64")
			return
		}
		e.buf = append(e.buf, 'I')
		e.uint32(uint32(v))
	case uint32:
		e.buf = append(e.buf, 'i')
		e.uint32(v)
	case int64:
		e.buf = append(e.buf, 'l')
		e.uint64(uint64(v))
	case float32:
		e.finite(float64(v), name)
		e.buf = append(e.buf, 'f')
		e.uint32(math.Float32bits(v))
	case float64:
		e.finite(v, name)
		e.buf = append(e.buf, 'd')
		e.uint64(math.Float64bits(v))
	case amqp.Decimal:
		e.buf = append(e.buf, 'D', v.Scale)
		e.uint32(uint32(v.Value))
	default:
		e.refuseHeader(name, "has the Go type %T, which AMQP cannot carry", value)
	}
}

// finite refuses a number that the broker cannot read: it would close the connection with an internal error.
func (e *encoder) finite(f float64, name string) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		e.refuseHeader(name, "is infinite or no number (NaN), which RabbitMQ cannot read")
	}
}

func (e *encoder) uint16(v uint16) { e.buf = binary.BigEndian.AppendUint16(e.buf, v) }
func (e *encoder) uint32(v uint32) { e.buf = binary.BigEndian.AppendUint32(e.buf, v) }
func (e *encoder) uint64(v uint64) { e.buf = binary.BigEndian.AppendUint64(e.buf, v) }

func (e *encoder) refuse(field, format string, args ...any) {
	if e.err == nil {
		e.err = &RefusedError{field, fmt.Sprintf(format, args...)}
	}
}

func (e *encoder) refuseHeader(name, format string, args ...any) {
	e.refuse("header "+strconv.Quote(name), format, args...)
}
