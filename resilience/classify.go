package resilience

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"syscall"

	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/failsafe-go/failsafe-go/timeout"
)

// Classifier names the class of an error, or ClassNone when it does not know it. It must be safe for
// concurrent use and must not keep the error.
type Classifier func(err error) Class

// Classify returns the class of err by the error alone; nil is ClassNone.
//
// The outermost mark ([Permanent], [RetryAfter], [Unavailable]) decides, then the type of the error:
// contexts, policies, HTTP status, SQLSTATE, AMQP code, network, in this order. What nothing knows is
// ClassUnknown. A bare context.Canceled says only that somebody cancelled: [ClassifyIn] knows who.
func Classify(err error) Class { return With()(err) }

// With returns a Classifier that lets the given ones answer before the built-in rules do, in their order.
// Marks that the failing code itself has set still come first: nobody knows better.
func With(first ...Classifier) Classifier {
	return func(err error) Class {
		if err == nil {
			return ClassNone
		}
		if marked, ok := errors.AsType[*markedError](err); ok {
			return marked.class
		}
		for _, classify := range first {
			if class := classify(err); class != ClassNone {
				return class
			}
		}
		return builtin(err)
	}
}

// ClassifyIn is Classify for work that ran under ctx: it tells our own timeout, the caller's cancellation
// and a shutdown apart. A shutdown wins over every mark, because a handler that was interrupted by it may
// well have marked the interruption as permanent, and a message must not be dead-lettered for that.
//
// classify may be nil, for Classify.
func ClassifyIn(ctx context.Context, classify Classifier, err error) Class {
	if err == nil {
		return ClassNone
	}
	interrupted := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if interrupted && errors.Is(context.Cause(ctx), ErrShutdown) {
		return ClassShutdown
	}
	if classify == nil {
		classify = Classify
	}
	return classify(err)
}

// builtin asks the rules in their order.
func builtin(err error) Class {
	rules := []Classifier{byContext, byPolicy, byStatus, bySQLState, byAMQP, byNetwork}
	for _, rule := range rules {
		if class := rule(err); class != ClassNone {
			return class
		}
	}
	return ClassUnknown
}

// byContext knows the ends of contexts. context.DeadlineExceeded is also a net.Error, hence first.
func byContext(err error) Class {
	switch {
	case errors.Is(err, ErrShutdown):
		return ClassShutdown
	case errors.Is(err, context.Canceled):
		return ClassCancelled
	case errors.Is(err, context.DeadlineExceeded):
		return ClassTimeout
	}
	return ClassNone
}

// byPolicy knows the refusals of the policies that guard a call: it was never made.
func byPolicy(err error) Class {
	switch {
	case errors.Is(err, circuitbreaker.ErrOpen):
		return ClassUnavailable
	case errors.Is(err, timeout.ErrExceeded):
		return ClassTimeout
	case errors.Is(err, bulkhead.ErrFull), errors.Is(err, ratelimiter.ErrExceeded):
		return ClassTransient
	}
	return ClassNone
}

// byNetwork knows connections that could not be made or broke. That is transient, not ClassUnavailable:
// one refused call does not prove that a dependency is away, its circuit breaker does.
func byNetwork(err error) Class {
	for _, broken := range []error{
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.EHOSTUNREACH,
		syscall.ENETUNREACH, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed,
	} {
		if errors.Is(err, broken) {
			return ClassTransient
		}
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return byDNS(dns)
	}
	if timed, ok := errors.AsType[net.Error](err); ok && timed.Timeout() {
		return ClassTimeout
	}
	if call, ok := errors.AsType[*url.Error](err); ok && errors.Is(call, io.EOF) {
		return ClassTransient // the server closed a kept-alive connection under the request
	}
	return ClassNone
}

// IsNetwork tells whether err is a connection that could not be made, broke, or did not answer in time; unlike
// for Classify, a host that does not exist counts.
func IsNetwork(err error) bool {
	_, dns := errors.AsType[*net.DNSError](err)
	return dns || byNetwork(err) != ClassNone
}

// byDNS tells a resolver that could not answer from one that answered that there is no such name.
func byDNS(err *net.DNSError) Class {
	if err.IsNotFound && !err.IsTemporary {
		return ClassNone
	}
	return ClassTransient
}
