package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/surefoot-mq/surefoot/internal/config"
)

// devStack is the local stack of a checkout, in so far as `surefoot dev` needs it.
type devStack struct {
	session *session
	root    string
	wanted  []string // components for which no URL is given: "db", "broker"
	started []string // those that were down before
	users   *os.File // the stack's directory, which each `surefoot dev` holds shared: whoever can hold it alone is the last; nil: not joined
}

// devStarted is a file of the stack that has what those started who left before. It is made at their end: a new stack's directory must be empty.
const devStarted = "dev-started"

// stackStop bounds the orderly stop of the stack.
const stackStop = 2 * time.Minute

// errNoStack: nothing says where the services are, and there is no checkout whose stack could be started.
var errNoStack = errors.New("no database or no broker is given, and this is no checkout of Surefoot, whose local stack could be started")

// devStack looks for the stack of the checkout around the working directory; nil when both URLs are given.
func (s *session) devStack(c *config.Config) (*devStack, error) {
	stack := &devStack{session: s}
	if c.Database.URL.Reveal() == "" {
		stack.wanted = append(stack.wanted, "db")
	}
	if c.AMQP.URL.Reveal() == "" {
		stack.wanted = append(stack.wanted, "broker")
	}
	if len(stack.wanted) == 0 {
		return nil, nil
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("find the checkout: %w", err)
	}
	for dir := here; ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(filepath.Join(dir, "scripts", "with-stack")); err == nil && info.Mode().IsRegular() {
			stack.root = dir
			if s.env.getenv("SUREFOOT_STACK_DIR") == "" { // the script's own default, also for who asks from another directory
				s.env.Environ = append(s.env.Environ, "SUREFOOT_STACK_DIR="+filepath.Join(dir, ".stack"))
			}
			return stack, nil
		}
		if dir == filepath.Dir(dir) {
			return nil, usageErrorf("set SUREFOOT_DATABASE_URL and SUREFOOT_AMQP_URL. In a checkout `scripts/stack up` starts both, and `scripts/stack env` prints their URLs; "+
				"`docker compose -f deploy/compose.yaml up database broker` starts them where Docker is", "%w", errNoStack)
		}
	}
}

// up starts what is missing, and gives its URLs to the session. Packages may have to be installed first, which may ask for a password:
// the script keeps the terminal, and Ctrl-C ends it too.
func (d *devStack) up(ctx context.Context) error {
	if err := d.join(ctx); err != nil {
		return err
	}
	d.started = d.down(ctx)
	if len(d.started) > 0 {
		d.session.note("starting the local stack (scripts/stack up)")
	}
	cmd := d.script(context.WithoutCancel(ctx), "with-stack", "env", "-0")
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return unreachable(fmt.Errorf("start the local stack: %w", err), "`scripts/stack up` shows why; or give SUREFOOT_DATABASE_URL and SUREFOOT_AMQP_URL")
	}
	for line := range bytes.SplitSeq(out, []byte{0}) {
		name, _, _ := strings.Cut(string(line), "=")
		switch name {
		case "SUREFOOT_DATABASE_URL", "SUREFOOT_AMQP_URL", "SUREFOOT_MANAGEMENT_URL":
			d.session.env.Environ = append(d.session.env.Environ, string(line))
		}
	}
	return nil
}

// down are the wanted components that do not run.
func (d *devStack) down(ctx context.Context) []string {
	out, _ := d.script(ctx, "stack", "status").Output() // it fails unless all run, and then says which do not
	var down []string
	for _, component := range d.wanted {
		if !bytes.Contains(out, []byte(component+" up")) {
			down = append(down, component)
		}
	}
	return down
}

// reset deletes all that the stack holds.
func (d *devStack) reset(ctx context.Context) error {
	cmd := d.script(ctx, "stack", "reset")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("reset the local stack: %w", err)
	}
	return nil
}

// join counts this process among the users of the stack. It waits for one that is about to stop it.
func (d *devStack) join(ctx context.Context) error {
	dir := d.session.env.getenv("SUREFOOT_STACK_DIR")
	err := os.MkdirAll(dir, 0o755) //nolint:gosec // its services may run as other users
	if err == nil {
		d.users, err = os.Open(dir)
	}
	if err != nil {
		return unreachable(fmt.Errorf("start the local stack: %w", err), "set SUREFOOT_STACK_DIR to a directory of your own")
	}
	if alone, err := d.hold(syscall.LOCK_EX); err != nil {
		return err
	} else if alone { // what is there was left by one that was killed
		if err := os.Remove(filepath.Join(dir, devStarted)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("start the local stack: %w", err)
		}
	}
	for {
		joined, err := d.hold(syscall.LOCK_SH)
		if err != nil || joined {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// hold takes the lock if nobody is in the way.
func (d *devStack) hold(how int) (held bool, err error) {
	err = syscall.Flock(int(d.users.Fd()), how|syscall.LOCK_NB)
	if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) {
		return false, fmt.Errorf("lock the local stack: %w", err)
	}
	return err == nil, nil
}

// leave says what there is to stop, and whether this process is the last to use it.
func (d *devStack) leave() (started []string, last bool, err error) {
	if len(d.started) > 0 { // before it is known whether it is the last, so that the last one has it
		if err = d.note(); err != nil {
			return nil, false, err
		}
	}
	if last, err = d.hold(syscall.LOCK_EX); err != nil || !last {
		return d.started, false, err
	}
	path := filepath.Join(d.users.Name(), devStarted)
	all, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, true, nil
	}
	err = errors.Join(err, os.Remove(path)) // now, for what could not even begin must stay empty
	for _, component := range []string{"db", "broker"} {
		if slices.Contains(strings.Fields(string(all)), component) {
			started = append(started, component)
		}
	}
	return started, true, err
}

// note writes down what this process has started.
func (d *devStack) note() error {
	file, err := os.OpenFile(filepath.Join(d.users.Name(), devStarted), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("note what was started: %w", err)
	}
	_, err = file.WriteString(strings.Join(d.started, "\n") + "\n")
	return errors.Join(err, file.Close())
}

// stop stops what up, or another one that left before, has started, and leaves the data. It does so in one process with a group of its own: the
// Ctrl-C of an impatient person must not interrupt it half way.
func (d *devStack) stop(ctx context.Context) error {
	if d.users == nil {
		return nil
	}
	defer d.users.Close()
	started, last, err := d.leave()
	if err != nil || len(started) == 0 {
		return err
	}
	if !last {
		d.session.note("the local stack stays up for another `surefoot dev`, which stops it at its end")
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stackStop)
	defer cancel()
	args := []string{"down"} // without a name it is both
	if len(started) == 1 {
		args = append(args, started...)
	}
	cmd := d.script(ctx, "stack", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("stop the local stack: %w", err)
	}
	d.session.note("the local stack is stopped; its data stay until `scripts/stack reset`")
	return nil
}

// script is one of the checkout's, with this session's environment; what it has to say goes to stderr.
func (d *devStack) script(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(d.root, "scripts", name), args...)
	cmd.Env, cmd.Stderr, cmd.WaitDelay = d.session.env.Environ, d.session.env.Stderr, time.Second
	return cmd
}
