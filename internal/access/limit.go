package access

import (
	"sync"
	"time"
)

// maxBuckets of a limiter: more keys than that push out those that have the most left.
const maxBuckets = 10_000

// limiter allows so many tries at once by key, and then one each time. Safe for concurrent use.
type limiter struct {
	burst float64
	every time.Duration
	clock func() time.Time

	mu      sync.Mutex
	buckets map[string]bucket
}

type bucket struct {
	left float64
	at   time.Time
}

func newLimiter(burst int, every time.Duration, clock func() time.Time) *limiter {
	return &limiter{burst: float64(burst), every: every, clock: clock, buckets: map[string]bucket{}}
}

func (l *limiter) filled(b bucket, now time.Time) bucket {
	return bucket{min(l.burst, b.left+now.Sub(b.at).Seconds()/l.every.Seconds()), now}
}

// take charges a try, before it is known how it ends, so that tries at the same time do not pass together. It returns how long to
// wait if none is left.
func (l *limiter) take(key string) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock()
	b, known := l.buckets[key]
	if !known {
		if len(l.buckets) >= maxBuckets {
			l.makeRoom(now)
		}
		b = bucket{l.burst, now}
	}
	b = l.filled(b, now)
	if b.left < 1 {
		l.buckets[key] = b
		return max(time.Duration((1-b.left)*float64(l.every)), time.Second)
	}
	b.left--
	l.buckets[key] = b
	return 0
}

// give returns what a try that went well was charged.
func (l *limiter) give(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b, known := l.buckets[key]; known {
		b.left = min(l.burst, b.left+1)
		l.buckets[key] = b
	}
}

// makeRoom drops those that are full again, and if there are none the fullest.
func (l *limiter) makeRoom(now time.Time) {
	fullest, most := "", -1.0
	for key, b := range l.buckets {
		switch b = l.filled(b, now); {
		case b.left >= l.burst:
			delete(l.buckets, key)
		case b.left > most:
			fullest, most = key, b.left
		}
	}
	if len(l.buckets) >= maxBuckets {
		delete(l.buckets, fullest)
	}
}
