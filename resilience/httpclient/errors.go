package httpclient

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/surefoot-mq/surefoot/resilience"
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

// pending says whether the server does not know yet what became of a request with this key: the one 409 that is worth another try.
func (e *ResponseError) pending() bool {
	var problem struct {
		Code resilience.Code `json:"code"`
	}
	return e.Status == http.StatusConflict && json.Unmarshal(e.Body, &problem) == nil && problem.Code == resilience.CodeIdempotencyPending
}

// PendingError is a 409 with the code IDEMPOTENCY_PENDING: an earlier try with the same key is still under way, or its outcome is unknown. It is
// transient, and as long as it is the answer nobody knows whether the request has had its effect.
type PendingError struct{ *ResponseError }

// Unwrap returns the answer.
func (e *PendingError) Unwrap() error { return e.ResponseError }

// Effect says that the request may have had one.
func (e *PendingError) Effect() policy.Effect { return policy.EffectUnknown }

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
