package rabbit

import (
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// decoder reads AMQP from a text that holds the whole of what it reads, so that every string is a part of that text and costs nothing. What the
// text lacks, or has against the limits, is kept in err as the client library would call it; values are zero from there on. For one goroutine.
type decoder struct {
	text string
	err  error
}

func (d *decoder) fail() {
	d.text, d.err = "", amqp.ErrSyntax
}

// take cuts the next n bytes off the text, or fails and returns nothing.
func (d *decoder) take(n int) string {
	if n < 0 || n > len(d.text) {
		d.fail()
		return ""
	}
	taken := d.text[:n]
	d.text = d.text[n:]
	return taken
}

// uint reads an unsigned integer of n bytes.
func (d *decoder) uint(n int) (v uint64) {
	for _, b := range []byte(d.take(n)) { // the conversion of a range does not copy
		v = v<<8 | uint64(b)
	}
	return v
}

func (d *decoder) short() string { return d.take(int(d.uint(1))) }

// long reads a string of at most 2 GiB, or what is counted like one: a table or a list.
func (d *decoder) long() string { return d.take(int(d.uint(4))) }

func (d *decoder) time() time.Time { return time.Unix(int64(d.uint(8)), 0) }

// properties reads those of a content header, whose bits say which there are.
func (d *decoder) properties(to *amqp.Delivery) {
	bits := int(d.uint(2))
	text := func(bit int, to *string) {
		if bits&bit != 0 {
			*to = d.short()
		}
	}
	text(hasContentType, &to.ContentType)
	text(hasContentEncoding, &to.ContentEncoding)
	if bits&hasHeaders != 0 {
		to.Headers = d.table(d.long(), 0)
	}
	if bits&hasDeliveryMode != 0 {
		to.DeliveryMode = uint8(d.uint(1))
	}
	if bits&hasPriority != 0 {
		to.Priority = uint8(d.uint(1))
	}
	text(hasCorrelationID, &to.CorrelationId)
	text(hasReplyTo, &to.ReplyTo)
	text(hasExpiration, &to.Expiration)
	text(hasMessageID, &to.MessageId)
	if bits&hasTimestamp != 0 {
		to.Timestamp = d.time()
	}
	text(hasType, &to.Type)
	text(hasUserID, &to.UserId)
	text(hasAppID, &to.AppId)
}

// usualHeaders is how many headers most messages have at most.
const usualHeaders = 8

// table reads a table that takes up all of text.
func (d *decoder) table(text string, depth int) amqp.Table {
	in := decoder{text: text, err: d.err}
	t := make(amqp.Table, usualHeaders)
	for in.text != "" {
		key := in.short()
		value := in.field(depth)
		if t[key] = value; len(t) > entriesMax {
			in.fail()
		}
	}
	return within(d, in.err, depth, t)
}

// list reads a list that takes up all of text.
func (d *decoder) list(text string, depth int) (l []any) {
	in := decoder{text: text, err: d.err}
	for in.text != "" {
		if l = append(l, in.field(depth)); len(l) > entriesMax {
			in.fail()
		}
	}
	return within(d, in.err, depth, l)
}

// within passes on what was read inside, unless it was too deep or broken.
func within[T any](d *decoder, inner error, depth int, v T) (none T) {
	if inner != nil || depth > tableDepthMax {
		d.fail()
		return none
	}
	return v
}

// field reads a value with its type, as the client library would: signs and sizes are RabbitMQ's own, not those of the standard.
func (d *decoder) field(depth int) any {
	kind := d.take(1)
	if kind == "" || depth > tableDepthMax {
		d.fail()
		return nil
	}
	switch kind[0] {
	case 't':
		return d.uint(1) != 0
	case 'B':
		return byte(d.uint(1))
	case 'b':
		return int8(d.uint(1))
	case 's':
		return int16(d.uint(2))
	case 'u':
		return uint16(d.uint(2))
	case 'I':
		return int32(d.uint(4))
	case 'i':
		return uint32(d.uint(4))
	case 'l':
		return int64(d.uint(8))
	case 'f':
		return math.Float32frombits(uint32(d.uint(4)))
	case 'd':
		return math.Float64frombits(d.uint(8))
	case 'D':
		return amqp.Decimal{Scale: uint8(d.uint(1)), Value: int32(d.uint(4))}
	case 'S':
		return d.long()
	case 'x':
		return []byte(d.long())
	case 'T':
		return d.time()
	case 'A':
		return d.list(d.long(), depth+1)
	case 'F':
		return d.table(d.long(), depth+1)
	case 'V':
		return nil
	default:
		d.fail()
		return nil
	}
}
