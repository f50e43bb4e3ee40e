package rabbit

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// coalesceLimit bounds the bytes that wait for the flusher; a writer beyond it waits, which is the back-pressure.
const coalesceLimit = 256 << 10

// closeFlushLimit bounds the last flush, towards a peer that may not read any more.
const closeFlushLimit = time.Second

// flushChunk bounds one write, so that the write deadline asks for a modest rate only.
const flushChunk = 64 << 10

// errChannelOver says that the channel was closed, by either side: another frame on it would cost the whole connection.
var errChannelOver = errors.New("rabbit: the channel is closed")

// coalescer is the transport under the client library. It gathers writes and flushes them from one goroutine: the library flushes once per
// frame or message, a system call each; while one is under way the following gather here (measured: 11-15 us of CPU per publish become 7-8 us).
// Beside the library a Publisher writes, and for that the coalescer passes on whole frames only, and knows which channels are over.
// A failed flush closes the socket, so that the reader notices; later writes return the error.
type coalescer struct {
	*deadlineConn
	*tap

	mu      sync.Mutex
	changed sync.Cond // pending grew or shrank, or the state changed
	pending []byte
	cutter  cutter
	partial []byte // the beginning of a frame, which the library has not written whole
	over    map[uint16]struct{}
	closing bool // no more writes, flush the rest
	err     error
	flushed chan struct{} // closed when the flusher has ended
}

func newCoalescer(conn *deadlineConn, logger zerolog.Logger) *coalescer {
	c := &coalescer{
		deadlineConn: conn, tap: newTap(conn), cutter: cutter{skip: protocolHeader}, over: map[uint16]struct{}{}, flushed: make(chan struct{}),
	}
	c.changed.L = &c.mu
	go func() {
		defer telemetry.FatalOnPanic(logger)
		c.flush()
	}()
	return c
}

// Read is the library's.
func (c *coalescer) Read(p []byte) (int, error) { return c.tap.Read(p) }

// Write is the library's. It queues p for the flusher, and waits while the buffer is full, no longer than the flusher's write deadline.
func (c *coalescer) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.wait(len(p)); err != nil {
		return 0, err
	}
	whole := c.cutter.cut(p, c.sees)
	if whole == 0 {
		c.partial = append(c.partial, p...)
		return len(p), nil
	}
	c.queue(c.partial)
	c.queue(p[:whole])
	c.partial = append(c.partial[:0], p[whole:]...)
	return len(p), nil
}

// sees notes which channels the library opens and closes.
func (c *coalescer) sees(s start) {
	switch s.method() {
	case channelOpen:
		delete(c.over, s.channel())
	case channelClose, channelCloseOk:
		c.over[s.channel()] = struct{}{}
	}
}

// publish queues whole frames of a channel, unless that is over. After an error nothing of them is sent.
func (c *coalescer) publish(channel uint16, frames []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.wait(len(frames)); err != nil {
		return err
	}
	if _, over := c.over[channel]; over {
		return errChannelOver
	}
	c.queue(frames)
	return nil
}

// wait returns when there is room for some bytes.
func (c *coalescer) wait(size int) error {
	for c.err == nil && !c.closing && len(c.pending) > 0 && len(c.pending)+size > coalesceLimit {
		c.changed.Wait()
	}
	if c.err == nil && c.closing {
		return net.ErrClosed
	}
	return c.err
}

func (c *coalescer) queue(p []byte) {
	wasEmpty := len(c.pending) == 0
	c.pending = append(c.pending, p...)
	if wasEmpty && len(p) > 0 {
		c.changed.Broadcast()
	}
}

func (c *coalescer) flush() {
	defer close(c.flushed)
	var batch []byte
	for {
		var more bool
		if batch, more = c.take(batch); !more {
			return
		}
		if err := c.send(batch); err != nil {
			c.fail(err)
			return
		}
	}
}

// take swaps the pending bytes against the buffer already sent; false means that the writer closed and nothing is left.
func (c *coalescer) take(sent []byte) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.pending) == 0 && !c.closing && c.err == nil {
		c.changed.Wait()
	}
	if len(c.pending) == 0 || c.err != nil {
		return nil, false
	}
	batch := c.pending
	c.pending = reuse(sent)
	c.changed.Broadcast()
	return batch, true
}

// reuse keeps a buffer unless one large message made it grow beyond what is normal.
func reuse(buf []byte) []byte {
	if cap(buf) > 2*coalesceLimit {
		return nil
	}
	return buf[:0]
}

func (c *coalescer) send(batch []byte) error {
	for len(batch) > 0 {
		n := min(len(batch), flushChunk)
		if _, err := c.deadlineConn.Write(batch[:n]); err != nil {
			return err
		}
		batch = batch[n:]
	}
	return nil
}

func (c *coalescer) fail(err error) {
	c.mu.Lock()
	c.err = err
	c.pending = nil
	c.changed.Broadcast()
	c.mu.Unlock()
	c.deadlineConn.abort()
}

// Close flushes what is queued, for a second at most, and closes the socket.
func (c *coalescer) Close() error {
	limit := time.AfterFunc(closeFlushLimit, c.deadlineConn.abort)
	defer limit.Stop()
	c.mu.Lock()
	c.closing = true
	c.changed.Broadcast()
	c.mu.Unlock()
	<-c.flushed
	return c.deadlineConn.Close()
}

// abort drops the socket and what is queued at once.
func (c *coalescer) abort() {
	c.fail(net.ErrClosed)
	<-c.flushed
}
