package deadletter

import (
	"fmt"
	"time"
)

// ParseSince reads from when on something is asked for, as people write it: a time in RFC 3339, or an age such as 90m. Empty is the zero time.
// Its error is an [ErrBadRequest].
func ParseSince(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if age, err := time.ParseDuration(text); err == nil && age >= 0 {
		return now.Add(-age), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: %.100q is not a time: write 2026-01-31T08:00:00Z, or an age such as 90m", ErrBadRequest, text)
	}
	return at, nil
}
