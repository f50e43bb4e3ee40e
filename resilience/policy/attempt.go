package policy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/resilience"
)

// run is one call's attempts.
type run struct {
	policy   *Policy
	call     Call
	breaker  *breaker
	deadline time.Time // of the whole call
	attempts []resilience.Attempt
	once     bool // a 500 was retried
	unknown  bool // an attempt may have had its effect
	verdict  verdict
	why      error
}

// all makes attempts until one succeeds or no further one is allowed.
func (r *run) all(ctx context.Context, fn func(ctx context.Context) error) *Error {
	for {
		left := max(time.Until(r.deadline), 0)
		if left < resilience.MinAttempt && len(r.attempts) == 0 {
			return r.tooLate(ctx)
		}
		last := r.attempt(ctx, left, fn)
		if last.err == nil {
			return nil
		}
		wait, again := r.again(ctx, last)
		if !again {
			return r.failed(last)
		}
		if !pause.For(ctx, wait) { // for no wait passes the deadline, somebody has cancelled
			end := resilience.Ended(ctx)
			return r.failed(failure{err: fmt.Errorf("%w: %w", end, last.err), class: resilience.Classify(end)})
		}
	}
}

// errShort is for calls that come when it is too late for an attempt.
var errShort = fmt.Errorf("less than %s left: %w", resilience.MinAttempt, resilience.ErrDeadline)

// failure is an attempt's error with what it means; without one it is a success.
type failure struct {
	err   error
	class resilience.Class
	after time.Duration
	cut   bool // the end of its context interrupted it
}

// attempt makes one attempt, with no more time than is left.
func (r *run) attempt(ctx context.Context, left time.Duration, fn func(ctx context.Context) error) failure {
	start := time.Now()
	ctx, cancel := r.limit(ctx, start)
	defer cancel()
	err := fn(ctx)
	took := time.Since(start)
	f := r.policy.failureOf(ctx, err)
	a := resilience.Attempt{Dependency: r.policy.name, Number: len(r.attempts) + 1, Class: f.class, Start: start, Took: took, Left: left}
	resilience.BudgetOf(ctx).Record(a)
	r.policy.metrics.attempt(f.class)
	r.judge(f, took)
	if err != nil {
		r.attempts = append(r.attempts, a)
	}
	return f
}

// limit gives an attempt its timeout, or what is left of the call. A context that ends by then keeps its own cause.
func (r *run) limit(ctx context.Context, start time.Time) (context.Context, context.CancelFunc) {
	until := start.Add(r.policy.settings.Timeout)
	if r.deadline.Before(until) {
		until = r.deadline
	}
	if outer, limited := ctx.Deadline(); limited && !until.Before(outer) {
		return context.WithCancel(ctx)
	}
	return context.WithDeadlineCause(ctx, until, resilience.ErrTimeout)
}

// tooLate is the end of a call for which too little was left: of the operation, or of what the dependency gets.
func (r *run) tooLate(ctx context.Context) *Error {
	if left, limited := resilience.Left(ctx); limited && left < resilience.MinAttempt {
		return r.policy.refused(ctx, errShort, resultEnded, 0)
	}
	return r.policy.refused(ctx, errWaited, resultWaited, overloadHint)
}

// failureOf says what an attempt's error means. An interruption is told by what interrupted, not by the words of whoever noticed: net/http returns the
// cause of the context's end, which may be the failure of another dependency that was asked at the same time.
func (p *Policy) failureOf(ctx context.Context, err error) failure {
	if err == nil {
		return failure{}
	}
	f := failure{err: err, class: resilience.ClassifyIn(ctx, p.classify, err)}
	if end := resilience.Ended(ctx); end != nil && (interrupted(f.class) || errors.Is(err, context.Cause(ctx))) {
		f.err = err
		if !errors.Is(err, end) {
			f.err = fmt.Errorf("%w: %w", end, err)
		}
		f.class, f.cut = resilience.Classify(end), true
	}
	f.after, _ = resilience.DelayOf(err)
	return f
}

func interrupted(class resilience.Class) bool {
	return class == resilience.ClassTimeout || class == resilience.ClassCancelled || class == resilience.ClassShutdown
}

// judge notes what an attempt says about the dependency. A failure stays proven when a later attempt cannot tell; a success
// clears it, for the circuit sees the call as a whole.
func (r *run) judge(f failure, took time.Duration) {
	slow := r.policy.settings.Breaker.Slow
	switch {
	case f.err == nil && slow > 0 && took >= slow:
		r.verdict, r.why = sick, fmt.Errorf("answered after %s, slower than %s", took.Round(time.Millisecond), slow)
	case f.err == nil, f.class == resilience.ClassPermanent, f.class == resilience.ClassDatabaseRetry:
		r.verdict, r.why = healthy, nil
	case !interrupted(f.class), r.fairlyTimed(f, took):
		r.verdict, r.why = sick, f.err
	}
}

// fairlyTimed says whether a timeout proves anything. One that cut the attempt off does only when that had at least half of its
// time, else callers with tiny budgets would open the circuit for everybody.
func (r *run) fairlyTimed(f failure, took time.Duration) bool {
	return f.class == resilience.ClassTimeout && (!f.cut || took >= r.policy.settings.Timeout/2)
}

// again decides whether there is another attempt, and after which wait.
func (r *run) again(ctx context.Context, f failure) (wait time.Duration, again bool) {
	retry := r.policy.settings.Retry
	r.unknown = r.unknown || mayHaveHappened(f)
	n := len(r.attempts)
	if !r.call.Idempotent || n >= retry.Attempts || !r.passes(f) || ctx.Err() != nil {
		return 0, false
	}
	if state, _ := r.breaker.state(); state == Open {
		return 0, false
	}
	wait = f.after + rand.N(retry.Backoff(n)+1) //nolint:gosec // spreads load
	if wait > time.Until(r.deadline)-resilience.MinAttempt {
		return 0, false
	}
	r.policy.metrics.retries.Inc()
	r.policy.log.retry(ctx, f, n+1, wait)
	return wait, true
}

// passes says whether a failure may pass by itself. A 500 may be a fault of the request that the server did not catch, and
// gets one more try.
func (r *run) passes(f failure) bool {
	switch f.class {
	case resilience.ClassTransient, resilience.ClassTimeout, resilience.ClassUnavailable, resilience.ClassDatabaseRetry:
		return true
	case resilience.ClassUnknown:
		if !r.once && resilience.StatusOf(f.err) == http.StatusInternalServerError {
			r.once = true
			return true
		}
	case resilience.ClassNone, resilience.ClassPermanent, resilience.ClassCancelled, resilience.ClassShutdown:
	}
	return false
}

// failed is the end of a call whose last attempt failed.
func (r *run) failed(last failure) *Error {
	e := &Error{
		Dependency: r.policy.name, Class: last.class, Effect: EffectNone, Attempts: r.attempts, After: last.after, Err: last.err,
		code: codeOf(last.err, true),
	}
	switch {
	case last.class == resilience.ClassPermanent:
		e.Effect = EffectAnswered
	case r.unknown:
		e.Effect = EffectUnknown
	}
	if knows, ok := errors.AsType[interface {
		error
		Effect() Effect
	}](last.err); ok {
		e.Effect = knows.Effect()
	}
	return e
}

// mayHaveHappened says whether an attempt may have had its effect although it failed. It did not when there was no connection,
// or the dependency said that it does nothing now.
func mayHaveHappened(f failure) bool {
	if f.class == resilience.ClassPermanent {
		return false
	}
	switch resilience.StatusOf(f.err) {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusTooEarly:
		return false
	}
	if call, ok := errors.AsType[*net.OpError](f.err); ok && call.Op == "dial" {
		return false
	}
	_, unnamed := errors.AsType[*net.DNSError](f.err)
	return !unnamed && !errors.Is(f.err, syscall.ECONNREFUSED) && f.class != resilience.ClassDatabaseRetry
}
