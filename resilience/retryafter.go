package resilience

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// defaultRetryAfter is what a dependency means that asks to wait and does not say for how long.
const defaultRetryAfter = time.Second

// RetryAfterOf reads how long a response asks to wait: Retry-After in seconds or as a date; missing or broken means 1 s, and so
// does a date that has passed. A date is measured from the response's own Date where it has one, since no clock of another host
// is trusted, else from now.
func RetryAfterOf(h http.Header, now time.Time) time.Duration {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return defaultRetryAfter
	}
	if sent, err := http.ParseTime(h.Get("Date")); err == nil {
		now = sent
	}
	if wait := at.Sub(now); wait > 0 {
		return wait
	}
	return defaultRetryAfter
}
