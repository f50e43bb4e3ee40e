package rabbit

import "encoding/binary"

// The parts of AMQP 0-9-1's framing that this package sees or writes itself: a frame is a type, a channel, a size, the payload, and an end.
const (
	frameMethod = 1
	frameHeader = 2
	frameBody   = 3
	frameBeat   = 8
	frameEnd    = 0xCE
	// frameHead is the size of what precedes a payload, frameOverhead of all that is not payload.
	frameHead     = 7
	frameOverhead = frameHead + 1
	// frameStart is as much of a frame as a confirm has: head, method, delivery tag, bits.
	frameStart = frameHead + 4 + 8 + 1
	// protocolHeader is what a client sends before its first frame.
	protocolHeader = len("AMQP") + 4
)

// method is a class and a method in one.
type method = uint32

const (
	channelOpen    method = 20<<16 | 10
	channelClose   method = 20<<16 | 40
	channelCloseOk method = 20<<16 | 41
	basicPublish   method = 60<<16 | 40
	basicReturn    method = 60<<16 | 50
	basicDeliver   method = 60<<16 | 60
	basicAck       method = 60<<16 | 80
	basicReject    method = 60<<16 | 90
	basicNack      method = 60<<16 | 120
	confirmSelect  method = 85<<16 | 10
)

// start is the beginning of a frame, up to frameStart bytes.
type start []byte

func (s start) channel() uint16 { return binary.BigEndian.Uint16(s[1:]) }

// size is that of the payload.
func (s start) size() int { return int(binary.BigEndian.Uint32(s[3:])) }

// method returns 0 for a frame that has none.
func (s start) method() method {
	if s[0] != frameMethod || len(s) < frameHead+4 {
		return 0
	}
	return binary.BigEndian.Uint32(s[frameHead:])
}

// confirm returns the arguments of basic.ack and basic.nack.
func (s start) confirm() (tag uint64, multiple, ok bool) {
	if len(s) < frameStart {
		return 0, false, false
	}
	return binary.BigEndian.Uint64(s[frameHead+4:]), s[frameHead+12]&1 != 0, true
}

// cutter finds the frames in a stream of bytes, however that is cut into reads or writes. The zero value begins with a frame.
type cutter struct {
	skip int // bytes before the first frame
	head [frameStart]byte
	have int // bytes in head
	left int // bytes of the frame to come after its head of frameHead, its end included
}

// cut shows the start of each frame that ends in p, and returns how many bytes of p belong to frames that are whole now. What is shown is
// valid during the call.
func (c *cutter) cut(p []byte, show func(start)) (whole int) {
	for at := 0; at < len(p); {
		switch {
		case c.skip > 0:
			n := min(c.skip, len(p)-at)
			c.skip -= n
			at += n
			if c.skip == 0 {
				whole = at
			}
		case c.have < frameHead:
			n := copy(c.head[c.have:frameHead], p[at:])
			c.have += n
			at += n
			if c.have == frameHead {
				c.left = int(binary.BigEndian.Uint32(c.head[3:])) + 1
			}
		default:
			n := min(c.left, len(p)-at)
			c.have += copy(c.head[c.have:], p[at:at+n])
			c.left -= n
			at += n
			if c.left == 0 {
				show(c.head[:c.have])
				c.have, whole = 0, at
			}
		}
	}
	return whole
}
