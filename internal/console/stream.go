package console

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/surefoot-mq/surefoot/internal/access"
)

// keepAlive is how often a stream says something, so that a dead one is noticed.
const keepAlive = 15 * time.Second

// newsText tells a page to ask for what is new.
const newsText = "event: tick\ndata: new\n\n"

// errEnding says that the console stops.
var errEnding = &statusError{http.StatusServiceUnavailable, "the console is stopping", nil}

// hub tells open pages that there is something new. The zero value is ready; safe for concurrent use.
type hub struct {
	mu      sync.Mutex
	streams map[chan struct{}]bool
	closed  bool
}

// join returns a channel that gets a value at each tick and is closed at the end; nil when that has come.
func (h *hub) join() chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	if h.streams == nil {
		h.streams = map[chan struct{}]bool{}
	}
	ticks := make(chan struct{}, 1)
	h.streams[ticks] = true
	return ticks
}

func (h *hub) leave(ticks chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams, ticks)
}

// tick never waits: a page that has not fetched itself since the last tick needs no second one.
func (h *hub) tick() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ticks := range h.streams {
		select {
		case ticks <- struct{}{}:
		default:
		}
	}
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for ticks := range h.streams {
		close(ticks)
	}
	h.streams = nil
}

// live is the stream of one open page, for as long as its person may look.
func (c *Console) live(w http.ResponseWriter, r *http.Request) {
	leave, err := c.streams.take(c.gate.Key(r))
	if err != nil {
		busy(w, err, "10")
		return
	}
	defer leave()
	ticks := c.hub.join()
	if ticks == nil {
		busy(w, errEnding, "10")
		return
	}
	defer c.hub.leave(ticks)
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // else the limit for reading the request ends its context; a recorder has none
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	text, ended := "retry: 3000\n\n", false
	for {
		_ = out.SetWriteDeadline(time.Now().Add(writeTimeout)) // the server's limit is for pages; here each write has its own
		if _, err := fmt.Fprint(w, text); err != nil {
			return
		}
		if out.Flush() != nil || ended {
			return
		}
		select {
		case _, open := <-ticks:
			if !open {
				return
			}
			text = newsText
		case <-alive.C:
			text = ": alive\n\n"
		case <-r.Context().Done():
			return
		}
		if p, err := c.gate.Still(r); err != nil || p.Role < access.View {
			text, ended = newsText, true // the page asks, and hears why
		}
	}
}
