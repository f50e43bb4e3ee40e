package consumer

import (
	"math/rand/v2"
	"time"
)

// jitter spreads d over half to one and a half of it.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d+1)
}
