package httpserver

import (
	"context"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// HeaderRequestID carries the id of a request, from the client if it is valid there, else made here, into every answer.
const HeaderRequestID = "X-Request-Id"

// exchange is a request with its answer, as far as that was sent.
type exchange struct {
	http.ResponseWriter
	request *http.Request // as the handler gets it
	id      string
	status  int      // 0: no header was sent
	problem *Problem // what was answered by Error
	muted   bool     // the router's text is left out
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// requestID is the client's, when it is fit for logs and headers, else a new one.
func requestID(r *http.Request) string {
	if id := r.Header.Get(HeaderRequestID); message.ValidRequestID(id) {
		return id
	}
	return uuid.NewString()
}

// Unwrap is for [http.ResponseController].
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// Flush implements [http.Flusher].
func (x *exchange) Flush() {
	if x.status == 0 {
		x.WriteHeader(http.StatusOK)
	}
	_ = http.NewResponseController(x.ResponseWriter).Flush() // the connection may not support it
}

// WriteHeader implements [http.ResponseWriter].
func (x *exchange) WriteHeader(status int) {
	if x.status == 0 && x.byRouter(status) {
		x.refuseFor(status)
		return
	}
	if x.muted {
		return
	}
	if x.status == 0 && status >= http.StatusOK { // 1xx come before the answer
		x.status = status
	}
	x.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (x *exchange) Write(b []byte) (int, error) {
	if x.muted {
		return len(b), nil
	}
	if x.status == 0 {
		x.status = http.StatusOK
	}
	return x.ResponseWriter.Write(b)
}

// byRouter knows the plain text with which a router says that it has no handler.
func (x *exchange) byRouter(status int) bool {
	return (status == http.StatusNotFound || status == http.StatusMethodNotAllowed) && x.request.Pattern == "" &&
		strings.HasPrefix(x.Header().Get("Content-Type"), "text/plain")
}

func (x *exchange) refuseFor(status int) {
	code := resilience.CodeNoRoute
	if status == http.StatusMethodNotAllowed {
		code = resilience.CodeMethodNotAllowed
	}
	x.problem = &Problem{Code: code}
	x.Header().Del("Content-Type")
	x.problem.write(x, x.id)
	x.muted = true
}
