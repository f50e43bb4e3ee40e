package main

import (
	"sync"
	"time"
)

// tally counts settled rows until a window is over; safe for concurrent use.
type tally struct {
	began  time.Time
	window <-chan struct{} // closed when the window is over; nil without one

	mu   sync.Mutex
	rows int64
	last time.Time
}

// newTally starts the clock.
func newTally(window time.Duration) *tally {
	began := time.Now()
	t := &tally{began: began, last: began}
	if window > 0 {
		over := make(chan struct{})
		time.AfterFunc(window, func() { close(over) })
		t.window = over
	}
	return t
}

func (t *tally) end() <-chan struct{} { return t.window }

func (t *tally) over() bool {
	select {
	case <-t.window:
		return true
	default:
		return false
	}
}

func (t *tally) add(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows += int64(n)
	t.last = time.Now()
}

func (t *tally) result() result {
	t.mu.Lock()
	defer t.mu.Unlock()
	return result{Rows: t.rows, Seconds: t.last.Sub(t.began).Seconds()}
}
