package rabbit

import "fmt"

// Ack settles the delivery with this tag, with multiple all up to it. After the end it sends nothing and returns ErrStale, for a tag that is not
// outstanding ErrNotOutstanding. Nil means that it was written, not that it arrived.
func (s *Subscription) Ack(tag uint64, multiple bool) error {
	return s.settle(basicAck, tag, multiple, false)
}

// Nack returns or discards deliveries, like Ack. From 4.3 a nack with requeue does not count against the delivery limit: it is for a message returned unstarted.
func (s *Subscription) Nack(tag uint64, multiple, requeue bool) error {
	return s.settle(basicNack, tag, multiple, requeue)
}

// Reject returns or discards one delivery, like Ack. With requeue it counts against the delivery limit on every version: it is for a handler that failed.
func (s *Subscription) Reject(tag uint64, requeue bool) error {
	return s.settle(basicReject, tag, false, requeue)
}

func (s *Subscription) settle(how method, tag uint64, multiple, requeue bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.channel.amqp.IsClosed() {
		return ErrStale
	}
	if !s.tags.settle(tag, multiple) {
		return fmt.Errorf("%w: tag %d", ErrNotOutstanding, tag)
	}
	if err := s.channel.settle(&s.encoder, how, tag, multiple, requeue); err != nil {
		return fmt.Errorf("%w: %w", ErrStale, s.channel.conn.explain(err))
	}
	return nil
}

// Unsettled returns how many deliveries were received from the broker's side and not yet settled.
func (s *Subscription) Unsettled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tags.count()
}

// outstanding knows which delivery tags of a channel may be settled. The broker counts them from 1 without gaps.
type outstanding struct {
	low     uint64              // all up to here are settled
	high    uint64              // the last delivered
	settled map[uint64]struct{} // those above low that are settled, at most the prefetch
}

func (o *outstanding) count() int { return int(o.high-o.low) - len(o.settled) }

// settle says whether the tag, with multiple all up to it, may be settled now, and takes it as settled then.
func (o *outstanding) settle(tag uint64, multiple bool) bool {
	if _, twice := o.settled[tag]; twice || tag <= o.low || tag > o.high {
		return false
	}
	if o.settled == nil {
		o.settled = make(map[uint64]struct{})
	}
	if multiple {
		for t := range o.settled {
			if t < tag {
				delete(o.settled, t)
			}
		}
		o.low = tag - 1
	}
	o.settled[tag] = struct{}{}
	for {
		if _, next := o.settled[o.low+1]; !next {
			return true
		}
		delete(o.settled, o.low+1)
		o.low++
	}
}
