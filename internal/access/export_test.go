package access

import (
	"time"

	"golang.org/x/crypto/bcrypt"
)

// Bounds that tests fill.
const (
	MaxBuckets  = maxBuckets
	MaxSessions = maxSessions
	NameBurst   = nameBurst
)

// Cheap takes hashes that cost nothing.
func Cheap(o Options) Options {
	o.leastCost = bcrypt.MinCost
	return o
}

// CheapLine is a line whose hash costs nothing.
func CheapLine(name string, role Role, password string) string {
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		panic(err)
	}
	return name + ":" + role.String() + ":" + string(hash)
}

// Compared is how many passwords were compared, those of nobody included.
func (g *Gate) Compared() int64 { return g.users.compared.Load() }

// DecoyCost is what a name that is unknown costs.
func (g *Gate) DecoyCost() int {
	_, decoy := g.users.current()
	cost, err := bcrypt.Cost(decoy)
	if err != nil {
		panic(err)
	}
	return cost
}

// Sessions is how many there are.
func (g *Gate) Sessions() int {
	g.sessions.mu.Lock()
	defer g.sessions.mu.Unlock()
	return len(g.sessions.all)
}

// Limiter is one of tries.
type Limiter struct{ l *limiter }

// NewLimiter allows burst at once, and then one each time.
func NewLimiter(burst int, every time.Duration, clock func() time.Time) Limiter {
	return Limiter{newLimiter(burst, every, clock)}
}

// Take charges a try.
func (l Limiter) Take(key string) time.Duration { return l.l.take(key) }

// Give returns it.
func (l Limiter) Give(key string) { l.l.give(key) }

// Len is how many keys are kept.
func (l Limiter) Len() int { return len(l.l.buckets) }
