package relay

import (
	"errors"
	"slices"
	"time"
)

// Why a row is bad, as stored.
const (
	reasonRefused       = "refused"
	reasonChannelClosed = "channel_closed"
	reasonUnroutable    = "unroutable"
)

var (
	errReturnedAgain = errors.New("returned as unroutable, again, while others of its route pass: its headers match no binding")
	errConfirmLate   = errors.New("the broker did not confirm in time")
)

// parkedRef stands for a row of the parked table that will be tried again, or that holds back its key.
type parkedRef struct {
	id, hash int64
	keyed    bool
	dead     bool
	attempts int
	due      time.Time // by this process's clock, from the wait the database computed
	busy     bool      // being read, published or moved
	row      *row      // set while it is in memory
	add      uint64    // parkedLane.adds when it was added
}

// parkedLane are the parked rows of a shard that matter to it.
type parkedLane struct {
	refs map[int64]*parkedRef
	adds uint64 // refs added so far
}

func newParkedLane() parkedLane { return parkedLane{refs: map[int64]*parkedRef{}} }

func (p *parkedLane) add(ref *parkedRef) {
	p.adds++
	ref.add = p.adds
	p.refs[ref.id] = ref
}

func (p *parkedLane) flying() []*row {
	var rows []*row
	for _, ref := range p.refs {
		if ref.row != nil && ref.row.place == placeFlying {
			rows = append(rows, ref.row)
		}
	}
	return rows
}

// loadParked takes the parked rows that were there before the first read.
func (s *lanes) loadParked(refs []*parkedRef) {
	for _, ref := range refs {
		s.parked.add(ref)
		if ref.keyed && s.strict {
			s.unitOf(ref.hash).parked++
		}
	}
}

// dueParked returns up to n rows to be tried now, and marks them busy. Of one key only the first goes.
func (s *lanes) dueParked(now time.Time, n int) []int64 {
	var ids []int64
	for _, ref := range s.parked.refs {
		if len(ids) == n {
			break
		}
		if !ref.dead && !ref.busy && !now.Before(ref.due) && s.firstOfKey(ref) {
			ref.busy = true
			ids = append(ids, ref.id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (s *lanes) firstOfKey(ref *parkedRef) bool {
	if !ref.keyed || !s.strict || s.unitOf(ref.hash).parked <= 1 {
		return true
	}
	for _, other := range s.parked.refs {
		if other.keyed && other.hash == ref.hash && other.id < ref.id {
			return false
		}
	}
	return true
}

// takeParked makes a parked row ready to be published; its key stays blocked by it.
func (s *lanes) takeParked(r *row) bool {
	ref := s.parked.refs[r.id]
	if ref == nil || ref.row != nil {
		return false
	}
	ref.row, r.parked = r, ref
	r.route = s.routeOf(r) // and no unit: it does not wait in its key's queue
	r.route.refs++
	s.waiting++
	s.waitingBytes += r.size()
	r.place = placeReady
	s.ready.push(r)
	return true
}

// postpone lets a parked row go back to its table, unchanged, until its route may be open again.
func (s *lanes) postpone(r *row) {
	ref := r.parked
	s.setIsolated(r, false)
	s.waiting--
	s.waitingBytes -= r.size()
	ref.row, ref.busy, ref.due = nil, false, r.route.probeAt
	if g := r.route.exchange; g != nil && g.probeAt.After(ref.due) {
		ref.due = g.probeAt
	}
	s.releaseRoute(r.route)
}

// unparked notes that a parked row is gone for good: published and settled, or discarded.
func (s *lanes) unparked(ref *parkedRef) {
	delete(s.parked.refs, ref.id)
	if r := ref.row; r != nil {
		s.settling--
		s.releaseRoute(r.route)
		ref.row = nil
	}
	if ref.keyed && s.strict {
		s.unpark(s.unitOf(ref.hash))
	}
}

// failedAgain notes the outcome of a failed try of a parked row, as it was stored.
func (s *lanes) failedAgain(ref *parkedRef, dead bool, due time.Time) {
	if ref.row != nil {
		s.releaseRoute(ref.row.route)
	}
	ref.row, ref.busy, ref.dead, ref.due = nil, false, dead, due
	ref.attempts++
	if dead && (!ref.keyed || !s.strict) {
		delete(s.parked.refs, ref.id) // it holds back nobody
	}
}

// revive makes a parked row start anew, as an operator asked.
func (s *lanes) revive(id, hash int64, keyed bool) {
	ref := s.parked.refs[id]
	if ref == nil {
		ref = &parkedRef{id: id, hash: hash, keyed: keyed}
		s.parked.add(ref)
		if keyed && s.strict {
			s.unitOf(hash).parked++
		}
	}
	ref.dead, ref.attempts, ref.due = false, 0, time.Time{}
}
