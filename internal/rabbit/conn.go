package rabbit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// closeLimit bounds the closing handshake; a broker that has stopped reading never answers it.
const closeLimit = 3 * time.Second

// ErrClosed says that this side closed the connection, channel, publisher or subscription.
var ErrClosed = errors.New("rabbit: closed by this side")

// ErrLost says that the connection ended without a reason from the broker.
var ErrLost = errors.New("rabbit: connection lost")

// ErrUndecodable says that the broker delivered a message which the client library cannot read, and so has closed the
// connection: it would close every further one. Only the broker can move the message.
var ErrUndecodable = errors.New("rabbit: the broker delivered a message that cannot be read here: its headers are nested more than 32 deep, " +
	"have more than 8192 entries at one level, or do not fit into a frame")

// Conn is one connection to the broker. It does not reconnect: when Done is closed it is over, see [Supervise].
// Safe for concurrent use. Publish and consume on separate connections: an alarm that stops publishes stops acks on the same one.
type Conn struct {
	opts    Options
	amqp    *amqp.Connection
	wire    *coalescer
	user    string
	address string
	version Version

	mu      sync.Mutex
	closing bool
	err     error
	block   blockState
	done    chan struct{}
}

// blockState is replaced as a whole, and changed closed, whenever the broker blocks or unblocks the connection.
type blockState struct {
	blocked bool
	reason  string
	changed chan struct{}
}

// watch follows the connection's notifications until it ends. Both channels are read without pause, for the library abandons a
// listener that is not read.
func (c *Conn) watch(closes <-chan *amqp.Error, blocks <-chan amqp.Blocking) {
	for {
		select {
		case b, ok := <-blocks:
			if !ok {
				blocks = nil
				continue
			}
			c.setBlocked(b.Active, b.Reason)
		case reason := <-closes:
			c.finish(reason)
			return
		}
	}
}

func (c *Conn) setBlocked(active bool, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.block.changed)
	c.block = blockState{blocked: active, reason: reason, changed: make(chan struct{})}
}

func (c *Conn) finish(reason *amqp.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = c.endReason(reason)
	close(c.done)
}

// endReason prefers what the broker said, then the write that failed first, for the library then only reports the closed socket.
func (c *Conn) endReason(reason *amqp.Error) error {
	writeErr := c.wire.writeError()
	switch {
	case reason != nil && reason.Server:
		return fmt.Errorf("rabbit: broker %s closed the connection: %w", c.address, reason)
	case undecodable(reason):
		return fmt.Errorf("%w (%s)", ErrUndecodable, reason.Reason)
	case c.err != nil: // aborted with a reason
		return c.err
	case c.closing:
		return ErrClosed
	case writeErr != nil:
		return fmt.Errorf("%w: write to %s: %w", ErrLost, c.address, writeErr)
	case reason != nil:
		return fmt.Errorf("%w: %s: %w", ErrLost, c.address, reason)
	default:
		return fmt.Errorf("%w: %s", ErrLost, c.address)
	}
}

// undecodable knows the library's two complaints about a frame that says more than its limits.
func undecodable(reason *amqp.Error) bool {
	return reason != nil && (strings.Contains(reason.Reason, amqp.ErrSyntax.Reason) || strings.Contains(reason.Reason, amqp.ErrFrameTooLarge.Reason))
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err says why the connection ended: ErrClosed after Close, an error that wraps *amqp.Error when the broker closed it, else one
// that wraps ErrLost. Nil while it is open.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Blocked says whether the broker has stopped reading from this connection (memory or disk alarm), and its reason.
func (c *Conn) Blocked() (blocked bool, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.block.blocked, c.block.reason
}

// BlockedChanged returns a channel that is closed at the next change of Blocked.
func (c *Conn) BlockedChanged() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.block.changed
}

// WaitUnblocked returns nil as soon as the connection is not blocked, and an error when ctx or the connection ends first.
func (c *Conn) WaitUnblocked(ctx context.Context) error {
	for {
		c.mu.Lock()
		state := c.block
		c.mu.Unlock()
		if !state.blocked {
			return nil
		}
		select {
		case <-state.changed:
		case <-c.done:
			return c.Err()
		case <-ctx.Done():
			return fmt.Errorf("rabbit: connection blocked by the broker (%s): %w", state.reason, ctx.Err())
		}
	}
}

// ServerVersion is the broker's version as it named itself in the handshake.
func (c *Conn) ServerVersion() Version { return c.version }

// Name is what the management page calls the connection: surefoot <role> <host> <version>.
func (c *Conn) Name() string { return c.opts.connectionName() }

// User is the user name of the connection.
func (c *Conn) User() string { return c.user }

// Address names the broker without secrets: host:port/vhost.
func (c *Conn) Address() string { return c.address }

// LocalAddr is this side's address, host:port, as the management page shows it.
func (c *Conn) LocalAddr() string { return c.amqp.LocalAddr().String() }

// FrameMax is the negotiated size of a frame in bytes, 0 when unlimited. All headers of a message must fit one frame.
func (c *Conn) FrameMax() int { return c.amqp.Config.FrameSize }

// Close ends the connection with the closing handshake, within 3 s; then it is dropped. What was published and not yet confirmed
// has an unknown outcome. It returns nil when the connection is over already, and may be called more than once.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	limit := time.AfterFunc(closeLimit, c.wire.abort)
	defer limit.Stop()
	c.wire.asking.Add(1)
	err := c.amqp.Close()
	<-c.done
	if err != nil && !errors.Is(err, amqp.ErrClosed) {
		return fmt.Errorf("rabbit: close connection to %s: %w", c.address, err)
	}
	return nil
}

// Abort drops the connection at once, without the handshake; cause becomes its Err. It does not wait for anything.
func (c *Conn) Abort(cause error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = cause
	}
	c.mu.Unlock()
	c.wire.abort()
}
