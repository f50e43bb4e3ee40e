package rabbit

import (
	"errors"
	"fmt"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"
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
	_, refused := errors.AsType[*RefusedError](err)
	return refused
}

// limits are what a connection accepts.
type limits struct {
	// FrameMax is the negotiated frame size in bytes, which must hold all properties and headers; 0 is unlimited.
	FrameMax int
	// MaxMessageBytes bounds the body; 0 is unlimited.
	MaxMessageBytes int
	// User must equal a message's user id when that is set; the broker closes the channel otherwise. Empty: not checked.
	User string
}

// check finds what encodes well and would make the broker close the channel all the same.
func (l limits) check(e *encoder, msg *amqp.Publishing) {
	if l.MaxMessageBytes > 0 && len(msg.Body) > l.MaxMessageBytes {
		e.refuse("body", "has %d bytes; the broker's limit is %d", len(msg.Body), l.MaxMessageBytes)
	}
	if msg.Expiration != "" {
		if _, err := strconv.ParseUint(msg.Expiration, 10, 32); err != nil {
			e.refuse("expiration", "is not a whole number of milliseconds below 2^32")
		}
	}
	if l.User != "" && msg.UserId != "" && msg.UserId != l.User {
		e.refuse("user id", "differs from the connection's user; the broker would close the channel")
	}
	for _, name := range [...]string{"CC", "BCC"} {
		if value, has := msg.Headers[name]; has && !isStringArray(value) {
			e.refuseHeader(name, "must be an array of strings; the broker would close the channel")
		}
	}
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
