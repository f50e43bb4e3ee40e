package program

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/surefoot-mq/surefoot/internal/answer"
	"github.com/surefoot-mq/surefoot/internal/strictjson"
	"github.com/surefoot-mq/surefoot/message"
)

// process is one that stays. Its methods are for one goroutine at a time; kill is for any.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *os.File
	lines  chan []byte   // of standard output; closed at its end
	dead   chan struct{} // closed when the process has ended
	stderr *lockedTail
	broken error // why there are no more lines, when that is no end; read it after lines is closed
	err    error // of the process; read it after dead is closed

	mu     sync.Mutex
	reaped bool // its number may be that of another process by now
}

// startProcess starts the program. What watches it is counted in running.
func startProcess(o Options, running *sync.WaitGroup) (*process, error) {
	out, stdout, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p := &process{
		cmd: exec.Command(o.Command[0], o.Command[1:]...), out: out, //nolint:noctx // it outlives the message that it is started for
		lines: make(chan []byte), dead: make(chan struct{}), stderr: &lockedTail{tail: tail{limit: message.MaxErrorStack}},
	}
	p.cmd.Env = append(slices.Clip(o.Environ), "SUREFOOT_QUEUE="+message.Storable(o.Queue, maxVariable))
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr, p.cmd.WaitDelay = stdout, p.stderr, ownGroup(), pipeDelay
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, errors.Join(err, out.Close(), stdout.Close())
	}
	started := make(chan error, 1)
	running.Go(func() { p.live(started) })
	err = <-started
	_ = stdout.Close()
	if err != nil {
		_ = out.Close()
		return nil, err
	}
	running.Go(p.read)
	return p, nil
}

// live starts the process and waits for its end, in one thread: to the kernel that is the parent, and must not end before.
func (p *process) live(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.dead)
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.err = p.cmd.Wait()
	p.kill() // what it has left behind
	p.forget()
	_ = p.out.SetReadDeadline(time.Now().Add(pipeDelay)) // descendants outside of its group may hold the other end
}

// kill ends the process with its group, unless that has ended.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	}
}

func (p *process) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reaped = true
}

// read hands on the lines of standard output until its end, or until one is too long.
func (p *process) read() {
	defer p.out.Close()
	defer close(p.lines)
	scanner := bufio.NewScanner(p.out)
	scanner.Buffer(make([]byte, 4<<10), answer.MaxBytes)
	for scanner.Scan() {
		select {
		case p.lines <- bytes.Clone(scanner.Bytes()):
		case <-p.dead: // the last line is still wanted by whoever waits for it
			select {
			case p.lines <- bytes.Clone(scanner.Bytes()):
			case <-time.After(pipeDelay):
				return
			}
		}
	}
	if errors.Is(scanner.Err(), bufio.ErrTooLong) {
		p.broken = fmt.Errorf("wrote a line of more than %d bytes", answer.MaxBytes)
		p.kill()
	}
}

// waits says whether a process that has nothing to do is alive, and has written nothing that nobody asked for.
func (p *process) waits() bool {
	select {
	case <-p.dead:
		return false
	case <-p.lines:
		return false
	default:
		return true
	}
}

// line waits for one. When ctx ends the process is killed, so that its lines end.
func (p *process) line(ctx context.Context) ([]byte, error) {
	defer context.AfterFunc(ctx, p.kill)()
	text, some := <-p.lines
	switch {
	case some:
		return text, nil
	case p.broken != nil:
		return nil, p.broken
	}
	return nil, errNoAnswer
}

func (p *process) awaitReady(ctx context.Context) error {
	text, err := p.line(ctx)
	if err != nil {
		return err
	}
	members, err := strictjson.Members(text)
	if err != nil || len(members) != 1 || string(members["ready"]) != "true" {
		return errors.New(`its first line is not {"ready": true}`)
	}
	return nil
}

// ask writes a request and reads its answer. After an error the process is of no use.
func (p *process) ask(ctx context.Context, r request) (reply, error) {
	p.stderr.reset()
	text, err := r.line()
	if err != nil {
		return reply{}, err
	}
	stop := context.AfterFunc(ctx, p.kill)
	_, _ = p.in.Write(text) // when that fails there is no answer either
	stop()
	if text, err = p.line(ctx); err != nil {
		return reply{}, err
	}
	return parseReply(text, r.ID)
}

// failed is the error of a message whose process is dead now.
func (p *process) failed(ctx context.Context, err error) *Error {
	failed := &Error{err: err, name: "answer", stderr: p.stderr.String()}
	switch {
	case ctx.Err() != nil:
		failed.err, failed.name = fmt.Errorf("killed: %w", ctx.Err()), "killed"
	case errors.Is(err, errNoAnswer):
		failed.err, failed.name = err, nameOf(p.cmd.ProcessState)
		if p.err != nil {
			failed.err = fmt.Errorf("%w: %w", err, p.err)
		}
	}
	return failed
}

// lockedTail is a tail that is read while it is written.
type lockedTail struct {
	mu sync.Mutex
	tail
}

// Write implements io.Writer.
func (t *lockedTail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tail.Write(b)
}

// String is what was kept.
func (t *lockedTail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tail.String()
}

func (t *lockedTail) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = t.kept[:0]
}
