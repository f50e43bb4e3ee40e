package resilience

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	amqp "github.com/rabbitmq/amqp091-go"
)

// StatusError is an HTTP response that was not a success. Other libraries' errors are understood too when
// they have a method StatusCode() int or HTTPStatusCode() int.
type StatusError struct {
	// Status is the response's status code.
	Status int
	// After is what the response's Retry-After asked for; 0 is nothing.
	After time.Duration
	// Err says more about the response; nil is allowed.
	Err error
}

// Error gives the status and, when there is one, the error.
func (e *StatusError) Error() string {
	text := fmt.Sprintf("http status %d %s", e.Status, http.StatusText(e.Status))
	if e.Err != nil {
		return text + ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns Err.
func (e *StatusError) Unwrap() error { return e.Err }

// StatusCode returns Status.
func (e *StatusError) StatusCode() int { return e.Status }

// RetryAfter returns After.
func (e *StatusError) RetryAfter() time.Duration { return e.After }

// byStatus knows HTTP. 500 stays unknown: it may be a fault in the request that the server did not catch,
// and callers that retry it do so once at most.
func byStatus(err error) Class {
	status := StatusOf(err)
	switch {
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests,
		status == http.StatusBadGateway, status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout:
		return ClassTransient
	case status >= 400 && status < 500:
		return ClassPermanent
	case status != 0:
		return ClassUnknown
	}
	return ClassNone
}

// StatusOf returns the HTTP status that err carries, of a [StatusError] or any error with a method StatusCode() int or
// HTTPStatusCode() int; 0 is none.
func StatusOf(err error) int {
	if with, ok := errors.AsType[interface {
		error
		StatusCode() int
	}](err); ok {
		return with.StatusCode()
	}
	if with, ok := errors.AsType[interface {
		error
		HTTPStatusCode() int
	}](err); ok {
		return with.HTTPStatusCode()
	}
	return 0
}

// SQLStateOf returns the SQLSTATE that err carries, of pgx or any other driver that has a method
// SQLState() string; "" is none.
func SQLStateOf(err error) string {
	if with, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return with.SQLState()
	}
	return ""
}

// bySQLState knows PostgreSQL. Data exceptions and broken constraints stay unknown: the row that a foreign
// key misses may arrive with the next event.
func bySQLState(err error) Class {
	state := SQLStateOf(err)
	switch state {
	case "40P01", "40001": // deadlock, serialisation failure
		return ClassDatabaseRetry
	case "55P03", "40003", "53200": // lock not available, completion unknown, out of memory
		return ClassTransient
	case "57014": // cancelled by statement_timeout: our own cancellation ends in a context error
		return ClassTimeout
	case "57P01", "57P02", "57P03", "57P05", // shutdown, crash, cannot connect now, idle session
		"25006",          // read-only: a standby, in the middle of a failover
		"53100", "53300": // disk full, too many connections
		return ClassUnavailable
	}
	if strings.HasPrefix(state, "08") { // connection exceptions
		return ClassUnavailable
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok && state == "" {
		return ClassUnavailable
	}
	return ClassNone
}

// byAMQP knows the broker's codes. A missing exchange or queue is transient: the topology may be applied
// seconds after the first publish. Refused access stays unknown, because an operator can grant it.
func byAMQP(err error) Class {
	refusal, ok := errors.AsType[*amqp.Error](err)
	if !ok {
		return ClassNone
	}
	switch refusal.Code {
	case amqp.ContentTooLarge, amqp.PreconditionFailed, amqp.SyntaxError, amqp.CommandInvalid,
		amqp.NotAllowed, amqp.NotImplemented:
		return ClassPermanent
	case amqp.NoRoute, amqp.NoConsumers, amqp.NotFound, amqp.ResourceLocked, amqp.ResourceError:
		return ClassTransient
	case amqp.ConnectionForced, amqp.FrameError, amqp.ChannelError, amqp.UnexpectedFrame, amqp.InternalError:
		return ClassUnavailable
	}
	return ClassUnknown
}
