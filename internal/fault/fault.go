// Package fault lets a crash test end or stop the process, or fail a step, at a named place. Without [Arm] every
// [Point] costs one atomic load and does nothing.
package fault

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrInjected is what an armed point with the action "error" returns.
var ErrInjected = errors.New("injected fault")

// armed is the one armed fault of the process, nil when there is none. It is global because a point marks a place
// in the code, not an object: a crash test kills the process, whichever of its parts gets there.
var armed atomic.Pointer[plan]

type plan struct {
	point  string
	action func() error
	after  atomic.Int64 // passes left before it acts
}

// Arm arms one fault, written "component.step:action[@n]". The action is kill (SIGKILL), stop (SIGSTOP), error
// (the step fails with ErrInjected), or ahead or back (this process's wall clock is set by an hour; only in programs that
// were built for it, see package crash); n, from 1, is the pass at which it acts, default 1. It acts once. An empty
// spec arms nothing.
func Arm(spec string) error {
	if spec == "" {
		return nil
	}
	point, rest, _ := strings.Cut(spec, ":")
	name, count, counted := strings.Cut(rest, "@")
	action := actionOf(name)
	n := int64(1)
	if counted {
		n, _ = strconv.ParseInt(count, 10, 64)
	}
	if action == nil || n < 1 {
		return fmt.Errorf("fault %q: expected component.step:kill, :stop, :error, :ahead or :back, with @n for the n-th pass", spec)
	}
	if !slices.Contains(Points(), point) {
		return fmt.Errorf("fault %q: there is no such point; known are %s", spec, strings.Join(Points(), ", "))
	}
	p := &plan{point: point, action: action}
	p.after.Store(n)
	armed.Store(p)
	return nil
}

func actionOf(name string) func() error {
	switch name {
	case "kill":
		return kill
	case "stop":
		return stop
	case "error":
		return func() error { return ErrInjected }
	case "ahead":
		return func() error { return setClock(time.Hour) }
	case "back":
		return func() error { return setClock(-time.Hour) }
	default:
		return nil
	}
}

func kill() error { return syscall.Kill(syscall.Getpid(), syscall.SIGKILL) }

// stop returns when the process goes on: SIGSTOP may reach another thread first, and this one would do its next step meanwhile.
func stop() error {
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, syscall.SIGCONT)
	defer signal.Stop(goesOn)
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGSTOP); err != nil {
		return err
	}
	<-goesOn
	return nil
}

// Point is a place where an armed fault acts. It returns nil except for the action "error".
func Point(name string) error {
	p := armed.Load()
	if p == nil || p.point != name || p.after.Add(-1) != 0 {
		return nil
	}
	return p.action()
}
