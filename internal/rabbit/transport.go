package rabbit

import (
	"net"
	"sync"
	"time"
)

// deadlineConn sets a deadline on every write. Without it a broker that stops reading (memory or disk alarm) blocks the
// client inside a write with its locks held, and even Close hangs.
type deadlineConn struct {
	net.Conn
	socket  net.Conn // under it, or the same: TLS would send something more before it closes
	timeout time.Duration

	once  sync.Once
	mu    sync.Mutex
	cause error // the first failed write, the real reason behind a later "use of closed connection"
}

// Write is bounded by the write timeout.
func (d *deadlineConn) Write(p []byte) (int, error) {
	if err := d.SetWriteDeadline(time.Now().Add(d.timeout)); err != nil {
		return 0, err
	}
	n, err := d.Conn.Write(p)
	if err != nil {
		d.failed(err)
	}
	return n, err
}

func (d *deadlineConn) failed(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cause == nil {
		d.cause = err
	}
}

// writeError returns the first failed write, nil if none failed.
func (d *deadlineConn) writeError() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cause
}

// Close closes the socket; a second call does nothing.
func (d *deadlineConn) Close() (err error) {
	d.once.Do(func() { err = d.socket.Close() })
	return err
}

// abort drops the socket at once, with whatever was not sent.
func (d *deadlineConn) abort() { _ = d.Close() }
