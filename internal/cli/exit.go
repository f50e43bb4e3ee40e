package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/reconcile"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/watchdog"
)

// Exit codes of every command.
const (
	ExitDone        = 0   // done, or nothing to do
	ExitFailed      = 1   // failed
	ExitUsage       = 2   // used wrongly, configured wrongly, or declined
	ExitPartly      = 3   // done in part
	ExitDenied      = 4   // not permitted
	ExitUnreachable = 5   // a service is out of reach
	ExitDiffers     = 6   // differences found
	ExitInterrupted = 130 // interrupted by a signal
)

// exitError is an error with its exit code.
type exitError struct {
	code int
	err  error
	// hint says what to do about it; may be empty.
	hint string
	// reported errors have been shown already.
	reported bool
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usageErrorf is a command that was given the wrong way; hint says what would be right.
func usageErrorf(hint, format string, args ...any) error {
	return &exitError{code: ExitUsage, err: fmt.Errorf(format, args...), hint: hint}
}

// partly marks err as what kept a part from being done.
func partly(err error) error { return &exitError{code: ExitPartly, err: err} }

// denied marks err as a refusal; hint says who could permit it.
func denied(err error, hint string) error { return &exitError{code: ExitDenied, err: err, hint: hint} }

// unreachable marks err as a service that does not answer.
func unreachable(err error, hint string) error {
	return &exitError{code: ExitUnreachable, err: err, hint: hint}
}

// differs ends a command that was asked whether there are differences, and found some.
func differs(format string, args ...any) error {
	return &exitError{code: ExitDiffers, err: fmt.Errorf(format, args...)}
}

// exitCode is the one place where an error becomes an exit code. A code that a command chose wins; ctx tells
// whether it was interrupted.
func exitCode(ctx context.Context, err error) int {
	if err == nil {
		return ExitDone
	}
	if chosen, ok := errors.AsType[*exitError](err); ok {
		return chosen.code
	}
	if isMisconfigured(err) {
		return ExitUsage
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return ExitInterrupted
	}
	switch {
	case isDenied(err):
		return ExitDenied
	case isUnreachable(err):
		return ExitUnreachable
	}
	return ExitFailed
}

// isMisconfigured recognises what a person must mend in the configuration, also where only the database shows it.
func isMisconfigured(err error) bool {
	_, faults := errors.AsType[config.FaultsError](err)
	_, setup := errors.AsType[*app.SetupError](err)
	mismatch, denied := ruleFault(err)
	return faults || setup || mismatch && !denied || errors.Is(err, app.ErrNothingToRun)
}

// ruleFault recognises a rule that does not fit its table, and one that the database role may not carry out.
func ruleFault(err error) (mismatch, denied bool) {
	if rule, ok := errors.AsType[*watchdog.FaultError](err); ok {
		return true, rule.Denied
	}
	rule, ok := errors.AsType[*reconcile.FaultError](err)
	return ok, ok && rule.Denied
}

// isDenied recognises refusals: SQLSTATE class 28 (authorisation) and 42501 (privilege), AMQP 403, the management API's.
func isDenied(err error) bool {
	if _, denied := ruleFault(err); denied {
		return true
	}
	state := resilience.SQLStateOf(err)
	if strings.HasPrefix(state, "28") || state == pg.InsufficientPrivilege {
		return true
	}
	return rabbit.Code(err) == amqp.AccessRefused || rabbit.IsVhostDenied(err) || errors.Is(err, rabbit.ErrManagementDenied)
}

// isUnreachable recognises services that do not answer, and what is waited for like these: a database or a vhost that its server does not have, and
// a server that does not agree about TLS.
func isUnreachable(err error) bool {
	class := resilience.Classify(err)
	return class == resilience.ClassUnavailable || pg.IsUnavailable(err) || resilience.IsNetwork(err) ||
		pg.TLSAdvice(err) != "" || resilience.SQLStateOf(err) == pg.UndefinedDatabase || rabbit.IsNoVhost(err) || errors.Is(err, rabbit.ErrManagementUnreachable)
}

// servicesFailure is the error of a command that plays on whatever services it is given, with the hint for one that does not answer.
func servicesFailure(err error, hint string) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, rabbit.ErrManagementDenied), errors.Is(err, rabbit.ErrManagementUnreachable):
		return err
	case isUnreachable(err):
		return unreachable(err, hint)
	}
	return err
}

// reported keeps err from being shown again, and its exit code.
func reported(ctx context.Context, err error) error {
	return &exitError{code: exitCode(ctx, err), err: err, reported: true}
}
