package httpserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// Problem is why a request was not done, as the client is told (RFC 9457). It is an error: a handler returns it, and
// [Error] sends it.
type Problem struct { //nolint:errname // the word of RFC 9457
	// Code is for programs. Required.
	Code resilience.Code
	// Status of the answer. Default: that of the code; a code of your own needs one.
	Status int
	// Detail is for people, and sent as it is: nothing internal, nothing of other callers. Default: what the code means.
	Detail string
	// RetryAfter is sent rounded up to whole seconds, at least 1. 0 sends none, or 1 where the code asks to try again.
	RetryAfter time.Duration
	// Members are added to the JSON object; they cannot replace the members that every problem has.
	Members map[string]any
	// Err is the cause. It is logged and never sent.
	Err error
}

// Error is for the log: the code and the cause.
func (p *Problem) Error() string {
	switch {
	case p.Err != nil:
		return fmt.Sprintf("%s: %v", p.Code, p.Err)
	case p.Detail != "":
		return fmt.Sprintf("%s: %s", p.Code, p.Detail)
	}
	return string(p.Code)
}

// Unwrap returns Err.
func (p *Problem) Unwrap() error { return p.Err }

// details are what codes mean, and what to do.
var details = map[resilience.Code]string{
	resilience.CodeInternal:              "Something went wrong here. Report the requestId.",
	resilience.CodeDependencyUnavailable: "A service that is needed for this does not answer. Try again later.",
	resilience.CodeDependencyError:       "A service that is needed for this gave a wrong answer. Report the requestId.",
	resilience.CodeDependencyOverloaded:  "A service that is needed for this has too much to do. Try again later.",
	resilience.CodeDeadlineExceeded:      "The time for this request ran out. Its outcome is not known; ask before it is repeated, or send the same Idempotency-Key.",
	resilience.CodeRateLimited:           "Too many requests from this client; nothing was done. Try again later.",
	resilience.CodeOverloaded:            "Too many requests at the moment; nothing was done. Try again later.",
	resilience.CodeInvalidRequest:        "The request is not valid.",
	resilience.CodeRequestTooLarge:       "The body of the request is too large.",
	resilience.CodeNotFound:              "There is nothing here.",
	resilience.CodeNoRoute:               "This server has no such path.",
	resilience.CodeMethodNotAllowed:      "This method is not allowed here; see Allow.",
	resilience.CodeIdempotencyKeyMissing: "This request needs an Idempotency-Key: 1 to 255 characters, a new one for each operation, the same for each try of it.",
	resilience.CodeIdempotencyKeyReused:  "The Idempotency-Key was used for another request; nothing was done. Use a new key.",
	resilience.CodeIdempotencyPending:    "What became of this request is not known yet. Send it again with the same Idempotency-Key.",
}

// ProblemOf returns what a client is told about err, which kept a handler that ran under ctx from answering: the [*Problem]
// in err, else one with [resilience.CodeIn] and the wait that err asks for. It is nil for nil.
func ProblemOf(ctx context.Context, err error) *Problem {
	if err == nil {
		return nil
	}
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	wait, _ := resilience.DelayOf(err)
	return &Problem{Code: resilience.CodeIn(ctx, err), RetryAfter: wait, Err: err}
}

// status is the one to send.
func (p *Problem) status() int {
	if p.Status >= 400 && p.Status <= 599 {
		return p.Status
	}
	return p.Code.Status()
}

// retryAfter is the number of seconds to send; 0 is none.
func (p *Problem) retryAfter() int64 {
	if p.RetryAfter > 0 {
		return wholeSeconds(p.RetryAfter)
	}
	status := p.status()
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable || p.Code == resilience.CodeIdempotencyPending {
		return 1
	}
	return 0
}

// wholeSeconds rounds up: whoever comes sooner is refused again.
func wholeSeconds(d time.Duration) int64 {
	return max(int64((d-1)/time.Second)+1, 1)
}

// write sends the problem in place of whatever a handler had prepared.
func (p *Problem) write(w http.ResponseWriter, requestID string) {
	header, status := w.Header(), p.status()
	for _, of := range []string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified"} {
		header.Del(of) // they described another body
	}
	header.Set("Content-Type", "application/problem+json")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	if seconds := p.retryAfter(); seconds > 0 {
		header.Set("Retry-After", strconv.FormatInt(seconds, 10))
	}
	w.WriteHeader(status)
	_, _ = w.Write(p.body(status, requestID)) // the client is gone: there is nobody to tell
}

// body is the JSON object. Its type is "about:blank", which RFC 9457 lets be left out: the code says what happened.
func (p *Problem) body(status int, requestID string) []byte {
	members := make(map[string]any, len(p.Members)+5)
	maps.Copy(members, p.Members)
	members["title"], members["status"], members["code"] = http.StatusText(status), status, p.Code
	if detail := cmp.Or(p.Detail, details[p.Code]); detail != "" {
		members["detail"] = detail
	}
	if requestID != "" {
		members["requestId"] = requestID
	}
	body, err := json.Marshal(members)
	if err != nil { // a member that is no JSON
		return (&Problem{Code: p.Code, Detail: p.Detail}).body(status, requestID)
	}
	return append(body, '\n')
}

// Error answers a request with the problem that err is to its client, and leaves err for the server's log. When a part of an
// answer has been sent already, the connection is cut instead, so that nobody takes that part for the whole.
func Error(w http.ResponseWriter, r *http.Request, err error) {
	p := ProblemOf(r.Context(), err)
	if p == nil {
		p = &Problem{Code: resilience.CodeInternal, Err: errors.New("httpserver.Error called without an error")}
	}
	if x := exchangeOf(r.Context()); x != nil {
		x.problem = p
		if x.status != 0 {
			panic(http.ErrAbortHandler)
		}
	}
	p.write(w, message.RequestIDFrom(r.Context()))
}

// Handler is a handler that returns why it did not answer. It writes nothing when it returns an error.
type Handler func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP implements [http.Handler]: an error is answered by [Error].
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		Error(w, r, err)
	}
}
