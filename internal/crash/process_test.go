//go:build crash

package crash_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// process is one of the programs under test, started again whenever it ends, as a service manager would.
type process struct {
	name   string
	binary string
	args   []string
	env    []string
	dir    string

	mu      sync.Mutex
	cmd     *exec.Cmd
	fault   string        // armed at the next start, once
	killed  chan struct{} // closed when the armed run has killed itself
	stopped bool
	starts  int
	done    chan struct{}
}

// begin keeps the process running until end.
func (p *process) begin(t *testing.T) {
	t.Helper()
	p.done = make(chan struct{})
	log, err := os.OpenFile(p.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	go func() {
		defer close(p.done)
		defer log.Close()
		for p.once(log) {
		}
	}()
}

func (p *process) logFile() string { return filepath.Join(p.dir, p.name+".log") }

// once runs the program to its end; false when it is to stay down.
func (p *process) once(log *os.File) bool {
	p.mu.Lock()
	if p.stopped {
		p.mu.Unlock()
		return false
	}
	cmd := exec.Command(p.binary, p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Env = append(cmd.Env, "SUREFOOT_FAULT="+p.fault)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, p.dir
	killed := p.killed
	p.fault, p.killed = "", nil
	p.starts++
	fmt.Fprintf(log, "--- start %d, fault %v\n", p.starts, cmd.Env[len(cmd.Env)-1])
	err := cmd.Start()
	if err == nil {
		p.cmd = cmd
	}
	p.mu.Unlock()
	if err == nil {
		err = cmd.Wait()
	}
	fmt.Fprintf(log, "--- ended: %v\n", err)
	if killed != nil && selfKilled(err) {
		close(killed)
	}
	return true
}

func selfKilled(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// arm restarts the process with a fault and returns a channel that is closed when that run was ended by SIGKILL.
func (p *process) arm(fault string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.killed = fault, make(chan struct{})
	killed := p.killed
	p.signalLocked(syscall.SIGTERM)
	return killed
}

func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.signalLocked(s)
}

func (p *process) signalLocked(s syscall.Signal) {
	if p.cmd != nil && p.cmd.Process != nil {
		_ = p.cmd.Process.Signal(s) // it may have ended by itself a moment ago
	}
}

// end stops the process for good with SIGTERM, which it must obey within the time it promises.
func (p *process) end(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	p.stopped = true
	p.signalLocked(syscall.SIGCONT)
	p.signalLocked(syscall.SIGTERM)
	p.mu.Unlock()
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		p.signal(syscall.SIGKILL)
		<-p.done
		t.Errorf("%s did not stop within 30 s of SIGTERM", p.name)
	}
}

// command runs a one-shot command to its end and returns its output and error.
func (h *harness) command(t *testing.T, fault string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.surefoot, args...)
	cmd.Env = append(os.Environ(), h.env()...)
	cmd.Env = append(cmd.Env, "SUREFOOT_FAULT="+fault)
	cmd.Dir = h.dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}
