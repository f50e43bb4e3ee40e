package resilience

import (
	"errors"
	"time"
)

// ErrShutdown is the cause with which a component cancels the contexts of work in flight when the process
// stops (context.WithCancelCause). It is how a shutdown is told from a cancellation by the caller.
var ErrShutdown = errors.New("shutting down")

// Permanent marks err as one that will not go away by trying again: the message that met it is
// dead-lettered on the first try. A nil err stays nil.
func Permanent(err error) error { return mark(err, ClassPermanent, 0) }

// RetryAfter marks err as transient and asks for the next try not before d from now. The wait is rounded
// up to what the retry ladder offers; zero and less ask for nothing. A nil err stays nil.
func RetryAfter(err error, d time.Duration) error { return mark(err, ClassTransient, max(d, 0)) }

// Unavailable marks err as the absence of a dependency: the work waits and no attempt is counted. A nil
// err stays nil.
func Unavailable(err error) error { return mark(err, ClassUnavailable, 0) }

// DelayOf returns the wait that err asks for: by [RetryAfter], or by an error that has a method
// RetryAfter() time.Duration, such as [StatusError]. It is false when none is asked for.
func DelayOf(err error) (time.Duration, bool) {
	asks, ok := errors.AsType[interface {
		error
		RetryAfter() time.Duration
	}](err)
	if !ok {
		return 0, false
	}
	if wait := asks.RetryAfter(); wait > 0 {
		return wait, true
	}
	if marked, ok := asks.(*markedError); ok {
		return DelayOf(marked.err) // a mark that asks for nothing does not hide an error that does
	}
	return 0, false
}

// markedError is an error with a class given by whoever returned it. Its text is that of the error alone,
// so that marking never changes what is logged or fingerprinted.
type markedError struct {
	err   error
	class Class
	after time.Duration
}

func mark(err error, class Class, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &markedError{err: err, class: class, after: after}
}

func (e *markedError) Error() string             { return e.err.Error() }
func (e *markedError) Unwrap() error             { return e.err }
func (e *markedError) RetryAfter() time.Duration { return e.after }
