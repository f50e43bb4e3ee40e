package policy

import (
	"fmt"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/resilience"
)

// Effect is what a failed call may have done at the dependency. An error that knows better says so by a method Effect() Effect.
type Effect string

const (
	// EffectNone says that nothing reached the dependency, or it said that it did nothing.
	EffectNone Effect = "none"
	// EffectUnknown says that at least one attempt may have had its effect. Ask the dependency, or call again with the same
	// idempotency key; it is neither a success nor a failure.
	EffectUnknown Effect = "unknown"
	// EffectAnswered says that the dependency has decided against it.
	EffectAnswered Effect = "answered"
)

// Error is what [Policy.Do] returns for a call that did not succeed. errors.Is and errors.As find in it what the function
// returned, and [resilience.ErrDeadline], [resilience.ErrTimeout], [resilience.ErrCancelled] or [resilience.ErrShutdown]
// where that ended it; [resilience.Classify] sees through it.
type Error struct {
	// Dependency that was called.
	Dependency string
	// Class of Err.
	Class resilience.Class
	// Effect that the call may have had.
	Effect Effect
	// Attempts that were made, oldest first; none when the call was refused.
	Attempts []resilience.Attempt
	// After is when another call makes sense, as far as that is known: the open circuit's time, Retry-After. 0: it is not.
	After time.Duration
	// Err is the last failure.
	Err error

	code resilience.Code
}

// Error names the dependency, the failure and the attempts.
func (e *Error) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "call %s: %s", e.Dependency, e.Err)
	switch len(e.Attempts) {
	case 0:
		text.WriteString(" (not called)")
	case 1:
	default:
		fmt.Fprintf(&text, " (%d attempts)", len(e.Attempts))
	}
	return text.String()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Code is the stable name of the failure for whoever called this service.
func (e *Error) Code() resilience.Code { return e.code }

// RetryAfter returns After.
func (e *Error) RetryAfter() time.Duration { return e.After }

// Called tells whether any attempt was made.
func (e *Error) Called() bool { return len(e.Attempts) > 0 }
