package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
}

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

// stop stops what up has started, and leaves the data. It has a process group of its own: the Ctrl-C of an impatient person must not
// interrupt it half way.
func (d *devStack) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stackStop)
	defer cancel()
	for _, component := range d.started {
		cmd := d.script(ctx, "stack", "down", component)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("stop the local stack: %w", err)
		}
	}
	if len(d.started) > 0 {
		d.session.note("the local stack is stopped; its data stay until `scripts/stack reset`")
	}
	return nil
}

// script is one of the checkout's, with this session's environment; what it has to say goes to stderr.
func (d *devStack) script(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(d.root, "scripts", name), args...)
	cmd.Env, cmd.Stderr, cmd.WaitDelay = d.session.env.Environ, d.session.env.Stderr, time.Second
	return cmd
}
