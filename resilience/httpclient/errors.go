package httpclient

import (
	"fmt"
	"net/http"
	"time"

	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// ResponseError is an answer with a status of 400 or more.
type ResponseError struct {
	// Method and Target of the request; the target has no query.
	Method, Target string
	// Status, Header and Body of the answer. Of the body at most 64 KiB are kept; it is the server's, and hostile.
	Status int
	Header http.Header
	Body   []byte
	// After is how long the server asks to wait: Retry-After, and 1 s where a 429 or 503 does not say. 0: it does not ask.
	After time.Duration
}

// Error gives the request and the status, and nothing of the body.
func (e *ResponseError) Error() string {
	return fmt.Sprintf("%s %s: http status %d %s", e.Method, e.Target, e.Status, http.StatusText(e.Status))
}

// StatusCode returns Status.
func (e *ResponseError) StatusCode() int { return e.Status }

// RetryAfter returns After.
func (e *ResponseError) RetryAfter() time.Duration { return e.After }

// TooLargeError is a success whose body is over the limit: what it says is lost, and trying again would not help.
type TooLargeError struct {
	Target string
	Status int
	Limit  int64
}

// Error names the limit.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the answer of %s (http status %d) is over %d bytes; raise MaxBody if that is right", e.Target, e.Status, e.Limit)
}

// Effect says that the request has most probably had one.
func (e *TooLargeError) Effect() policy.Effect { return policy.EffectUnknown }
