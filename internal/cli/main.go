package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// Main runs one command line, without the program's name, and returns its exit code. It starts nothing that
// outlives it, except when ctx has ended and a read of stdin is still blocked.
func Main(ctx context.Context, args []string, env Env) int {
	s := newSession(env)
	defer telemetry.FatalOnPanic(s.crashLogger())
	if err := fault.Arm(env.getenv("SUREFOOT_FAULT")); err != nil { // crash tests only; inert when it is not set
		s.report(err, ExitUsage)
		return ExitUsage
	}
	root := newRoot(s)                        //nolint:contextcheck // commands take theirs from cobra
	root.SetArgs(append([]string{}, args...)) // of nil cobra makes the arguments of the process
	err := cmp.Or(root.ExecuteContext(ctx), s.misuse)
	if err != nil && !s.started {
		err = asUsage(err)
	}
	err = errors.Join(err, s.close())
	code := exitCode(ctx, err)
	s.report(err, code)
	return code
}

// asUsage makes what cobra found wrong with the arguments a usage error.
func asUsage(err error) error {
	if _, ok := errors.AsType[*exitError](err); ok {
		return err
	}
	return usageErrorf("", "%w", err)
}

// report shows an error to the person at the terminal. Its text may quote messages: it is escaped.
func (s *session) report(err error, code int) {
	if err == nil {
		return
	}
	chosen, ok := errors.AsType[*exitError](err)
	if ok && chosen.reported {
		return
	}
	prefix := "surefoot: "
	if code == ExitInterrupted {
		prefix += "interrupted: "
	}
	fmt.Fprintf(s.env.Stderr, "%s%s\n", prefix, EscapeBlock(err.Error(), maxErrorText))
	hint := cmp.Or(pg.Advice(err), rabbit.Advice(err))
	if hint == "" && code == ExitUnreachable {
		hint = "start it, or correct its address; `surefoot doctor` says which service is out of reach"
	}
	if ok {
		hint = chosen.hint
	}
	if hint != "" {
		fmt.Fprintf(s.env.Stderr, "hint: %s\n", Escape(hint, maxErrorText))
	}
}

// maxErrorText bounds an error on the terminal, in bytes.
const maxErrorText = 16 << 10
