package model

// parkedRows are the tries of parked rows, what is stored about bad ones, and operators' requests.
func (e *expansion) parkedRows(i int) {
	r := &e.from.relays[i]
	if r.run == off {
		return
	}
	if !r.loaded {
		e.do(actLoad, i, -1, fine(func(s *state) { e.load(s, &s.relays[i]) }))
		return
	}
	if r.errand.kind != noStatement {
		if !e.from.waits(r.errand.rows) {
			e.do(actErrandDone, i, e.rowOf(r.errand), func(s *state) string { return e.errandDone(s, i) })
		}
		e.do(actErrandDoubt, i, e.rowOf(r.errand), func(s *state) string {
			st := s.relays[i].errand
			s.orphan(st)
			s.relays[i].errand = statement{}
			if st.kind >= discards && !e.requestDoubt {
				return e.tryErrand(s, i, e.rowOf(st), st.kind)
			}
			return ""
		})
	}
	for x := range e.rows {
		e.parkedRow(i, x)
	}
}

func (m *model) rowOf(st statement) int {
	for x := range m.rows {
		if st.rows.has(x) {
			return x
		}
	}
	return -1
}

func (m *model) load(s *state, r *relay) {
	r.loaded = true
	for x := range m.rows {
		switch {
		case s.db.place[x] == parkedRetry:
			r.ref[x] = refIdle
		case s.db.place[x] == parkedDead && !m.skip:
			r.ref[x] = refDead
		}
	}
}

func (e *expansion) parkedRow(i, x int) {
	r := &e.from.relays[i]
	if r.errand.kind == noStatement {
		switch {
		case r.mem[x] == parking:
			e.errand(actErrand, i, x, parks)
		case r.ref[x] == refFailing:
			e.errand(actErrand, i, x, failsAgain)
		case r.ref[x] == refSettling:
			e.errand(actErrand, i, x, settlesParked)
		case e.from.db.place[x] == parkedDead && r.ref[x] <= refIdle && r.run == running:
			e.errand(actDiscard, i, x, discards)
			e.errand(actRetry, i, x, retries)
		}
	}
	if r.run != running || !r.sure || r.ref[x] != refIdle || r.errand.rows.has(x) || e.from.db.place[x] != parkedRetry || !e.firstOfKey(r, x) {
		return
	}
	if !r.pipe.full() {
		e.do(actPublishParked, i, x, fine(func(s *state) {
			s.relays[i].pipe.push(uint8(x+1) | viaParked)
			s.relays[i].ref[x] = refFlying
		}))
	}
	if e.bad.has(x) && e.from.bads > 0 {
		e.do(actBadParked, i, x, fine(func(s *state) {
			s.bads--
			s.relays[i].ref[x] = refFailing
		}))
	}
}

func (m *model) firstOfKey(r *relay, x int) bool {
	for y := range m.rows {
		if !m.skip && r.ref[y] != noRef && m.keys[y] == m.keys[x] && y < x {
			return false
		}
	}
	return true
}

func (e *expansion) errand(action uint8, i, x int, kind uint8) {
	e.do(action, i, x, func(s *state) string { return e.tryErrand(s, i, x, kind) })
}

// tryErrand begins a statement, unless the epoch is over.
func (m *model) tryErrand(s *state, i, x int, kind uint8) string {
	st, broken, held := m.begin(s, i, kind, 1<<x)
	s.relays[i].errand = st
	if !held {
		m.end(s, i, false)
	}
	return broken
}

// errandDone commits the statement and takes its answer.
func (m *model) errandDone(s *state, i int) string {
	r := &s.relays[i]
	st := r.errand
	x := m.rowOf(st)
	r.errand = statement{}
	there, broken := m.commit(s, st)
	if !there && r.epoch != s.db.epoch {
		m.end(s, i, false)
		return broken
	}
	switch st.kind {
	case parks:
		switch place := s.db.place[x]; {
		case there, place == parkedRetry && !m.parkOnce:
			r.ref[x] = refIdle
		case place == parkedDead && !m.parkOnce && !m.skip:
			r.ref[x] = refDead
		}
		m.forget(r, st.rows)
	case failsAgain:
		r.ref[x] = noRef
		if there && !m.skip {
			r.ref[x] = refDead
		}
	case settlesParked:
		r.ref[x] = noRef
	case discards:
		if there || s.db.place[x] == discardedRow && !m.requestDoubt { // by the try whose answer was lost
			r.ref[x] = noRef
		}
	case retries:
		if there {
			r.ref[x] = refIdle
		}
	}
	return broken
}
