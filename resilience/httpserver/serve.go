package httpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// maxLogged bounds texts in the log, in bytes.
const maxLogged = 1 << 10

func clip(s string) string { return message.Clip(strings.TrimSpace(s), maxLogged) }

// ServeHTTP implements [http.Handler]: it admits the request, and hands it to the handler with its id, its deadline and its
// limits.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.options.Probes != nil && probe(r.URL.Path) {
		s.options.Probes.ServeHTTP(w, r)
		return
	}
	began := time.Now()
	ctx, cancel := resilience.BudgetFromRequest(r, s.options.Timeout)
	defer cancel()
	x := &exchange{ResponseWriter: w, id: requestID(r)}
	ctx = message.WithRequestID(context.WithValue(ctx, exchangeKey{}, x), x.id)
	x.request = r.WithContext(ctx) //nolint:contextcheck // it is the request's own, see BudgetFromRequest
	w.Header().Set(HeaderRequestID, x.id)
	s.metrics.inFlight.Inc()
	defer s.finish(x, began) //nolint:contextcheck // the exchange has it
	s.serve(x)
}

func probe(path string) bool { return path == "/livez" || path == "/readyz" || path == "/metrics" }

// serve refuses before the first byte of the body is read.
func (s *Server) serve(x *exchange) {
	r := x.request
	if p := s.refusal(r); p != nil {
		Error(x, r, p)
		return
	}
	if !s.slots.take() {
		Error(x, r, errOverloaded)
		return
	}
	defer s.slots.give()
	r.Body = &body{http.MaxBytesReader(x.ResponseWriter, r.Body, s.options.MaxBody)}
	s.options.Handler.ServeHTTP(x, r)
}

func (s *Server) refusal(r *http.Request) *Problem {
	if r.Context().Err() != nil {
		return &Problem{Code: resilience.CodeDeadlineExceeded, Detail: "There was no time left for this request; nothing was done."}
	}
	if r.ContentLength > s.options.MaxBody {
		return &Problem{Code: resilience.CodeRequestTooLarge}
	}
	if s.options.Limiter == nil {
		return nil
	}
	return s.options.Limiter.Take(r)
}

// body tells a body that did not come whole from the troubles of a dependency, which would be another answer.
type body struct{ io.ReadCloser }

// Read implements [io.Reader].
func (b *body) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return n, err
	}
	p := &Problem{Code: resilience.CodeInvalidRequest, Detail: "The body of the request did not come whole.", Err: err}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.Status = http.StatusRequestTimeout
	}
	return n, p
}

// finish is deferred: it answers for a handler that panicked, and logs and counts.
func (s *Server) finish(x *exchange, began time.Time) {
	cause := recover()
	s.metrics.inFlight.Dec()
	abort := cause == http.ErrAbortHandler //nolint:errorlint // a panic's value, compared as net/http does
	if cause != nil && !abort {
		s.options.Logger.Error().Str(telemetry.FieldRequestID, x.id).Str("route", x.route()).Str("panic", clip(fmt.Sprint(cause))).
			Bytes(telemetry.FieldStack, debug.Stack()).Msg("panic in a handler")
		x.problem = &Problem{Code: resilience.CodeInternal}
		if abort = x.status != 0; !abort {
			x.problem.write(x, x.id)
		}
	}
	if x.status == 0 && !abort {
		x.status = http.StatusOK // net/http sends it when a handler has written nothing
	}
	took := time.Since(began)
	s.metrics.served(x, took)
	s.log(x, took)
	if abort {
		panic(http.ErrAbortHandler) // cuts the connection
	}
}

// route is bounded, unlike a path.
func (x *exchange) route() string {
	if x.request.Pattern == "" {
		return "none"
	}
	return x.request.Pattern
}

// log writes one line where the error stops. What clients can bring about as often as they like is sampled.
func (s *Server) log(x *exchange, took time.Duration) {
	logger, level := s.level(x)
	line := logger.WithLevel(level)
	if line == nil { // not enabled
		return
	}
	line = line.Str(telemetry.FieldRequestID, x.id).Str("method", message.Clip(x.request.Method, 16)).Str("route", x.route()).
		Int("status", x.status).Dur("took", took)
	if x.problem != nil {
		line = line.Str("code", string(x.problem.Code))
		if err := x.problem.Err; err != nil {
			line = line.Str(zerolog.ErrorFieldName, clip(err.Error())).Str(telemetry.FieldErrorClass, string(resilience.Classify(err)))
		}
	}
	line.Msg("request")
}

func (s *Server) level(x *exchange) (*zerolog.Logger, zerolog.Level) {
	p, status := x.problem, x.status
	if p != nil {
		status = p.status() // also when an answer had begun
	}
	switch {
	case p != nil && (p.Code == resilience.CodeRateLimited || p.Code == resilience.CodeOverloaded):
		return &s.flood, zerolog.WarnLevel
	case p != nil && x.gone():
		return &s.options.Logger, zerolog.DebugLevel // the client has gone, nobody was let down
	case status >= http.StatusInternalServerError && (p == nil || p.Code == resilience.CodeInternal):
		return &s.options.Logger, zerolog.ErrorLevel
	case status >= http.StatusInternalServerError:
		return &s.options.Logger, zerolog.WarnLevel
	}
	return &s.options.Logger, zerolog.DebugLevel
}

// gone reports whether the client gave up before it was answered.
func (x *exchange) gone() bool {
	return errors.Is(resilience.Ended(x.request.Context()), resilience.ErrCancelled)
}
