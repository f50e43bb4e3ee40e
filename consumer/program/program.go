// Package program hands messages to a program of any language. [Workers] keeps processes, which speak JSON lines. [New] is one process
// per message, the body on its standard input, everything else in its environment.
//
//	SUREFOOT_MESSAGE_ID, SUREFOOT_TYPE, SUREFOOT_KEY, SUREFOOT_QUEUE, SUREFOOT_ATTEMPT (from 1), SUREFOOT_CONTENT_TYPE,
//	SUREFOOT_CORRELATION_ID, SUREFOOT_CAUSATION_ID, SUREFOOT_REQUEST_ID, SUREFOOT_SOURCE, SUREFOOT_OCCURRED_AT (RFC 3339),
//	SUREFOOT_TRACEPARENT
//
// Exit code 0 means done, 65 (EX_DATAERR) that the message can never be handled; anything else, and death by a signal,
// is transient. The end of standard error, at most 8 KiB, goes into the failure record. At the deadline, and when the
// consumer stops, the program is killed with its process group.
//
// The program has no transaction with the inbox: it runs at least once and must be idempotent by SUREFOOT_MESSAGE_ID.
package program

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/message"
)

// exitPermanent is sysexits' EX_DATAERR.
const exitPermanent = 65

// pipeDelay is how long standard error may stay open after the program has ended: descendants that left its process
// group may still hold it.
const pipeDelay = 2 * time.Second

// maxVariable bounds a value in the environment, in bytes.
const maxVariable = 4 << 10

// Options of a program.
type Options struct {
	// Command is the program and its arguments; no shell is involved. Required.
	Command []string
	// Queue is told to the program.
	Queue string
	// Environ is the program's environment as NAME=value. Variables that begin with SUREFOOT_ are left out, for they
	// hold secrets of Surefoot's own. Default: that of this process.
	Environ []string
}

// New returns a handler that runs the program, safe for concurrent use. A program that cannot be found or may not be
// executed is an error here; should it go away later, messages are held until it is back.
func New(o Options) (consumer.PlainHandler, error) {
	o, err := o.checked()
	if err != nil {
		return nil, err
	}
	return o.handle, nil
}

func (o Options) checked() (Options, error) {
	if len(o.Command) == 0 || o.Command[0] == "" {
		return o, errors.New("program: the command is empty; give the program and its arguments as a list")
	}
	if _, err := exec.LookPath(o.Command[0]); err != nil {
		return o, fmt.Errorf("program: %w; install it, make it executable, or give its whole path", err)
	}
	if o.Environ == nil {
		o.Environ = os.Environ()
	}
	inherited := make([]string, 0, len(o.Environ))
	for _, entry := range o.Environ {
		if !strings.HasPrefix(entry, "SUREFOOT_") {
			inherited = append(inherited, entry)
		}
	}
	o.Environ = inherited
	return o, nil
}

func (o Options) handle(ctx context.Context, m message.Message) error {
	stderr := &tail{limit: message.MaxErrorStack}
	cmd := exec.CommandContext(ctx, o.Command[0], o.Command[1:]...)
	cmd.Stdin = bytes.NewReader(m.Payload)
	cmd.Stderr = stderr
	cmd.Env = append(slices.Clip(o.Environ), o.variables(m)...)
	cmd.SysProcAttr = ownGroup()
	runtime.LockOSThread() // to the kernel the thread that starts the program is its parent: it must not end before it
	defer runtime.UnlockOSThread()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = pipeDelay
	if err := cmd.Start(); err != nil {
		// The program is missing or cannot be run here: no fault of the message.
		return consumer.Unavailable(fmt.Errorf("start program %s: %w", o.Command[0], err))
	}
	err := cmd.Wait()
	switch {
	case cmd.ProcessState.Success():
		return nil // it said done; what its descendants do with its pipes does not matter
	case ctx.Err() != nil:
		return &Error{err: fmt.Errorf("killed: %w", ctx.Err()), name: "killed", stderr: stderr.String()}
	}
	return judge(err, cmd.ProcessState, stderr.String())
}

func judge(err error, state *os.ProcessState, stderr string) error {
	failed := &Error{err: err, name: nameOf(state), stderr: stderr}
	if state.ExitCode() == exitPermanent {
		return consumer.Permanent(failed)
	}
	return failed
}

func nameOf(state *os.ProcessState) string {
	if code := state.ExitCode(); code >= 0 {
		return "exit " + strconv.Itoa(code)
	}
	return "signal"
}

func (o Options) variables(m message.Message) []string {
	occurred := ""
	if !m.OccurredAt.IsZero() {
		occurred = m.OccurredAt.UTC().Format(time.RFC3339)
	}
	pairs := []struct{ name, value string }{
		{"MESSAGE_ID", m.ID},
		{"TYPE", m.Type},
		{"KEY", m.Key},
		{"QUEUE", o.Queue},
		{"ATTEMPT", strconv.Itoa(m.Attempts + 1)},
		{"CONTENT_TYPE", m.ContentType},
		{"CORRELATION_ID", m.CorrelationID},
		{"CAUSATION_ID", m.CausationID},
		{"REQUEST_ID", m.RequestID},
		{"SOURCE", m.Source},
		{"OCCURRED_AT", occurred},
		{"TRACEPARENT", m.TraceParent},
	}
	variables := make([]string, len(pairs))
	for i, p := range pairs {
		// A NUL byte, which anybody may have sent, would keep the program from starting.
		variables[i] = "SUREFOOT_" + p.name + "=" + message.Storable(p.value, maxVariable)
	}
	return variables
}

// Error is a program's failure.
type Error struct {
	err    error
	name   string
	stderr string
}

// Error implements error. It never quotes what the program wrote, which may be part of the message.
func (e *Error) Error() string { return "program: " + e.err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// FailureType names the kind of failure in the failure record.
func (e *Error) FailureType() string { return e.name }

// FailureStack is the end of what the program wrote to standard error.
func (e *Error) FailureStack() string { return e.stderr }

// tail keeps the last bytes written to it. It is written by one goroutine and read after that has ended.
type tail struct {
	limit int
	kept  []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p[max(0, len(p)-t.limit):]...)
	if over := len(t.kept) - t.limit; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

// String is what was kept.
func (t *tail) String() string { return string(t.kept) }
