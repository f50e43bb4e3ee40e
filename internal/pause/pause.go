// Package pause waits without outliving its context.
package pause

import (
	"context"
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
