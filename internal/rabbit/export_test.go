package rabbit

import (
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rs/zerolog"
)

// LibraryURL is what Dial makes of a URL.
func LibraryURL(raw string, heartbeat time.Duration) (string, error) {
	return libraryURL(raw, heartbeat)
}

// Wire is a wrapped socket.
type Wire struct{ *coalescer }

// Abort drops the socket.
func (w Wire) Abort() { w.abort() }

// WriteError is that of the first failed write.
func (w Wire) WriteError() error { return w.writeError() }

// Publish writes frames of a channel beside the library.
func (w Wire) Publish(channel uint16, frames []byte) error { return w.publish(channel, frames) }

// NewWire wraps a socket as Dial does. The bytes written are taken for frames.
func NewWire(conn net.Conn, timeout time.Duration) Wire {
	return Wire{newCoalescer(&deadlineConn{Conn: conn, socket: conn, timeout: timeout}, zerolog.Nop())}
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
	uri, err := parseURL(amqpURL)
	if err != nil {
		return "", err
	}
	u, err := managementURL("", uri)
	if err != nil {
		return "", err
	}
	return u.String(), nil
}

// SmallPages makes Queues ask for so many at once.
func SmallPages(m *Management, size int) { m.queuePage = size }

// ConfirmFrame is a basic.ack, or a basic.nack.
func ConfirmFrame(channel uint16, nack bool, tag uint64, multiple bool) []byte {
	var e encoder
	at := e.frame(frameMethod, channel)
	e.uint32(map[bool]method{false: basicAck, true: basicNack}[nack])
	e.uint64(tag)
	e.buf = append(e.buf, map[bool]byte{true: 1}[multiple])
	e.endFrame(at)
	return e.buf
}

type listener struct{ told *[]string }

func (l listener) confirmed(tag uint64, multiple, done bool) {
	*l.told = append(*l.told, fmt.Sprint(map[bool]string{true: "ack", false: "nack"}[done], " ", tag, " ", multiple))
}
func (l listener) returned() { *l.told = append(*l.told, "returned") }
func (l listener) ended()    { *l.told = append(*l.told, "ended") }

// Tap returns how the library reads from a socket through a tap, which notes in told what it tells of a channel.
func Tap(socket io.Reader, channel uint16, told *[]string) func([]byte) (int, error) {
	t := newTap(socket)
	t.listen(channel, listener{told})
	return t.Read
}

// TapDeliveries returns how the library reads through a tap that takes the deliveries of a channel out, into to.
func TapDeliveries(socket io.Reader, channel uint16, frameMax int, to chan *amqp.Delivery) func([]byte) (int, error) {
	t := newTap(socket)
	t.divert(channel, &stream{deliver: func(d *amqp.Delivery) error { return offer(to, d) }, waiting: func() int { return len(to) }, most: frameMax - frameOverhead})
	return t.Read
}

// ErrTooMany says that there is no room for a delivery.
var ErrTooMany = errTooMany

// DeliveryFrames are those of a delivery, its body cut into pieces.
func DeliveryFrames(channel uint16, tag uint64, route string, msg amqp.Publishing, piece int) (frames [][]byte) {
	e := func(kind byte, write func(*encoder)) {
		var e encoder
		at := e.frame(kind, channel)
		write(&e)
		e.endFrame(at)
		frames = append(frames, e.buf)
	}
	e(frameMethod, func(e *encoder) {
		e.uint32(basicDeliver)
		e.short("tag", "consumer")
		e.uint64(tag)
		e.buf = append(e.buf, 1) // redelivered
		e.short("exchange", "")
		e.short("routing key", route)
	})
	e(frameHeader, func(e *encoder) {
		e.uint32(basicPublish &^ 0xffff)
		e.uint64(uint64(len(msg.Body)))
		e.properties(&msg)
	})
	for part := range slices.Chunk(msg.Body, piece) {
		e(frameBody, func(e *encoder) { e.buf = append(e.buf, part...) })
	}
	return frames
}

// DecodeHeader decodes the payload of a content header, and says what is wrong with it.
func DecodeHeader(payload string) (d amqp.Delivery, err error) {
	s := stream{deliver: func(got *amqp.Delivery) error { d = *got; return nil }, now: &amqp.Delivery{}, head: true}
	err = s.header(payload)
	return d, err
}
