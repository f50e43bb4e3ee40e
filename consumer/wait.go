package consumer

import (
	"context"
	"math/rand/v2"
	"time"
)

// sleep waits for d and returns true, or false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// jitter spreads d over half to one and a half of it.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d+1)
}
