package drill

import (
	"context"
	"sync"
)

// kept is a process that is started again whenever it ends, as a service manager would.
type kept struct {
	stage  *stage
	name   string
	launch launch

	mu     sync.Mutex
	now    *process
	fault  string // armed at the next start, once
	ended  bool
	starts int
	kills  int // ends by a signal
	done   chan struct{}
}

// keep runs a process until the arm ends, or stop.
func (s *stage) keep(ctx context.Context, name string, l launch) (*kept, error) {
	k := &kept{stage: s, name: name, launch: l, done: make(chan struct{})}
	first, err := k.start(ctx)
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(k.done)
		for p := first; p != nil; {
			<-p.ended
			k.note(p)
			if p, err = k.start(ctx); err != nil {
				return
			}
		}
	}()
	s.onClose(func(context.Context) error { k.kill(); return nil })
	return k, nil
}

// start returns nil when the process is to stay down.
func (k *kept) start(ctx context.Context) (*process, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended || ctx.Err() != nil {
		return nil, nil
	}
	l := k.launch
	if k.fault != "" {
		l.env = append(append([]string{}, l.env...), "SUREFOOT_FAULT="+k.fault)
		k.fault = ""
	}
	p, err := k.stage.start(ctx, l)
	if err != nil {
		return nil, err
	}
	k.now = p
	k.starts++
	return p, nil
}

// note counts how a process has ended.
func (k *kept) note(p *process) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p.killed() {
		k.kills++
	}
}

// crash kills the process; the next one kills itself at the fault, if one is given.
func (k *kept) crash(fault string) {
	k.mu.Lock()
	k.fault = fault
	p := k.now
	k.mu.Unlock()
	p.kill()
}

// lives is how often it was killed, and how often it was started again.
func (k *kept) lives() (kills, restarts int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kills, k.starts - 1
}

// end keeps it from being started again, and returns the last process.
func (k *kept) end() *process {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	return k.now
}

// kill ends it for good.
func (k *kept) kill() {
	k.end().kill()
	<-k.done
}
