// Package pause waits without outliving its context.
package pause

import (
	"context"
	"math/rand/v2"
	"time"
)

// For waits for d, not at all when d is 0 or less, and reports whether ctx is still alive.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// Jitter spreads d over half to one and a half of it, so that many do not come at once.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) } //nolint:gosec // spreads load
