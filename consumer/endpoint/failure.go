package endpoint

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/internal/escape"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// Error is an answer that does not say done.
type Error struct {
	err    error
	status int
	body   string
	after  time.Duration
}

func failed(err error, status int, body []byte) *Error {
	return &Error{err: err, status: status, body: escape.Block(string(body[:min(len(body), message.MaxErrorStack)]), message.MaxErrorStack-len("..."))}
}

// Error implements error. It quotes nothing of the answer, which may hold parts of the message.
func (e *Error) Error() string { return "endpoint: " + e.err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// StatusCode of the answer.
func (e *Error) StatusCode() int { return e.status }

// RetryAfter is what the endpoint asked for; 0: nothing, so that the queue's own delays count.
func (e *Error) RetryAfter() time.Duration { return e.after }

// FailureType names the kind of failure in the failure record: "http 503".
func (e *Error) FailureType() string { return "http " + strconv.Itoa(e.status) }

// FailureStack is the beginning of the answer's body, escaped.
func (e *Error) FailureStack() string { return e.body }

// GiveUp ends the tries at the second 5xx that is no 503: it is the endpoint's own fault, and the first may have had its effect.
func (e *Error) GiveUp(earlier []message.Attempt) bool {
	if !fault(e.FailureType()) {
		return false
	}
	for _, before := range earlier {
		if fault(before.Type) {
			return true
		}
	}
	return false
}

func fault(failureType string) bool {
	status, err := strconv.Atoi(strings.TrimPrefix(failureType, "http "))
	return err == nil && strings.HasPrefix(failureType, "http ") && status >= http.StatusInternalServerError && status != http.StatusServiceUnavailable
}

// refused says what a call without a success means for the message.
func (e *Endpoint) refused(err error) ([]message.Message, error) {
	guard, _ := errors.AsType[*policy.Error](err)
	if guard != nil && !guard.Called() && guard.Class == resilience.ClassTransient {
		return nil, resilience.Unavailable(err) // no place was free: the endpoint never saw the message
	}
	answered, ok := errors.AsType[*httpclient.ResponseError](err)
	if !ok {
		return nil, err
	}
	_, pending := errors.AsType[*httpclient.PendingError](err)
	if answered.Status == http.StatusConflict && !pending {
		return e.events(answered.Status, answered.Header, answered.Body)
	}
	f := failed(err, answered.Status, answered.Body)
	switch {
	case answered.Header.Get("Retry-After") != "":
		f.after = resilience.RetryAfterOf(answered.Header, time.Now())
	case guard != nil && guard.Class == resilience.ClassUnavailable:
		f.after = guard.After
	}
	return nil, f
}
