package resilience

import (
	"context"
	"net/http"
	"strconv"
	"time"
)

// HeaderTimeout carries a budget over HTTP: the whole milliseconds that the caller has left when it sends. It is a duration
// and no time of day, so that no clock of another host is trusted; what the request spends on its way is not counted.
const HeaderTimeout = "X-Request-Timeout-Ms"

// maxTimeout bounds what a header may ask for.
const maxTimeout = 24 * time.Hour

// SetTimeoutHeader writes what ctx has left, rounded down so that the server never believes in more than there is. Without a
// limit the header is removed.
func SetTimeoutHeader(ctx context.Context, h http.Header) {
	left, limited := Left(ctx)
	if !limited {
		h.Del(HeaderTimeout)
		return
	}
	h.Set(HeaderTimeout, strconv.FormatInt(left.Milliseconds(), 10))
}

// TimeoutFrom reads [HeaderTimeout]; false when it is missing or no whole number of milliseconds. 0 says that the caller has no
// time left. More than 24 h is read as 24 h.
func TimeoutFrom(h http.Header) (time.Duration, bool) {
	text := h.Get(HeaderTimeout)
	if text == "" || len(text) > 18 {
		return 0, false
	}
	ms, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, false
	}
	if ms > uint64(maxTimeout.Milliseconds()) {
		return maxTimeout, true
	}
	return time.Duration(ms) * time.Millisecond, true
}

// BudgetFromRequest begins the budget of a request when it is received: the smaller of the server's own limit and what
// [HeaderTimeout] says. A missing or broken header leaves the own limit; own 0 is no limit of the server's. Call the
// function when the request is answered.
//
// A context that has ended already means that the caller has given up: do nothing, and answer DEADLINE_EXCEEDED.
func BudgetFromRequest(r *http.Request, own time.Duration) (context.Context, context.CancelFunc) {
	limit, asked := TimeoutFrom(r.Header)
	switch {
	case !asked && own <= 0:
		ctx := context.WithValue(r.Context(), budgetKey{}, new(Budget))
		return context.WithCancel(ctx)
	case !asked || own > 0 && own < limit:
		limit = own
	}
	return WithBudget(r.Context(), limit)
}
