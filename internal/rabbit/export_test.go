package rabbit

import (
	"net"
	"time"

	"github.com/rs/zerolog"
)

// WithHeartbeat is what Dial makes of a URL.
func WithHeartbeat(raw string, limit time.Duration) (string, error) { return withHeartbeat(raw, limit) }

// Wire is a wrapped socket.
type Wire interface {
	net.Conn
	Abort()
	WriteError() error
}

type exportedWire struct{ netWire }

func (w exportedWire) Abort()            { w.abort() }
func (w exportedWire) WriteError() error { return w.writeError() }

// NewWire wraps a socket as Dial does.
func NewWire(conn net.Conn, timeout time.Duration, coalesce bool) Wire {
	bounded := newDeadlineConn(conn, timeout)
	if coalesce {
		return exportedWire{newCoalescer(bounded, zerolog.Nop())}
	}
	return exportedWire{bounded}
}

// CoalesceLimit bounds what waits for the flusher.
const CoalesceLimit = coalesceLimit

// Outstanding is the bookkeeping of delivery tags.
type Outstanding struct{ tags outstanding }

// Deliver notes a delivery.
func (o *Outstanding) Deliver(tag uint64) { o.tags.high = tag }

// Settle says whether the tag may be settled.
func (o *Outstanding) Settle(tag uint64, multiple bool) bool { return o.tags.settle(tag, multiple) }

// Count of outstanding deliveries.
func (o *Outstanding) Count() int { return o.tags.count() }

// Backoff is the wait after some failures in a row, with the default bounds.
func Backoff(failures int) time.Duration {
	s := supervisor{opts: SuperviseOptions{}.withDefaults(), failures: failures}
	return s.backoff()
}

// ManagementURL is the default address of the management API.
func ManagementURL(amqpURL string) (string, error) {
	u, err := managementURL("", amqpURL)
	if err != nil {
		return "", err
	}
	return u.String(), nil
}

// SmallPages makes Queues ask for so many at once.
func SmallPages(m *Management, size int) { m.queuePage = size }
