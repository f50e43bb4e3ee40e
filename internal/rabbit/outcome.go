package rabbit

import (
	"errors"
	"fmt"
)

// Outcome is what became of a publish.
type Outcome uint8

// The outcomes. The zero value is Unknown, so that nothing passes for sent by mistake.
const (
	// Unknown: the broker may or may not have the message. Publish it again later; count it as neither sent nor failed.
	Unknown Outcome = iota
	// Confirmed: the broker has taken responsibility for the message, and at least one queue matched.
	Confirmed
	// Returned: no queue matched; the broker has not kept the message.
	Returned
)

// String is "unknown", "confirmed" or "returned".
func (o Outcome) String() string {
	switch o {
	case Confirmed:
		return "confirmed"
	case Returned:
		return "returned"
	case Unknown:
	}
	return "unknown"
}

// ErrNacked is the reason of an unknown outcome: a queue refused (full with reject-publish, or unavailable). Other queues may have taken their copy.
var ErrNacked = errors.New("rabbit: the broker did not accept the message (basic.nack)")

// Result is the one outcome of one accepted publish.
type Result struct {
	// Token is what the caller passed to Publish.
	Token any
	// Outcome of the publish.
	Outcome Outcome
	// Err is nil when Confirmed, a *ReturnedError when Returned; when Unknown it wraps ErrNacked, or is the end of the channel or connection
	// (wrapping *amqp.Error, ErrLost or ErrClosed).
	Err error
}

// ReturnedError says that the broker found no queue for a message.
type ReturnedError struct {
	Code                 int
	Text                 string
	Exchange, RoutingKey string
}

// Error names the route.
func (e *ReturnedError) Error() string {
	return fmt.Sprintf("rabbit: returned: no queue is bound to exchange %q for routing key %q (%d %s)", e.Exchange, e.RoutingKey, e.Code, e.Text)
}
