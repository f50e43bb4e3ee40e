package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/surefoot-mq/surefoot/internal/child"
)

// process is a running program surefoot. It ends with the arm at the latest.
type process struct {
	name  string
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // of ended
	out   *child.Tail
}

// environ is that of a process of the arm, with the caller's variables but none that could configure it otherwise.
func (s *stage) environ(amqpURL string, more ...string) []string {
	services := child.Services{
		DatabaseURL: s.o.DatabaseURL, AMQPURL: amqpURL, ManagementURL: s.o.ManagementURL, CAFile: s.o.CAFile, Schema: s.schema, Exchange: exchange,
	}
	return services.Environ(s.o.Environ, append([]string{"SUREFOOT_LOG_FORMAT=json"}, more...)...)
}

// launch is how a process is started.
type launch struct {
	args  []string
	env   []string // all of it
	stdin any      // sent as JSON; nil: empty
	dir   string   // Default: an empty directory of its own, where no configuration file is.
}

// start runs the program surefoot.
func (s *stage) start(ctx context.Context, l launch) (*process, error) {
	if l.dir == "" {
		dir, err := s.directory()
		if err != nil {
			return nil, err
		}
		l.dir = dir
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), s.o.Binary, l.args...)
	p := &process{name: "surefoot " + strings.Join(l.args, " "), cmd: cmd, ended: make(chan struct{}), out: &child.Tail{}}
	said := io.MultiWriter(p.out, &lines{logs: s.logs})
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = l.env, l.dir, said, said, 2*time.Second
	if l.stdin != nil {
		text, err := json.Marshal(l.stdin)
		if err != nil {
			return nil, fmt.Errorf("encode the task of %s: %w", p.name, err)
		}
		cmd.Stdin = strings.NewReader(string(text))
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	s.onClose(func(context.Context) error { p.kill(); return nil })
	return p, nil
}

// directory is an empty one that goes with the arm.
func (s *stage) directory() (string, error) {
	dir, err := os.MkdirTemp("", "surefoot-drill-")
	if err != nil {
		return "", fmt.Errorf("make a directory: %w", err)
	}
	s.onClose(func(context.Context) error { return os.RemoveAll(dir) })
	return dir, nil
}

// signal sends it; a process that has ended gets none.
func (p *process) signal(signal syscall.Signal) { _ = p.cmd.Process.Signal(signal) }

// kill ends the process at once, if it still runs.
func (p *process) kill() {
	select {
	case <-p.ended:
	default:
		p.signal(syscall.SIGKILL)
		<-p.ended
	}
}

// wait waits for the end, and returns the exit code; -1 for a process that a signal has ended.
func (p *process) wait(ctx context.Context, limit time.Duration) (code int, err error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-timer.C:
		return 0, fmt.Errorf("%s has not ended after %s: %s", p.name, limit, p.out)
	}
	if exit, ok := errors.AsType[*exec.ExitError](p.err); ok {
		return exit.ExitCode(), nil
	}
	return 0, p.err
}

// killed says whether SIGKILL, or another signal that it does not catch, has ended the process.
func (p *process) killed() bool {
	exit, failed := errors.AsType[*exec.ExitError](p.err)
	return !p.running() && failed && exit.ExitCode() == -1
}

// running says whether the process has not ended.
func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// stopped says whether SIGSTOP holds the process.
func (p *process) stopped() bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/stat")
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(after, "T")
}

// freePort is one that nobody listens on, for a moment.
func freePort(ctx context.Context) (string, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}
