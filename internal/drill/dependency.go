package drill

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
)

// meter counts what is under way. Safe for concurrent use.
type meter struct {
	mu     sync.Mutex
	now    int
	most   int
	starts []time.Time
	took   []time.Duration
}

// begin counts one more until the function is called.
func (m *meter) begin() (end func()) {
	start := time.Now()
	m.mu.Lock()
	m.now++
	m.most = max(m.most, m.now)
	m.starts = append(m.starts, start)
	m.mu.Unlock()
	return func() {
		m.mu.Lock()
		m.now--
		m.took = append(m.took, time.Since(start))
		m.mu.Unlock()
	}
}

func (m *meter) calls() int { m.mu.Lock(); defer m.mu.Unlock(); return len(m.starts) }

func (m *meter) ended() int { m.mu.Lock(); defer m.mu.Unlock(); return len(m.took) }

func (m *meter) highest() int { m.mu.Lock(); defer m.mu.Unlock(); return m.most }

// times are the starts, in order.
func (m *meter) times() []time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	starts := slices.Clone(m.starts)
	slices.SortFunc(starts, time.Time.Compare)
	return starts
}

// spacing is the mean time between starts.
func (m *meter) spacing() time.Duration {
	starts := m.times()
	if len(starts) < 2 {
		return 0
	}
	return starts[len(starts)-1].Sub(starts[0]) / time.Duration(len(starts)-1)
}

// densest is the most starts in any window of that length.
func (m *meter) densest(window time.Duration) (most int) {
	starts := m.times()
	first := 0
	for i, at := range starts {
		for at.Sub(starts[first]) > window {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// metered counts the requests of a handler.
func (m *meter) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer m.begin()()
		h.ServeHTTP(w, r)
	})
}

// hang answers after a time, or not at all when the client leaves first.
func hang(d time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then net/http notices that the client has left
		if pause.For(r.Context(), d) {
			w.WriteHeader(http.StatusNoContent)
		}
	})
}

// together runs fn n times at once, numbered from 0, and joins the errors.
func together(n int, fn func(i int) error) error {
	failed := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { failed[i] = fn(i) })
	}
	all.Wait()
	return errors.Join(failed...)
}

// mean of durations; 0 of none.
func mean(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	return sum / time.Duration(len(all))
}

func longest(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	return slices.Max(all)
}
