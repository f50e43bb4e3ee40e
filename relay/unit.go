package relay

import (
	"cmp"
	"slices"
)

// unit is one ordering key (by its 64-bit hash: two keys that share one wait for each other, which is
// harmless). It exists while something of it is remembered.
type unit struct {
	hash  int64
	queue []*row // waiting, in order of id
	busy  int    // ready, flying or being looked up
	// checking of these are being looked up; the later ones then are too, so that they do not overtake.
	checking int
	// waitsFor is the stopped route of the first waiting row.
	waitsFor *route
	parking  int // bad rows on their way to the parked table
	parked   int // rows in the parked table that hold it back
	// lagFrom is the lowest id that was skipped, 0 when it does not lag. While a pass of the second lane is
	// under way, lagNext is the lowest id skipped since.
	lagFrom, lagNext int64
	// lagFor is the stopped route that the row at lagFrom waits for; nil: it may be read again.
	lagFor *route
}

func (u *unit) blocked() bool { return u.parking+u.parked > 0 }

func (u *unit) empty() bool {
	return len(u.queue) == 0 && u.busy == 0 && !u.blocked() && u.lagFrom == 0
}

// enqueue puts a row among the waiting ones of its key. A new first row may have another route to wait for.
func (s *lanes) enqueue(u *unit, r *row) {
	if u.waitsFor != nil && r.id < u.queue[0].id {
		u.waitsFor.dropWaiter(u)
		s.unstall(u)
	}
	r.place, r.checked = placeWaiting, false
	u.insert(r)
	s.countStalled(u, 1)
	if u.waitsFor != nil {
		s.setIsolated(r, false)
	}
}

// insert keeps the queue in order of id. A row nearly always belongs to one of its ends.
func (u *unit) insert(r *row) {
	if n := len(u.queue); n == 0 || u.queue[n-1].id < r.id {
		u.queue = append(u.queue, r)
		return
	}
	i, _ := slices.BinarySearchFunc(u.queue, r.id, func(q *row, id int64) int { return cmp.Compare(q.id, id) })
	u.queue = slices.Insert(u.queue, i, r)
}

func (s *lanes) unitOf(hash int64) *unit {
	u := s.units[hash]
	if u == nil {
		u = &unit{hash: hash}
		s.units[hash] = u
	}
	return u
}

func (s *lanes) releaseUnit(u *unit) {
	if u.empty() && s.units[u.hash] == u {
		delete(s.units, u.hash)
	}
}

// pump moves the waiting rows of a key on: one at a time under strict, all of them otherwise.
func (s *lanes) pump(u *unit) {
	for len(u.queue) > 0 && !u.blocked() && (u.busy == 0 || !s.strict) && u.waitsFor == nil {
		r := u.queue[0]
		if !r.route.open() {
			for _, q := range u.queue {
				s.setIsolated(q, false)
			}
			u.waitsFor = r.route
			r.route.waiters = append(r.route.waiters, u)
			s.stalled += len(u.queue)
			return
		}
		s.toReady(u, r)
	}
}

func (s *lanes) toReady(u *unit, r *row) {
	u.queue[0] = nil
	u.queue = u.queue[1:]
	u.busy++
	r.place = placeReady
	s.ready.push(r)
}

// countStalled keeps the count of rows that wait for stopped routes.
func (s *lanes) countStalled(u *unit, n int) {
	if u.waitsFor != nil {
		s.stalled += n
	}
}

// unstall ends a key's wait for a route.
func (s *lanes) unstall(u *unit) {
	if u.waitsFor != nil {
		s.stalled -= len(u.queue)
		u.waitsFor = nil
	}
}

// dropQueue forgets the waiting rows of a key, which is blocked now or has one withdrawn: the key lags from the first of
// them.
func (s *lanes) dropQueue(u *unit) {
	if len(u.queue) == 0 {
		return
	}
	if u.waitsFor != nil {
		u.waitsFor.dropWaiter(u)
		s.unstall(u)
	}
	rows := u.queue
	u.queue = nil
	s.lagUnit(u, rows[0].id, nil)
	s.skipInPass(u, rows[0].id)
	for _, r := range rows {
		s.setIsolated(r, false)
		s.waiting--
		s.waitingBytes -= r.size()
		delete(s.rows, r.id)
		s.releaseRoute(r.route)
	}
}

// unpark notes that a parked row of a key is gone.
func (s *lanes) unpark(u *unit) {
	u.parked--
	s.pump(u)
	s.mayResume(u)
	s.releaseUnit(u)
}
