package consumer

import (
	"context"
	"sync"
)

// Solo lets one message run alone in the process: every other handler of the consumers that share it has ended
// before, and none starts meanwhile. The zero value is not usable; safe for concurrent use.
type Solo struct {
	mu        sync.Mutex
	running   int
	alone     bool
	exclusive int           // that wait or run; shared ones let them go first
	changed   chan struct{} // closed at every change
}

// NewSolo returns a Solo for the consumers of one process.
func NewSolo() *Solo { return &Solo{changed: make(chan struct{})} }

// enter waits for a place, with others or alone, until ctx ends. Call leave afterwards.
func (s *Solo) enter(ctx context.Context, alone bool) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if alone {
		s.exclusive++
	}
	for !s.free(alone) {
		if err := s.wait(ctx); err != nil {
			if alone {
				s.exclusive--
				s.wake()
			}
			return nil, err
		}
	}
	s.running++
	s.alone = alone
	return sync.OnceFunc(func() { s.leave(alone) }), nil
}

func (s *Solo) free(alone bool) bool {
	if alone {
		return s.running == 0
	}
	return !s.alone && s.exclusive == 0
}

// wait releases the lock until something changes.
func (s *Solo) wait(ctx context.Context) error {
	changed := s.changed
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Solo) leave(alone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	if alone {
		s.alone = false
		s.exclusive--
	}
	s.wake()
}

func (s *Solo) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}
