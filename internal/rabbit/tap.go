package rabbit

import (
	"bufio"
	"io"
	"sync"
)

const (
	// tapBuffer is how much is read from a socket at once.
	tapBuffer = 32 << 10
	// returnsRoom holds the returns that may come between two reads of the library: it reads 4 KiB, and a return has 50 bytes at least.
	returnsRoom = 128
)

// confirms hears what the broker says about the publishes on a channel. It must not block.
type confirms interface {
	// confirmed says that a publish, or with multiple all up to it, is done or refused. The library has passed on the returns before it.
	confirmed(tag uint64, multiple, done bool)
	// returned says that the library has passed on a return.
	returned()
	// ended says that nothing more will come.
	ended()
}

// tap reads along what the library reads, and tells who listens about confirms. The library's own confirms cost it a walk over the whole window for
// each frame that the broker sends, and hold back what is confirmed out of order.
//
// A return precedes the confirm of its message, and goes through the library. So nothing is told before the library asks for more to read: it
// does that from the goroutine that passes everything on, and only when all it has read before is passed on.
type tap struct {
	socket io.Reader
	cutter cutter
	show   func(start)
	heard  []event

	mu        sync.Mutex
	listeners map[uint16]confirms
	dead      bool
}

// event is one frame that somebody may listen for.
type event struct {
	channel  uint16
	method   method
	tag      uint64
	multiple bool
}

func newTap(socket io.Reader) *tap {
	t := &tap{socket: bufio.NewReaderSize(socket, tapBuffer), listeners: map[uint16]confirms{}}
	t.show = t.see
	return t
}

// listen tells l about a channel until that is over.
func (t *tap) listen(channel uint16, l confirms) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dead {
		l.ended()
		return
	}
	t.listeners[channel] = l
}

// Read is the library's.
func (t *tap) Read(p []byte) (int, error) {
	t.tell()
	n, err := t.socket.Read(p)
	t.cutter.cut(p[:n], t.show)
	if err != nil {
		t.end()
	}
	return n, err
}

func (t *tap) see(s start) {
	e := event{channel: s.channel(), method: s.method()}
	switch e.method {
	case basicAck, basicNack:
		var ok bool
		if e.tag, e.multiple, ok = s.confirm(); !ok {
			return
		}
	case basicReturn, channelClose, channelCloseOk:
	default:
		return
	}
	t.heard = append(t.heard, e)
}

func (t *tap) tell() {
	for _, e := range t.heard {
		t.mu.Lock()
		l := t.listeners[e.channel]
		if e.method == channelClose || e.method == channelCloseOk {
			delete(t.listeners, e.channel)
		}
		t.mu.Unlock()
		if l == nil {
			continue
		}
		switch e.method {
		case basicReturn:
			l.returned()
		case channelClose, channelCloseOk:
			l.ended()
		default:
			l.confirmed(e.tag, e.multiple, e.method == basicAck)
		}
	}
	t.heard = t.heard[:0]
}

// end tells everybody that the connection is over. What was heard with the last bytes is not told: the library may not pass on
// the returns among them.
func (t *tap) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dead, t.heard = true, nil
	for _, l := range t.listeners {
		l.ended()
	}
	clear(t.listeners)
}
