package model

import "slices"

// unconfirmed reports whether something is flying.
func (r *relay) unconfirmed() bool {
	for x := range maxRows {
		if isFlying(r.mem[x]) || isRefFlying(r.ref[x]) {
			return true
		}
	}
	return false
}

func isFlying(place uint8) bool { return place >= flying && place <= flyingNacked }

func isRefFlying(place uint8) bool { return place >= refFlying && place <= refNacked }

// abandonConnection closes the connection on this side only: what is in its pipe may still arrive.
func (r *relay) abandonConnection() {
	if r.fence == noFence {
		return
	}
	if !r.lingers {
		r.lingers, r.lingerEpoch, r.lingerPipe = true, r.epoch, r.pipe
	}
	r.open, r.sure, r.fence, r.pipe = false, false, noFence, pipe{}
}

// takeBack makes what was flying wait to be published again; what was confirmed before the channel's end is kept.
func (m *model) takeBack(r *relay, collected bool) {
	for x := range m.rows {
		confirmed := r.mem[x] == flyingConfirmed || r.ref[x] == refConfirmed
		known := collected && confirmed || m.lostIsSettled
		if isFlying(r.mem[x]) {
			r.mem[x] = choose(known, settling, waiting)
		}
		if isRefFlying(r.ref[x]) {
			r.ref[x] = choose(known, refSettling, refIdle)
		}
	}
}

func choose(first bool, a, b uint8) uint8 {
	if first {
		return a
	}
	return b
}

func (e *expansion) broker(i int) {
	r := &e.from.relays[i]
	if r.lingers {
		e.do(actLingerClosed, i, -1, fine(func(s *state) {
			s.relays[i].lingers, s.relays[i].lingerEpoch, s.relays[i].lingerPipe = false, 0, pipe{}
		}))
		if head := r.lingerPipe[0]; head != 0 {
			e.do(actStoreLinger, i, int(head&^viaParked)-1, func(s *state) string {
				to := &s.relays[i]
				return e.store(s, int(to.lingerPipe.pop()&^viaParked)-1, to.lingerEpoch)
			})
		}
	}
	if r.fence == fenceLeft {
		e.do(actConnectionLost, i, -1, fine(func(s *state) { s.relays[i].fence = noFence }))
	}
	if r.run == running && !r.open && e.fenceIsFree(i) {
		e.do(actOpen, i, -1, fine(func(s *state) {
			s.relays[i].open, s.relays[i].fence, s.relays[i].sure = true, fenceHeld, e.noClock || s.holds(i)
		}))
	}
	if !r.open {
		return
	}
	e.do(actConnectionLost, i, -1, fine(func(s *state) {
		s.relays[i].abandonConnection()
		e.takeBack(&s.relays[i], false)
	}))
	e.do(actChannelClosed, i, -1, fine(func(s *state) {
		s.relays[i].open, s.relays[i].sure, s.relays[i].pipe = false, false, pipe{}
		e.takeBack(&s.relays[i], true)
	}))
	if head := r.pipe[0]; head != 0 {
		e.arrivals(i, int(head&^viaParked)-1, head&viaParked != 0)
	}
	e.outcomes(i)
}

func (e *expansion) fenceIsFree(i int) bool {
	if e.noFence {
		return true
	}
	mine, other := &e.from.relays[i], &e.from.relays[1-i]
	return !mine.lingers && mine.fence != fenceLeft && !other.lingers && other.fence == noFence
}

// arrivals are what the broker makes of the next publish of a channel.
func (e *expansion) arrivals(i, x int, parked bool) {
	mark := func(s *state, place, ref uint8) {
		r := &s.relays[i]
		r.pipe.pop()
		if parked {
			r.ref[x] = ref
		} else {
			r.mem[x] = place
		}
	}
	e.do(actStore, i, x, func(s *state) string {
		mark(s, flyingConfirmed, refConfirmed)
		return e.store(s, x, s.relays[i].epoch)
	})
	e.do(actNack, i, x, fine(func(s *state) {
		mark(s, flyingNacked, refNacked)
		if !e.onlyBadPass {
			s.broker.spoiled.add(x)
		}
	}))
}

// store routes a publish and judges it.
func (m *model) store(s *state, x int, epoch uint8) string {
	first := !s.broker.published.has(x)
	s.broker.published.add(x)
	newest := s.broker.epoch
	s.broker.epoch = max(newest, epoch)
	switch {
	case !m.committedRow(s, x):
		return brokenEarly
	case first && m.overtakes(s, x):
		return brokenOrder
	case s.db.place[x] == discardedRow:
		return brokenDiscarded
	case epoch < newest:
		return brokenFence
	}
	return ""
}

// overtakes reports whether an earlier row of the key is neither published nor discarded.
func (m *model) overtakes(s *state, x int) bool {
	for y := range m.rows {
		excepted := s.broker.published.has(y) || s.db.place[y] == discardedRow || m.skip && s.broker.spoiled.has(y)
		if m.keys[y] == m.keys[x] && m.committedRow(s, y) && s.db.id[y] < s.db.id[x] && !excepted {
			return true
		}
	}
	return false
}

// outcomes reach the relay in any order.
func (e *expansion) outcomes(i int) {
	for x := range e.rows {
		switch p := e.from.relays[i].mem[x]; p {
		case flyingConfirmed, flyingNacked:
			e.do(actOutcome, i, x, fine(func(s *state) { s.relays[i].mem[x] = choose(p == flyingConfirmed, settling, waiting) }))
		}
		switch p := e.from.relays[i].ref[x]; p {
		case refConfirmed, refNacked:
			e.do(actOutcome, i, x, fine(func(s *state) { s.relays[i].ref[x] = choose(p == refConfirmed, refSettling, refIdle) }))
		}
	}
}

// blocked is unit.blocked: a row of the key is bad, and on its way to the parked table or in it.
func (m *model) blocked(r *relay, key int) bool {
	if m.skip {
		return false
	}
	for x := range m.rows {
		if m.keys[x] == key && (r.mem[x] == parking || r.ref[x] != noRef) {
			return true
		}
	}
	return false
}

// count is how many rows of the key are at places between two, in memory; key -1 is all.
func (m *model) count(r *relay, key int, from, to uint8) (n int) {
	for x := range m.rows {
		if (key < 0 || m.keys[x] == key) && r.mem[x] >= from && r.mem[x] <= to {
			n++
		}
	}
	return n
}

func (m *model) busy(r *relay, key int) bool { return m.count(r, key, flying, flyingNacked) > 0 }

// rank is what the relay takes for the order of a row.
func (m *model) rank(s *state, x int) uint8 {
	if m.xidCursor {
		return s.db.xid[m.tx[x]]<<3 | s.db.id[x]
	}
	return s.db.id[x]
}

// inOrder are the rows of a set in the order of their ids.
func (m *model) inOrder(s *state, rows set) []int {
	var list []int
	for x := range m.rows {
		if rows.has(x) {
			list = append(list, x)
		}
	}
	slices.SortFunc(list, func(a, b int) int { return int(m.rank(s, a)) - int(m.rank(s, b)) })
	return list
}

// first is the first waiting row of a key.
func (m *model) first(s *state, r *relay, key int) int {
	first := -1
	for x := range m.rows {
		if m.keys[x] == key && r.mem[x] == waiting && (first < 0 || m.rank(s, x) < m.rank(s, first)) {
			first = x
		}
	}
	return first
}

func (e *expansion) publishes(i int) {
	r := &e.from.relays[i]
	if r.run == running && r.sure && r.loaded {
		for key := range maxKeys {
			if x := e.first(e.from, r, key); x >= 0 && (e.skip || e.manyInFlight || !e.busy(r, key)) && (!e.blocked(r, key) || e.noDropping) {
				e.publish(i, x)
			}
		}
	}
	if r.run == off {
		return
	}
	ready := set(0)
	for x := range e.rows {
		if r.mem[x] == settling {
			ready.add(x)
		}
	}
	switch {
	case r.settle != 0:
		if !e.from.waits(r.settle) {
			e.do(actSettled, i, -1, func(s *state) string {
				_, broken := e.commit(s, statement{kind: settles, rows: r.settle})
				e.forget(&s.relays[i], r.settle)
				s.relays[i].settle = 0
				return broken
			})
		}
		e.do(actSettleDoubt, i, -1, fine(func(s *state) {
			s.orphan(statement{kind: settles, rows: r.settle})
			s.relays[i].settle = 0
		}))
	case ready != 0:
		e.do(actSettle, i, -1, func(s *state) string {
			st, broken, held := e.begin(s, i, settles, ready)
			s.relays[i].settle = st.rows
			if !held {
				e.end(s, i, false)
			}
			return broken
		})
	}
}

func (e *expansion) publish(i, x int) {
	switch {
	case e.instant:
		e.do(actPublish, i, x, func(s *state) string {
			s.relays[i].mem[x] = settling
			return e.store(s, x, s.relays[i].epoch)
		})
	case !e.from.relays[i].pipe.full():
		e.do(actPublish, i, x, fine(func(s *state) {
			s.relays[i].pipe.push(uint8(x + 1))
			s.relays[i].mem[x] = flying
		}))
	}
	if !e.bad.has(x) || e.from.bads == 0 {
		return
	}
	e.do(actBad, i, x, fine(func(s *state) {
		s.bads--
		s.broker.spoiled.add(x)
		r := &s.relays[i]
		r.mem[x] = parking
		if !e.skip && !e.noDropping {
			e.dropQueue(s, r, e.keys[x])
		}
	}))
}

// dropQueue is lanes.dropQueue: the waiting rows of a blocked key are forgotten, and the key lags from the first of them.
func (m *model) dropQueue(s *state, r *relay, key int) {
	if x := m.first(s, r, key); x >= 0 {
		r.lag(key, m.rank(s, x))
	}
	for x := range m.rows {
		if m.keys[x] == key && r.mem[x] == waiting {
			r.mem[x] = absent
		}
	}
}

// lag is lanes.lagUnit.
func (r *relay) lag(key int, id uint8) {
	r.lagFrom[key] = lower(r.lagFrom[key], id)
	if r.pass.units.has(key) { // before a pass nobody looks at it
		r.lagNext[key] = lower(r.lagNext[key], id)
	}
}

func lower(a, b uint8) uint8 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// forget drops rows that have left the outbox; reads under way may still show them.
func (m *model) forget(r *relay, rows set) {
	r.main.haunt(rows)
	r.pass.haunt(rows)
	for x := range m.rows {
		if rows.has(x) {
			r.mem[x] = absent
		}
	}
}

func (r *read) haunt(rows set) {
	if r.kind != noRead {
		r.ghosts |= rows
	}
}
