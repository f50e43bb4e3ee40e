package consumer

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ackDelay is how long a finished message may wait for its neighbours, so that one acknowledgement settles several.
const ackDelay = 5 * time.Millisecond

// settler is what acks need of a subscription. Settlements of an ended one are dropped there.
type settler interface {
	Ack(tag uint64, multiple bool) error
	Nack(tag uint64, multiple, requeue bool) error
	Reject(tag uint64, requeue bool) error
}

// acks gathers the acknowledgements of one subscription. Only a prefix in which every delivery is done is settled by one
// acknowledgement; a done delivery behind one that is not gets its own. Tags count from 1 without gaps. For one goroutine.
type acks struct {
	to      settler
	limit   int             // done ones that are settled at once
	low     uint64          // all up to here are settled
	high    uint64          // the last received
	settled map[uint64]bool // above low: true settled, false done
	done    int             // of settled, those that are only done
	since   time.Time       // when the first of them was done
}

func newAcks(to settler, prefetch int) *acks {
	return &acks{to: to, limit: max(prefetch/2, 1), settled: make(map[uint64]bool, prefetch)}
}

// received notes a delivery.
func (a *acks) received(d *amqp.Delivery) { a.high = max(a.high, d.DeliveryTag) }

// outstanding counts the deliveries that the broker still waits for.
func (a *acks) outstanding() int { return int(a.high-a.low) - len(a.settled) + a.done }

// finish notes that a delivery is done and may be acknowledged.
func (a *acks) finish(tag uint64, now time.Time) {
	if a.done == 0 {
		a.since = now
	}
	a.settled[tag] = false
	a.done++
}

// due says when the gathered acknowledgements must go; false when there are none.
func (a *acks) due() (time.Time, bool) {
	switch {
	case a.done == 0:
		return time.Time{}, false
	case a.done >= a.limit:
		return a.since, true
	default:
		return a.since.Add(ackDelay), true
	}
}

// flush acknowledges everything that is done.
func (a *acks) flush() {
	if a.done == 0 {
		return
	}
	a.flushPrefix()
	for tag, sent := range a.settled {
		if !sent {
			_ = a.to.Ack(tag, false)
			a.settled[tag] = true
		}
	}
	a.done = 0
}

// flushPrefix acknowledges what has nothing undone before it.
func (a *acks) flushPrefix() {
	if prefix := a.prefix(); prefix > a.low {
		_ = a.to.Ack(prefix, true) // dropped after the end of the generation: the message comes again
		a.settleUpTo(prefix)
	}
}

// prefix is the last done delivery with nothing undone before it; low when there is none.
func (a *acks) prefix() uint64 {
	prefix := a.low
	for tag := a.low + 1; ; tag++ {
		sent, known := a.settled[tag]
		if !known {
			return prefix
		}
		if !sent {
			prefix = tag
		}
	}
}

// settleUpTo moves low over everything that is settled.
func (a *acks) settleUpTo(prefix uint64) {
	for tag := a.low + 1; tag <= prefix; tag++ {
		if !a.settled[tag] {
			a.done--
		}
		delete(a.settled, tag)
	}
	a.low = prefix
	a.advance()
}

func (a *acks) advance() {
	for a.settled[a.low+1] {
		delete(a.settled, a.low+1)
		a.low++
	}
}

// giveBack returns a delivery to its queue, uncounted where the broker can.
func (a *acks) giveBack(tag uint64) {
	_ = a.to.Nack(tag, false, true)
	a.settled[tag] = true
	a.advance()
}

// discard leaves a delivery to the broker's own dead-lettering.
func (a *acks) discard(tag uint64) {
	_ = a.to.Reject(tag, false)
	a.settled[tag] = true
	a.advance()
}
