package rabbit

import (
	"bufio"
	"io"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
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

// tap reads for the library, and keeps from it what is read better here. It tells who listens about confirms: the library's own cost a walk over
// the whole window for each frame that the broker sends, and hold back what is confirmed out of order. And it takes out the deliveries of channels
// that have a stream; the library sees everything else, in its order.
//
// A return precedes the confirm of its message, and goes through the library. So nothing is told before the library asks for more to read: it
// does that from the goroutine that passes everything on, and only when all it has read before is passed on.
type tap struct {
	socket *bufio.Reader
	pass   int       // bytes of the present frame that the library has not got yet
	seen   []event   // the present frame, when somebody may listen for it
	heard  []event   // of frames that the library has got whole
	raw    bool      // what comes are no frames
	beat   time.Time // when the library last got something

	// asking counts the requests of this side that wait for an answer.
	asking atomic.Int32

	mu        sync.Mutex
	listeners map[uint16]confirms
	streams   map[uint16]*stream
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
	return &tap{socket: bufio.NewReaderSize(socket, tapBuffer), beat: time.Now(), listeners: map[uint16]confirms{}, streams: map[uint16]*stream{}}
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

// divert takes the deliveries of a channel out until that is over.
func (t *tap) divert(channel uint16, s *stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.streams[channel] = s
}

// Read is the library's.
func (t *tap) Read(p []byte) (int, error) {
	t.tell()
	n, err := t.read(p)
	if err != nil {
		t.end()
	}
	return n, err
}

// read fills p with what the library is to see, and waits only while there is nothing.
func (t *tap) read(p []byte) (n int, err error) {
	for n < len(p) {
		if !t.ready() {
			if n > 0 {
				break
			}
			t.lag()
		}
		if t.pass > 0 || t.raw {
			m, err := t.socket.Read(t.part(p[n:]))
			n += m
			t.passed(m)
			if err != nil {
				return n, err
			}
			continue
		}
		if err := t.next(); err != nil {
			return n, err
		}
		if t.pass == 0 && n == 0 && t.overdue() && len(p) >= len(heartbeat) {
			n = copy(p, heartbeat[:])
		}
	}
	if n > 0 {
		t.beat = time.Now()
	}
	return n, nil
}

const (
	// slack is how many deliveries of a channel may wait before less is read: a prefetch can be much larger, and all of it in memory.
	slack = 2000
	// lagMost is how long one read waits then. RabbitMQ gives up a connection that takes nothing for 15 s, and so something is taken on.
	lagMost  = 100 * time.Millisecond
	lagCheck = 2 * time.Millisecond
)

// lag waits while who takes the deliveries is far behind, unless an answer is waited for, which comes after them.
func (t *tap) lag() {
	for end := time.Now().Add(lagMost); t.asking.Load() == 0 && t.behind() && time.Now().Before(end); {
		<-time.After(lagCheck)
	}
}

func (t *tap) behind() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.streams {
		if s.waiting() > slack {
			return true
		}
	}
	return false
}

// heartbeat is what the library gets when deliveries are all that comes: the broker then sends none, and without any the library takes the
// connection to be dead.
var heartbeat = [...]byte{frameBeat, 0, 0, 0, 0, 0, 0, frameEnd}

// heartbeatEvery is how long deliveries alone may come.
const heartbeatEvery = 500 * time.Millisecond

// overdue looks at the time only before a read that may wait.
func (t *tap) overdue() bool { return !t.ready() && time.Since(t.beat) > heartbeatEvery }

// ready says whether the next step waits for nothing.
func (t *tap) ready() bool {
	have := t.socket.Buffered()
	if t.pass > 0 || t.raw {
		return have > 0
	}
	if have < frameHead {
		return false
	}
	head, _ := t.socket.Peek(frameHead)
	return have >= frameOverhead+start(head).size()
}

// part is what of p the present frame fills.
func (t *tap) part(p []byte) []byte {
	if t.raw {
		return p
	}
	return p[:min(len(p), t.pass)]
}

func (t *tap) passed(n int) {
	if t.raw {
		return
	}
	if t.pass -= n; t.pass == 0 {
		t.heard = append(t.heard, t.seen...)
		t.seen = t.seen[:0]
	}
}

// next looks at the next frame: it is for the library, or it is a part of a delivery and read.
func (t *tap) next() error {
	head, err := t.socket.Peek(frameHead)
	if err != nil {
		return t.cut(err)
	}
	s := start(head)
	if s[0] > frameBeat { // a broker that refuses the protocol answers with a header of its own
		t.raw = true
		return nil
	}
	if s, err = t.socket.Peek(min(frameHead+s.size(), frameStart)); err != nil {
		return t.cut(err)
	}
	if taker := t.taker(s); taker != nil {
		return t.take(taker, s)
	}
	t.pass = frameOverhead + s.size()
	t.see(s)
	return nil
}

// cut leaves it to the library to say what the beginning of a frame means that nothing follows.
func (t *tap) cut(err error) error {
	if t.socket.Buffered() == 0 {
		return err
	}
	t.raw = true
	return nil
}

// taker is the stream that a frame is for; nil: it is for the library.
func (t *tap) taker(s start) *stream {
	if s[0] > frameBody {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	to := t.streams[s.channel()]
	if to == nil || to.now == nil && s.method() != basicDeliver || to.now != nil && s[0] == frameMethod {
		return nil
	}
	return to
}

// take reads a frame of a delivery.
func (t *tap) take(to *stream, s start) (err error) {
	kind, size := s[0], s.size()
	if to.most > 0 && size > to.most {
		return amqp.ErrFrameTooLarge
	}
	if _, err := t.socket.Discard(frameHead); err != nil {
		return err
	}
	if kind == frameBody {
		err = to.body(t.socket, size)
	} else {
		err = t.takeText(to, kind, size)
	}
	if err != nil {
		return err
	}
	end, err := t.socket.ReadByte()
	if err == nil && end != frameEnd {
		err = amqp.ErrFrame
	}
	return err
}

func (t *tap) takeText(to *stream, kind byte, size int) error {
	payload, err := t.socket.Peek(min(size, t.socket.Size()))
	if err == nil && len(payload) == size {
		_, err = t.socket.Discard(size)
	} else if err == nil {
		payload = make([]byte, size)
		_, err = io.ReadFull(t.socket, payload)
	}
	switch {
	case err != nil:
		return err
	case kind == frameMethod:
		return to.method(string(payload))
	default:
		return to.header(string(payload))
	}
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
	t.seen = append(t.seen, e)
}

func (t *tap) tell() {
	for _, e := range t.heard {
		t.mu.Lock()
		l := t.listeners[e.channel]
		if e.method == channelClose || e.method == channelCloseOk {
			delete(t.listeners, e.channel)
			delete(t.streams, e.channel)
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
	clear(t.streams)
}
