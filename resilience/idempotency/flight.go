package idempotency

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// flight is the one request of its key that is being worked on in this process. The others wait for it without a database
// connection: many tries of one key would otherwise take the whole pool to wait for a row.
type flight struct {
	done chan struct{}
	out  outcome
	err  error
}

// once works on a request, or waits for another one with its key and shares its answer.
func (s *Store) once(in *request, work func(ctx context.Context) (outcome, error)) (outcome, error) {
	ctx := in.Context()
	timer := time.NewTimer(s.options.Wait)
	defer timer.Stop()
	for {
		f, mine := s.board(in.id)
		if mine {
			s.fly(ctx, in.id, f, work)
			return judge(in, f.out, f.err)
		}
		select {
		case <-ctx.Done():
			return outcome{}, context.Cause(ctx)
		case <-timer.C:
			return outcome{}, errPending
		case <-f.done:
		}
		if f.err == nil && f.out.status != 0 && !f.out.forget {
			out := f.out
			out.replayed = true
			return judge(in, out, nil)
		}
		// It has done nothing, or left the key free: now this one may be the first.
	}
}

// judge refuses the answer to another request.
func judge(in *request, out outcome, err error) (outcome, error) {
	if err == nil && out.hash != in.hash {
		return outcome{}, errReused
	}
	return out, err
}

func (s *Store) board(id uuid.UUID) (f *flight, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, under := s.flights[id]; under {
		return f, false
	}
	f = &flight{done: make(chan struct{})}
	s.flights[id] = f
	return f, true
}

// fly lets go of the key also when the handler panics.
func (s *Store) fly(ctx context.Context, id uuid.UUID, f *flight, work func(ctx context.Context) (outcome, error)) {
	defer func() {
		s.mu.Lock()
		delete(s.flights, id)
		s.mu.Unlock()
		close(f.done)
	}()
	f.out, f.err = work(ctx)
}
