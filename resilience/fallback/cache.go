package fallback

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/surefoot-mq/surefoot/resilience"
)

// CacheOptions of a cache.
type CacheOptions struct {
	// MaxAge is how old an answer may be. Default: 5 min.
	MaxAge time.Duration
	// Entries are kept at most; the one used longest ago gives way. Default: 1000.
	Entries int
	// Empty answers with the zero value, marked as partial, where nothing is kept. Default: false, the error is returned.
	Empty bool
}

// Cache keeps the last good answers of a low-risk read, for when its source cannot answer. It spares the source no call: each
// question is asked first. Values are kept as they are; do not change them. It is safe for concurrent use.
type Cache[T any] struct {
	options CacheOptions

	mu      sync.Mutex
	entries map[string]*list.Element
	recent  *list.List // of entry[T], the one used last in front
}

type entry[T any] struct {
	key   string
	value T
	at    time.Time
}

// Answer is a value and where it comes from.
type Answer[T any] struct {
	Value T
	// Stale says that Value is Age old, because the source could not answer.
	Stale bool
	Age   time.Duration
	// Partial says that there is no value: neither the source nor the cache had one.
	Partial bool
}

// NewCache returns a cache.
func NewCache[T any](o CacheOptions) (*Cache[T], error) {
	if o.MaxAge < 0 || o.Entries < 0 {
		return nil, fmt.Errorf("fallback: MaxAge is %s and Entries is %d; neither may be negative", o.MaxAge, o.Entries)
	}
	o.MaxAge, o.Entries = cmp.Or(o.MaxAge, 5*time.Minute), cmp.Or(o.Entries, 1000)
	return &Cache[T]{options: o, entries: map[string]*list.Element{}, recent: list.New()}, nil
}

// Get asks fetch, usually a call under a policy, and keeps what it answers. When it fails in a way that [Allowed] allows, the last
// answer for key is returned, as stale. The error is fetch's.
func (c *Cache[T]) Get(ctx context.Context, key string, fetch func(ctx context.Context) (T, error)) (Answer[T], error) {
	value, err := fetch(ctx)
	if err == nil {
		c.keep(key, value)
		return Answer[T]{Value: value}, nil
	}
	if !Allowed(err) {
		return Answer[T]{}, err
	}
	if kept, age, ok := c.find(key); ok {
		return Answer[T]{Value: kept, Stale: true, Age: age}, nil
	}
	if c.options.Empty {
		return Answer[T]{Partial: true}, nil
	}
	return Answer[T]{}, err
}

// Allowed says whether a failure may be replaced by something else on a low-risk read: the source did not answer. What it decided
// (a 404), a cancellation and a shutdown stay what they are.
func Allowed(err error) bool {
	switch resilience.Classify(err) {
	case resilience.ClassUnknown, resilience.ClassTransient, resilience.ClassDatabaseRetry, resilience.ClassTimeout, resilience.ClassUnavailable:
		return true
	case resilience.ClassNone, resilience.ClassPermanent, resilience.ClassCancelled, resilience.ClassShutdown:
	}
	return false
}

// SetAge writes the header Age, in whole seconds, to the answer to a request; of a fresh answer it is left out.
func (a Answer[T]) SetAge(h http.Header) {
	if a.Stale {
		h.Set("Age", strconv.FormatInt(int64(a.Age/time.Second), 10))
	}
}

func (c *Cache[T]) keep(key string, value T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fresh := entry[T]{key, value, time.Now()}
	if at, ok := c.entries[key]; ok {
		at.Value = fresh
		c.recent.MoveToFront(at)
		return
	}
	c.entries[key] = c.recent.PushFront(fresh)
	if c.recent.Len() > c.options.Entries {
		c.drop(c.recent.Back())
	}
}

func (c *Cache[T]) find(key string) (value T, age time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.entries[key]
	if !ok {
		return value, 0, false
	}
	kept, _ := at.Value.(entry[T])
	age = time.Since(kept.at)
	if age > c.options.MaxAge {
		c.drop(at)
		return value, 0, false
	}
	c.recent.MoveToFront(at)
	return kept.value, age, true
}

func (c *Cache[T]) drop(at *list.Element) {
	kept, _ := c.recent.Remove(at).(entry[T])
	delete(c.entries, kept.key)
}
