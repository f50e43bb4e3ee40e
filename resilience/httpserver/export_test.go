package httpserver

import "time"

// TakeAt takes a token at a time of the test's choosing.
func (l *Limiter) TakeAt(client string, now time.Time) (time.Duration, bool) {
	return l.take(client, now)
}

// Clients are those with a bucket of their own.
func (l *Limiter) Clients() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.clients)
}

// WholeSeconds is how Retry-After is rounded.
var WholeSeconds = wholeSeconds
