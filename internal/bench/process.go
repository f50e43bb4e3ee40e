package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/surefoot-mq/surefoot/internal/child"
)

const (
	stopLimit    = 30 * time.Second // for an orderly stop
	memoryPeriod = 50 * time.Millisecond
	maxLine      = 64 << 20 // of a process's outcome: latencies by message
)

// program is what a process runs.
type program struct {
	name  string // for errors
	path  string
	args  []string
	env   []string
	stdin any // written as JSON; nil: empty
}

// process is a running program of an arm. It prints one line, its outcome, or is stopped.
type process struct {
	name  string
	cmd   *exec.Cmd
	told  chan struct{} // closed when line is there, or none will come
	line  []byte        // its outcome; nil: none
	ended chan struct{} // closed when all is over
	err   error         // of ended
	peak  atomic.Int64
	tail  child.Tail // of what it says to stderr
}

// command is the surefoot binary with arguments, working for an arm in its schema.
func (s *stage) command(schema string, args ...string) program {
	return program{name: "surefoot " + strings.Join(args, " "), path: s.o.Binary, args: args, env: s.environ(schema)}
}

// environ has the caller's variables but none that could configure a process otherwise. Those of SUREFOOT_BENCH are for scripts/peers.
func (s *stage) environ(schema string) []string {
	services := child.Services{
		DatabaseURL: s.o.DatabaseURL, AMQPURL: s.o.AMQPURL, ManagementURL: s.o.ManagementURL, CAFile: s.o.CAFile, Schema: schema, Exchange: s.exchange(),
	}
	return services.Environ(s.o.Environ, fmt.Sprintf("SUREFOOT_RELAY_CONNECTIONS=%d", s.o.Connections), "SUREFOOT_LOG_LEVEL=warn",
		"SUREFOOT_BENCH_SCHEMA="+schema, "SUREFOOT_BENCH_EXCHANGE="+s.exchange())
}

// start runs a program until it ends, ctx ends, or stop.
func (s *stage) start(ctx context.Context, p program) (*process, error) {
	cmd := exec.CommandContext(ctx, p.path, p.args...)
	cmd.Env, cmd.Dir = p.env, s.dir
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopLimit
	run := &process{name: p.name, cmd: cmd, told: make(chan struct{}), ended: make(chan struct{})}
	cmd.Stderr = &run.tail
	if p.stdin != nil {
		text, err := json.Marshal(p.stdin)
		if err != nil {
			return nil, fmt.Errorf("encode the task of %s: %w", p.name, err)
		}
		cmd.Stdin = strings.NewReader(string(text))
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	go run.follow(stdout)
	return run, nil
}

// follow hands on the first line and waits for the end.
func (p *process) follow(stdout io.Reader) {
	defer close(p.ended)
	watched := make(chan struct{})
	over := make(chan struct{})
	go func() { defer close(watched); p.watch(over) }()
	reader := bufio.NewReaderSize(stdout, 64<<10)
	p.line, _ = readLine(reader) // what ails it is told by its end
	close(p.told)
	_, _ = io.Copy(io.Discard, reader)
	err := p.cmd.Wait()
	close(over)
	<-watched
	if err != nil {
		p.err = fmt.Errorf("%s: %w: %s", p.name, err, &p.tail)
	}
}

func readLine(r *bufio.Reader) (line []byte, err error) {
	for {
		part, more, err := r.ReadLine()
		if err != nil {
			return nil, err
		}
		line = append(line, part...)
		if !more {
			return line, nil
		}
		if len(line) > maxLine {
			return nil, errors.New("line too long")
		}
	}
}

// watch samples the peak of memory, which is gone with the process.
func (p *process) watch(over <-chan struct{}) {
	ticker := time.NewTicker(memoryPeriod)
	defer ticker.Stop()
	for {
		if size := child.Peak.Of(p.cmd.Process.Pid); size > 0 {
			p.peak.Store(size)
		}
		select {
		case <-over:
			return
		case <-ticker.C:
		}
	}
}

// stop ends the process in order, and fails when it has ended before, or otherwise.
func (p *process) stop() error {
	select {
	case <-p.ended:
		return errors.Join(fmt.Errorf("%s ended by itself", p.name), p.err)
	default:
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended a moment ago: then Wait tells how
	limit := time.AfterFunc(stopLimit, func() { _ = p.cmd.Process.Kill() })
	defer limit.Stop()
	<-p.ended
	return p.err
}

// kill ends the process at once, if it still runs.
func (p *process) kill() {
	select {
	case <-p.ended:
	default:
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// wait returns the outcome of a process that ends by itself.
func (p *process) wait(ctx context.Context) ([]byte, error) {
	select {
	case <-p.ended:
	case <-ctx.Done():
		<-p.ended
		return nil, ctx.Err()
	}
	if p.err != nil {
		return nil, p.err
	}
	if p.line == nil {
		return nil, fmt.Errorf("%s printed nothing: %s", p.name, &p.tail)
	}
	return p.line, nil
}

// result waits for a process that prints its outcome.
func result(ctx context.Context, p *process) (done outcome, err error) {
	line, err := p.wait(ctx)
	if err != nil {
		return done, err
	}
	if err := json.Unmarshal(line, &done); err != nil {
		return done, fmt.Errorf("read the outcome of %s: %w", p.name, err)
	}
	return done, nil
}

// cpu of the process in microseconds, after its end.
func (p *process) cpu() *float64 {
	state := p.cmd.ProcessState
	return microseconds(state.UserTime()+state.SystemTime(), true)
}

// memory is the peak in MiB, nil when it is unknown.
func (p *process) memory() *float64 {
	size := p.peak.Load()
	if size == 0 {
		return nil
	}
	mib := float64(size) / (1 << 20)
	return &mib
}

// run runs a program to its end.
func (s *stage) run(ctx context.Context, p program) error {
	run, err := s.start(ctx, p)
	if err != nil {
		return err
	}
	<-run.ended
	return errors.Join(run.err, ctx.Err())
}
