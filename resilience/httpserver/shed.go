package httpserver

import (
	"net/http"

	"github.com/surefoot-mq/surefoot/resilience"
)

// slots are how many requests may be in hand at once. They do not queue: what waits here uses up its caller's time, and the
// caller that tries again comes on top.
type slots chan struct{}

// take reports whether there was a slot.
func (s slots) take() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s slots) give() { <-s }

// Shed lets at most limit requests into next at once and answers the others with 503 and Retry-After. It panics when limit is
// not positive.
func Shed(limit int, next http.Handler) http.Handler {
	if limit <= 0 {
		panic("httpserver: Shed needs a limit of 1 or more")
	}
	free := make(slots, limit)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !free.take() {
			Error(w, r, errOverloaded)
			return
		}
		defer free.give()
		next.ServeHTTP(w, r)
	})
}

var errOverloaded = &Problem{Code: resilience.CodeOverloaded}
