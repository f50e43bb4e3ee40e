package consumer

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// Classes of failures that only a consumer knows. They are dead letters on the first try, and stable texts like
// those of package resilience.
const (
	ClassMalformed   resilience.Class = "malformed"
	ClassUnknownType resilience.Class = "unknown-type"
	ClassPanic       resilience.Class = "panic"
	ClassCrash       resilience.Class = "crash"
	ClassNoID        resilience.Class = "no-id"
	ClassExpired     resilience.Class = "expired"
)

// MalformedError says that a payload is not what its type promises.
type MalformedError struct{ Err error }

// Error implements error.
func (e *MalformedError) Error() string { return "malformed payload: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *MalformedError) Unwrap() error { return e.Err }

// UnknownTypeError says that no handler knows a message's type.
type UnknownTypeError struct{ Type string }

// Error implements error.
func (e *UnknownTypeError) Error() string {
	return fmt.Sprintf("no handler for messages of type %q", message.Clip(e.Type, 64))
}

// PanicError is a panic of a handler.
type PanicError struct {
	// Value is the panic's value as text.
	Value string
	// Stack of the goroutine, text.
	Stack string
}

// Error implements error.
func (e *PanicError) Error() string { return "panic: " + e.Value }

func errGoexit() error { return &PanicError{Value: "the handler ended its goroutine (runtime.Goexit)"} }

// FailureStack goes into the failure record.
func (e *PanicError) FailureStack() string { return e.Stack }

// crashError says that a message ended the process again and again.
type crashError struct{ crashes int }

// Error implements error.
func (e *crashError) Error() string {
	return fmt.Sprintf("the process ended %d times while it ran this message alone", e.crashes)
}

// noIDError says that a message has no id.
type noIDError struct{}

// Error implements error.
func (noIDError) Error() string {
	return "the message has no id, so a second delivery could not be told from the first; its producer must set ID (AMQP: message_id), or the consumer AllowNoID"
}

// expiredError says that the time for a message's whole job is over.
type expiredError struct{ at time.Time }

// Error implements error.
func (e expiredError) Error() string {
	return "the message expired at " + e.at.UTC().Format(time.RFC3339) + " without being handled; redrive it to have it handled all the same"
}

// ownClass knows the errors of this package; ClassNone for all others.
func ownClass(err error) resilience.Class {
	var malformed *MalformedError
	var unknown *UnknownTypeError
	var panicked *PanicError
	var crashed *crashError
	switch {
	case errors.As(err, &panicked):
		return ClassPanic
	case errors.As(err, &malformed):
		return ClassMalformed
	case errors.As(err, &unknown):
		return ClassUnknownType
	case errors.As(err, &crashed):
		return ClassCrash
	case errors.As(err, new(noIDError)):
		return ClassNoID
	case errors.As(err, new(expiredError)):
		return ClassExpired
	}
	return resilience.ClassNone
}

// typeOf names an error by its innermost type that says something: the wrappers of fmt, errors and our marks do not.
func typeOf(err error) string {
	var named interface{ FailureType() string }
	if errors.As(err, &named) {
		return named.FailureType()
	}
	name := ""
	for ; err != nil; err = errors.Unwrap(err) {
		switch t := reflect.TypeOf(err).String(); t {
		case "*fmt.wrapError", "*fmt.wrapErrors", "*errors.joinError", "*resilience.markedError", "*consumer.databaseError":
		default:
			name = t
		}
	}
	return strings.TrimPrefix(name, "*")
}

// stackOf returns the stack or the output that an error carries.
func stackOf(err error) string {
	var with interface{ FailureStack() string }
	if errors.As(err, &with) {
		return with.FailureStack()
	}
	return ""
}
