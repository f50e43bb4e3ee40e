package rabbit

import (
	"errors"
	"fmt"
	"io"

	amqp "github.com/rabbitmq/amqp091-go"
)

// bodyAhead bounds what is set aside for a body before its bytes are there: its size is only what the broker says.
const bodyAhead = 1 << 20

// errTooMany says that the broker does not keep to the prefetch, so that nobody waits for what it sends.
var errTooMany = errors.New("rabbit: the broker delivered more than the prefetch")

// stream puts together the deliveries of one channel. The library would read each field from the socket by itself, with an allocation, and
// pass each message through three goroutines; here a delivery costs a few allocations and is handed on at once. For the reading goroutine.
type stream struct {
	deliver func(*amqp.Delivery) error // must not block
	waiting func() int                 // how many nobody has taken yet
	most    int                        // the largest payload of a frame; 0: no limit

	now  *amqp.Delivery // the one that is coming; nil: none is
	head bool           // its header is next
	left uint64         // bytes of its body to come

	// Most deliveries have these in common with the one before.
	tag, exchange, key string
}

// same returns last when it is text, so that text need not be kept.
func same(text string, last *string) string {
	if text != *last {
		*last = string([]byte(text)) // a copy of its own: text is a part of the whole frame
	}
	return *last
}

// method begins a delivery.
func (s *stream) method(payload string) error {
	if s.now != nil {
		return amqp.ErrUnexpectedFrame
	}
	d := decoder{text: payload}
	d.take(4) // class and method
	s.now, s.head = &amqp.Delivery{}, true
	s.now.ConsumerTag = same(d.short(), &s.tag)
	s.now.DeliveryTag = d.uint(8)
	s.now.Redelivered = d.uint(1)&1 != 0
	s.now.Exchange = same(d.short(), &s.exchange)
	s.now.RoutingKey = same(d.short(), &s.key)
	return d.err
}

// header adds the properties.
func (s *stream) header(payload string) error {
	if !s.head {
		return amqp.ErrUnexpectedFrame
	}
	d := decoder{text: payload}
	d.take(4) // class and weight
	s.head, s.left = false, d.uint(8)
	d.properties(s.now)
	if d.err != nil {
		return d.err
	}
	s.now.Body = make([]byte, 0, min(s.left, bodyAhead))
	return s.whole()
}

// body adds a part of the body.
func (s *stream) body(from io.Reader, size int) error {
	if s.now == nil || s.head || uint64(size) > s.left {
		return amqp.ErrUnexpectedFrame
	}
	at := len(s.now.Body)
	if at+size > cap(s.now.Body) {
		s.now.Body = append(s.now.Body, make([]byte, size)...)
	} else {
		s.now.Body = s.now.Body[:at+size]
	}
	if _, err := io.ReadFull(from, s.now.Body[at:]); err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	s.left -= uint64(size)
	return s.whole()
}

// whole hands the delivery on when nothing of it is missing.
func (s *stream) whole() error {
	if s.left > 0 {
		return nil
	}
	d := s.now
	s.now = nil
	return s.deliver(d)
}
