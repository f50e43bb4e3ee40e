package httpserver

import (
	"container/list"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/surefoot-mq/surefoot/resilience"
)

const (
	defaultMaxClients = 1 << 16
	sharedBuckets     = 64
	maxClientName     = 64
)

// Rate is a token bucket for each client.
type Rate struct {
	// Requests that a client may send in Per, in the long run. Required.
	Requests int
	// Per is the time for them. Default: 1 s.
	Per time.Duration
	// Burst is how many may come at once. Default: Requests.
	Burst int
	// Client names who sent a request. Default: [RemoteAddress].
	Client ClientFunc
	// MaxClients bounds how many clients are told apart, at about 300 bytes each. When so many are active, newcomers share
	// 64 buckets among them. Default: 65,536.
	MaxClients int
}

// Limiter refuses what clients send faster than their rate. It is safe for concurrent use. A limiter for each route limits
// by client and route; one around them all by client.
type Limiter struct {
	options Rate
	limit   rate.Limit
	idle    time.Duration // after which a bucket is full again

	mu      sync.Mutex
	clients map[string]*list.Element
	recent  *list.List // of *bucket, last used first
	shared  [sharedBuckets]*rate.Limiter
	seed    maphash.Seed
}

// bucket is one client's.
type bucket struct {
	client string
	used   time.Time
	tokens *rate.Limiter
}

// NewLimiter returns a limiter, or an error that names every fault of the rate.
func NewLimiter(o Rate) (*Limiter, error) {
	if o.Per == 0 {
		o.Per = time.Second
	}
	if o.Burst == 0 {
		o.Burst = o.Requests
	}
	if o.Client == nil {
		o.Client = RemoteAddress
	}
	if o.MaxClients == 0 {
		o.MaxClients = defaultMaxClients
	}
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("rate: "+format, args...))
		}
	}
	check(o.Requests > 0, "Requests is %d; use 1 or more", o.Requests)
	check(o.Per > 0, "Per is %s; use more than 0", o.Per)
	check(o.Burst > 0, "Burst is %d; use 1 or more", o.Burst)
	check(o.MaxClients > 0, "MaxClients is %d; use 1 or more", o.MaxClients)
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	l := &Limiter{options: o, clients: map[string]*list.Element{}, recent: list.New(), seed: maphash.MakeSeed()}
	l.limit = rate.Limit(float64(o.Requests) / o.Per.Seconds())
	l.idle = time.Duration(float64(o.Burst) / float64(l.limit) * float64(time.Second))
	for i := range l.shared {
		l.shared[i] = rate.NewLimiter(l.limit, o.Burst)
	}
	return l, nil
}

// Wrap answers what is too much with 429 and Retry-After, before next sees anything of it.
func (l *Limiter) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := l.Take(r); p != nil {
			Error(w, r, p)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Take takes a token from the bucket of the request's client, and returns what to answer when it is empty, else nil.
func (l *Limiter) Take(r *http.Request) *Problem {
	wait, ok := l.take(l.options.Client(r), time.Now())
	if ok {
		return nil
	}
	return &Problem{Code: resilience.CodeRateLimited, RetryAfter: wait}
}

// take returns how long to wait for the next token when there is none.
func (l *Limiter) take(client string, now time.Time) (wait time.Duration, ok bool) {
	if len(client) > maxClientName {
		sum := sha256.Sum256([]byte(client))
		client = string(sum[:])
	}
	tokens := l.bucket(client, now)
	if tokens.AllowN(now, 1) {
		return 0, true
	}
	missing := 1 - tokens.TokensAt(now)
	return time.Duration(missing / float64(l.limit) * float64(time.Second)), false
}

// bucket finds a client's bucket. A new one may take the place of one that is full again, of which nothing is forgotten;
// to drop any other would give its client a new burst, and whoever comes from many addresses could have that done.
func (l *Limiter) bucket(client string, now time.Time) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if element, known := l.clients[client]; known {
		l.recent.MoveToFront(element)
		b := element.Value.(*bucket)
		b.used = now
		return b.tokens
	}
	shared := l.shared[maphash.String(l.seed, client)%sharedBuckets]
	if len(l.clients) >= l.options.MaxClients && !l.forget(now) {
		return shared
	}
	b := &bucket{client: client, used: now, tokens: rate.NewLimiter(l.limit, l.options.Burst)}
	taken := math.Ceil(float64(l.options.Burst) - shared.TokensAt(now)) // maybe by this client: it gets no second burst
	b.tokens.AllowN(now, int(taken))
	l.clients[client] = l.recent.PushFront(b)
	return b.tokens
}

// forget drops the bucket that was not used for longest, if it is full again.
func (l *Limiter) forget(now time.Time) bool {
	oldest := l.recent.Back()
	b := oldest.Value.(*bucket)
	if now.Sub(b.used) < l.idle {
		return false
	}
	l.recent.Remove(oldest)
	delete(l.clients, b.client)
	return true
}
