package rabbit

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"

	"github.com/surefoot-mq/surefoot/resilience"
)

// A TLS alert, with which a server of TLS answers what is not TLS: its first two bytes, and its length. The last byte says which.
const (
	recordAlert = 0x15
	recordMajor = 0x03
	alertLength = 7
)

// plain is a socket without TLS. It says what the broker's first answer means when that is not AMQP: the library calls it a frame that is too big,
// or tells of an end alone.
type plain struct {
	net.Conn
	answered bool // only the reader looks
	failure  atomic.Pointer[error]
}

// Read implements [io.Reader].
func (c *plain) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.answered {
		return n, err
	}
	c.answered = true
	if told := opening(p[:n], err); told != nil {
		told = resilience.Unavailable(told)
		c.failure.Store(&told)
		return 0, told
	}
	return n, err
}

// opening is what is wrong with the first answer; nil if nothing is known to be.
func opening(answer []byte, err error) error {
	switch {
	case len(answer) >= 2 && answer[0] == recordAlert && answer[1] == recordMajor:
		alert := tls.AlertError(0)
		if len(answer) >= alertLength {
			alert = tls.AlertError(answer[alertLength-1])
		}
		cause := &net.OpError{Op: "remote error", Net: "tcp", Err: alert}
		return fmt.Errorf("the broker speaks TLS on this port: write amqps:// in its URL: %w", cause)
	case len(answer) == 0 && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
		return fmt.Errorf("hung up before the broker said anything: where this port speaks TLS, as 5671 by default, write amqps:// in the URL; "+
			"else look whether it is that of AMQP, and a broker is behind it: %w", err)
	}
	return nil
}

func (c *plain) refusal() error {
	if told := c.failure.Load(); told != nil {
		return *told
	}
	return nil
}
