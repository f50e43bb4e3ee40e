package testkit

import (
	"errors"
	"testing"
	"time"
)

const pollInterval = 20 * time.Millisecond

var errNotYet = errors.New("the condition is false")

// Eventually waits until condition is true, looking at once and then every 20 ms, and fails the test when the
// timeout passes first. It runs condition in the caller's goroutine; what says what is waited for.
func Eventually(t testing.TB, timeout time.Duration, what string, condition func() bool) {
	t.Helper()
	EventuallyNil(t, timeout, what, func() error {
		if condition() {
			return nil
		}
		return errNotYet
	})
}

// EventuallyNil is [Eventually] for a check that says what is still wrong; the last error is reported.
func EventuallyNil(t testing.TB, timeout time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("waited %s for %s: %v", timeout, what, err)
		case <-ticker.C:
		}
	}
}
