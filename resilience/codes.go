package resilience

import (
	"context"
	"errors"
	"net/http"

	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/failsafe-go/failsafe-go/timeout"
)

// Code is the stable name of a failure in answers over HTTP: programs decide by it, so it never changes. An error
// carries one by a method Code() Code; see [CodeOf].
type Code string

// The codes and their HTTP status. Every 429, 503 and 409 CodeIdempotencyPending carries Retry-After.
const (
	// CodeNone is the code of a nil error.
	CodeNone Code = ""
	// CodeInternal (500) is what nothing else names. The answer has the request id and nothing of the error.
	CodeInternal Code = "INTERNAL_ERROR"

	// CodeDependencyUnavailable (503): a dependency timed out, refused, answered 429 or 503, or its circuit is open, and
	// then Retry-After is the open time that is left.
	CodeDependencyUnavailable Code = "DEPENDENCY_UNAVAILABLE"
	// CodeDependencyError (502): a dependency answered with something that was not to be expected.
	CodeDependencyError Code = "DEPENDENCY_ERROR"
	// CodeDependencyOverloaded (503): too many calls to a dependency are under way, of this tenant or of all.
	CodeDependencyOverloaded Code = "DEPENDENCY_OVERLOADED"
	// CodeDeadlineExceeded (504): the time that the caller gave, or the server's own limit, ran out.
	CodeDeadlineExceeded Code = "DEADLINE_EXCEEDED"

	// CodeRateLimited (429): this client sends too much. Nothing was done.
	CodeRateLimited Code = "RATE_LIMITED"
	// CodeOverloaded (503): this server has too many requests in hand, or is stopping. Nothing was done.
	CodeOverloaded Code = "SERVER_OVERLOADED"

	// CodeInvalidRequest (400): the request cannot be understood. Sending it again changes nothing.
	CodeInvalidRequest Code = "INVALID_REQUEST"
	// CodeRequestTooLarge (413): the body is over the limit.
	CodeRequestTooLarge Code = "REQUEST_TOO_LARGE"
	// CodeNotFound (404): there is no such resource. Only a handler knows that.
	CodeNotFound Code = "NOT_FOUND"
	// CodeNoRoute (404): the server has no such path, and knows nothing of any resource. Somebody asks in the wrong place.
	CodeNoRoute Code = "NO_ROUTE"
	// CodeMethodNotAllowed (405): the resource is there and does not take this method.
	CodeMethodNotAllowed Code = "METHOD_NOT_ALLOWED"

	// CodeIdempotencyKeyMissing (400): the operation needs an Idempotency-Key.
	CodeIdempotencyKeyMissing Code = "IDEMPOTENCY_KEY_MISSING"
	// CodeIdempotencyKeyReused (422): the Idempotency-Key was used for another request. Nothing was done.
	CodeIdempotencyKeyReused Code = "IDEMPOTENCY_KEY_REUSED"
	// CodeIdempotencyPending (409): what became of the request with this key is not known yet, because it is still being
	// handled or a commit was not answered. Send it again, with the same key, after Retry-After: it is the one 409 to retry.
	CodeIdempotencyPending Code = "IDEMPOTENCY_PENDING"
)

// statuses of the codes that are not 500.
var statuses = map[Code]int{
	CodeDependencyUnavailable: http.StatusServiceUnavailable,
	CodeDependencyError:       http.StatusBadGateway,
	CodeDependencyOverloaded:  http.StatusServiceUnavailable,
	CodeDeadlineExceeded:      http.StatusGatewayTimeout,
	CodeRateLimited:           http.StatusTooManyRequests,
	CodeOverloaded:            http.StatusServiceUnavailable,
	CodeInvalidRequest:        http.StatusBadRequest,
	CodeRequestTooLarge:       http.StatusRequestEntityTooLarge,
	CodeNotFound:              http.StatusNotFound,
	CodeNoRoute:               http.StatusNotFound,
	CodeMethodNotAllowed:      http.StatusMethodNotAllowed,
	CodeIdempotencyKeyMissing: http.StatusBadRequest,
	CodeIdempotencyKeyReused:  http.StatusUnprocessableEntity,
	CodeIdempotencyPending:    http.StatusConflict,
}

// Status is the HTTP status that goes with the code; 500 for [CodeInternal] and for codes that are not listed here.
func (c Code) Status() int {
	if status, ok := statuses[c]; ok {
		return status
	}
	return http.StatusInternalServerError
}

// CodeOf returns the code of an error that kept a server from answering: what the error says by a method Code() Code,
// else what its class means. What nothing knows is [CodeInternal]; nil is [CodeNone].
//
// A timeout is one of a dependency, unless the time of the request itself ran out, which only its context tells: see
// [CodeIn].
func CodeOf(err error) Code {
	if err == nil {
		return CodeNone
	}
	if with, ok := errors.AsType[interface {
		error
		Code() Code
	}](err); ok {
		return with.Code()
	}
	switch {
	case isTooLarge(err):
		return CodeRequestTooLarge
	case errors.Is(err, bulkhead.ErrFull):
		return CodeDependencyOverloaded
	case errors.Is(err, circuitbreaker.ErrOpen), errors.Is(err, timeout.ErrExceeded), errors.Is(err, ratelimiter.ErrExceeded):
		return CodeDependencyUnavailable
	case StatusOf(err) != 0:
		return codeOfStatus(StatusOf(err))
	}
	return codeOfClass(Classify(err), err)
}

// CodeIn is [CodeOf] for a request that ran under ctx.
func CodeIn(ctx context.Context, err error) Code {
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && ClassifyIn(ctx, nil, err).interrupted() {
		return CodeDeadlineExceeded
	}
	return CodeOf(err)
}

func (c Class) interrupted() bool { return c == ClassTimeout || c == ClassCancelled }

func isTooLarge(err error) bool {
	_, ok := errors.AsType[*http.MaxBytesError](err)
	return ok
}

// codeOfStatus judges a dependency's answer.
func codeOfStatus(status int) Code {
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return CodeDependencyUnavailable
	}
	return CodeDependencyError
}

func codeOfClass(class Class, err error) Code {
	switch class {
	case ClassShutdown:
		return CodeOverloaded
	case ClassTimeout, ClassUnavailable, ClassDatabaseRetry, ClassTransient:
		return CodeDependencyUnavailable
	case ClassUnknown:
		if IsNetwork(err) { // a host without a name
			return CodeDependencyUnavailable
		}
	case ClassNone, ClassPermanent, ClassCancelled:
	}
	return CodeInternal
}
