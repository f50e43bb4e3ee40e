package console

import (
	"net/http"
	"sync"
)

// places are for what happens at the same time: so many for all, and of them so many for each person, or each address that is nobody yet, so that
// none of them keeps the others out. Safe for concurrent use.
type places struct {
	most, each int
	// full says that none is left, and yours that none of one's own is.
	full, yours *statusError

	mu    sync.Mutex
	taken int
	by    map[string]int
}

func newPlaces(most, each int, full, yours string) *places {
	return &places{
		most: most, each: each, by: map[string]int{},
		full: &statusError{http.StatusServiceUnavailable, full, nil}, yours: &statusError{http.StatusTooManyRequests, yours, nil},
	}
}

// take takes one for whoever key stands for; leave gives it back, once.
func (p *places) take(key string) (leave func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.by[key] >= p.each:
		return nil, p.yours
	case p.taken >= p.most:
		return nil, p.full
	}
	p.taken++
	p.by[key]++
	return func() { p.leave(key) }, nil
}

func (p *places) leave(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.by[key]--; p.by[key] == 0 {
		delete(p.by, key)
	}
}

// busy answers whoever has got no place.
func busy(w http.ResponseWriter, err error, retryAfter string) {
	w.Header().Set("Retry-After", retryAfter)
	refuse(w, statusOf(err), err.Error())
}
