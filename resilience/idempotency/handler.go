package idempotency

import (
	"context"
	"errors"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

// Handler does what a request asks for, in tx, and returns what to answer. Its effects, its events in the outbox and the
// answer are committed together. After an error nothing has happened: [httpserver.Error] answers it, and the same key can
// be tried again.
//
// The transaction is the store's: Commit and Rollback are refused. After a deadlock, a serialisation failure or a lost
// connection the handler runs again, up to three times in all, so what it does elsewhere must be harmless to repeat: see
// [Steps]. The body of r has been read, and is there again for each run.
type Handler func(ctx context.Context, tx pgx.Tx, r *http.Request) (Answer, error)

// Handle serves requests whose effects are all in one transaction.
func (s *Store) Handle(h Handler) http.Handler { return s.HandleSteps(Steps{Start: h}) }

// Prepare asks elsewhere for what a request needs and what has no effect there, such as prices, and returns the handler that
// uses it. It runs without a transaction, which would be held for as long as the answer takes, and only for a request that is
// not remembered: one that is gets its answer whether those others are there or not.
type Prepare func(ctx context.Context, r *http.Request) (Handler, error)

// HandlePrepared serves requests that need something from elsewhere first. It costs one query more than Handle.
func (s *Store) HandlePrepared(prepare Prepare) http.Handler {
	return s.HandleSteps(Steps{Prepare: prepare})
}

// Steps serve a request that must ask another service between two transactions. Nothing of that service is ever asked twice
// by them: after a crash in between the request is pending, and stays so until its outcome has been learned.
type Steps struct {
	// Start writes down, durably, what is about to be asked, in a first transaction, and returns the answer for as long as the
	// outcome is not known, with Pending. An answer without Pending is final, and nothing is asked. Required, or Prepare.
	Start Handler
	// Prepare returns the Start of a request that needs something from elsewhere first. Default: Start is it.
	Prepare Prepare
	// Ask asks the other service, without a transaction and with a key of its own, and returns what follows from its answer.
	// An error says that the outcome is not known: the pending answer is given. A refusal that certainly had no effect is an
	// outcome too; see [Answer.Forget]. Its context ends when the client goes away.
	Ask func(ctx context.Context, r *http.Request) (Finish, error)
	// Check asks what became of it, and never for the thing itself. It runs when the request comes again while it is pending.
	// Default: the pending answer is given again, and a reconciliation calls [Store.Resolve].
	Check func(ctx context.Context, r *http.Request) (Finish, error)
}

// Finish writes what was learned, in a second transaction, and returns the final answer. It runs only while the request is
// pending, whoever else has learned the outcome meanwhile; like a [Handler] it may run up to three times.
type Finish func(ctx context.Context, tx pgx.Tx) (Answer, error)

// HandleSteps serves requests that go through steps.
func (s *Store) HandleSteps(steps Steps) http.Handler {
	return s.serve(func(ctx context.Context, in *request) (outcome, error) { return s.steps(ctx, in, steps) })
}

func (s *Store) serve(work func(ctx context.Context, in *request) (outcome, error)) http.Handler {
	return httpserver.Handler(func(w http.ResponseWriter, r *http.Request) error {
		in, err := s.read(w, r)
		if err != nil {
			return err
		}
		out, err := s.once(in, func(ctx context.Context) (outcome, error) { return work(ctx, in) })
		if err != nil {
			s.metrics.count(resultOf(err))
			return err
		}
		s.metrics.count(out.result())
		return out.write(w)
	})
}

func (s *Store) steps(ctx context.Context, in *request, steps Steps) (outcome, error) {
	out, err := s.first(ctx, in, steps)
	if err != nil || !out.pending || out.hash != in.hash {
		return out, err
	}
	ask := steps.Ask
	if out.replayed {
		ask = steps.Check
	}
	if ask == nil {
		return out, nil
	}
	finish, err := ask(ctx, in.again())
	if err == nil {
		var done outcome
		if done, err = s.finish(ctx, in, finish); err == nil {
			return done, nil
		}
	}
	s.options.Logger.Warn().Err(err).Str(telemetry.FieldRequestID, message.RequestIDFrom(ctx)).Str(telemetry.FieldErrorClass, string(resilience.ClassifyIn(ctx, nil, err))).
		Msg("outcome not known, answered as pending")
	return out, nil
}

// first is the start, or what is remembered of it.
func (s *Store) first(ctx context.Context, in *request, steps Steps) (outcome, error) {
	if steps.Prepare == nil {
		return s.start(ctx, in, steps.Start)
	}
	out, err := s.find(ctx, s.options.Pool, s.sql.find, in)
	if !errors.Is(err, errGone) {
		return out, err
	}
	start, err := steps.Prepare(ctx, in.again())
	if err != nil {
		return outcome{}, err
	}
	return s.start(ctx, in, start)
}

var (
	errReused  = &httpserver.Problem{Code: resilience.CodeIdempotencyKeyReused}
	errPending = &httpserver.Problem{Code: resilience.CodeIdempotencyPending}
)

func pendingFor(err error) error {
	return &httpserver.Problem{Code: resilience.CodeIdempotencyPending, Err: err}
}

// resultOf is a metric's label.
func resultOf(err error) string {
	p, _ := errors.AsType[*httpserver.Problem](err)
	switch {
	case p != nil && p.Code == resilience.CodeIdempotencyKeyReused:
		return "reused"
	case p != nil && p.Code == resilience.CodeIdempotencyPending:
		return "unknown"
	}
	return "failed"
}

func (o outcome) result() string {
	switch {
	case o.pending:
		return "pending"
	case o.replayed:
		return "replayed"
	}
	return "done"
}
