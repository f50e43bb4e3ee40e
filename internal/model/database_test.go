package model

func (d *database) lastID() (last uint8) {
	for _, id := range d.id {
		last = max(last, id)
	}
	return last
}

func (d *database) lastXid() (last uint8) {
	for _, xid := range d.xid {
		last = max(last, xid)
	}
	return last
}

// snapshot is pg_current_snapshot(): xmax follows the last number whose transaction has ended.
func (d *database) snapshot() snapshot {
	s := snapshot{xmax: 1}
	for t, xid := range d.xid {
		if d.status[t] != txOpen {
			s.xmax = max(s.xmax, xid+1)
		}
	}
	for t, xid := range d.xid {
		if d.status[t] == txOpen && xid != 0 && xid < s.xmax {
			s.xip.add(t)
		}
	}
	return s
}

// writers are transactions. Each takes its number whenever it likes, and a key's lock before it draws an id
// for that key (outbox.LockKeys, or a business row); the locks go with its end.
func (e *expansion) writers() {
	for t, rows := range e.txs {
		if e.from.db.status[t] != txOpen {
			continue
		}
		if e.from.db.xid[t] == 0 {
			e.do(actBegin, -1, t, fine(func(s *state) { s.db.xid[t] = s.db.lastXid() + 1 }))
		}
		drawn := 0
		for drawn < len(rows) && e.from.db.id[rows[drawn]] != 0 {
			drawn++
		}
		switch {
		case drawn == len(rows) && e.from.db.xid[t] != 0:
			e.do(actCommit, -1, t, fine(func(s *state) { s.db.status[t] = txCommitted }))
		case drawn < len(rows) && (drawn == 0 || e.from.db.xid[t] != 0) && e.lockIsFree(t, rows[drawn]):
			e.do(actDraw, -1, rows[drawn], fine(func(s *state) { s.db.id[rows[drawn]] = s.db.lastID() + 1 }))
		}
		e.do(actAbort, -1, t, fine(func(s *state) { s.db.status[t] = txAborted }))
	}
}

func (e *expansion) lockIsFree(t, row int) bool {
	for x := range e.rows {
		if e.keys[x] == e.keys[row] && e.tx[x] != t && e.from.db.id[x] != 0 && e.from.db.status[e.tx[x]] == txOpen {
			return false
		}
	}
	return true
}

// begin is a statement that finds its epoch to hold, or nil: fenced.
func (m *model) begin(s *state, i int, kind uint8, rows set) (statement, string, bool) {
	held := s.relays[i].epoch == s.db.epoch
	switch {
	case held:
	case kind == settles && m.settleAnyone, kind != settles && m.parkAnyone && kind < discards:
		return statement{kind: kind, rows: rows}, brokenEpoch, true
	default:
		return statement{}, "", false
	}
	return statement{kind: kind, rows: rows, locks: kind >= discards || kind != settles && !m.parkNoLock}, "", true
}

// commit is the effect of a statement. It reports whether it found its row.
func (m *model) commit(s *state, st statement) (there bool, broken string) {
	for x := range m.rows {
		if !st.rows.has(x) {
			continue
		}
		p := &s.db.place[x]
		parked := *p == parkedRetry || *p == parkedDead
		switch {
		case st.kind == settles && *p == inOutbox, st.kind == settlesParked && parked:
			if !s.broker.published.has(x) {
				broken = brokenLoss
			}
			there, *p = true, settledRow
		case st.kind == parks && *p == inOutbox:
			there, *p = true, parkedRetry
		case st.kind == failsAgain && parked:
			there, *p = true, parkedDead
		case st.kind == discards && parked:
			there, *p = true, discardedRow
		case st.kind == retries && parked:
			there, *p = true, parkedRetry
		}
	}
	return there, broken
}

// orphan leaves a statement to itself. One more than there is room for is taken to be undone.
func (s *state) orphan(st statement) {
	if st.kind == noStatement {
		return
	}
	for i := range s.db.orphans {
		if s.db.orphans[i].kind == noStatement {
			s.db.orphans[i] = st
			return
		}
	}
}

func (e *expansion) orphans() {
	for i, st := range e.from.db.orphans {
		if st.kind == noStatement {
			continue
		}
		e.do(actOrphanCommits, -1, -1, func(s *state) string {
			s.endOrphan(i)
			_, broken := e.commit(s, st)
			return broken
		})
		e.do(actOrphanDies, -1, -1, fine(func(s *state) { s.endOrphan(i) }))
	}
}

// endOrphan keeps the orphans packed, so that their order makes no difference.
func (s *state) endOrphan(i int) {
	o := &s.db.orphans
	copy(o[i:], o[i+1:])
	o[orphaned-1] = statement{}
}

// waits reports whether a statement has to wait for an orphan that holds one of its rows.
func (s *state) waits(rows set) bool { return (s.db.orphans[0].rows|s.db.orphans[1].rows)&rows != 0 }

// locked reports whether a statement under way holds the lease's row.
func (s *state) locked() bool {
	for _, st := range s.db.orphans {
		if st.locks {
			return true
		}
	}
	return s.relays[0].errand.locks || s.relays[1].errand.locks
}

func (e *expansion) leases(i int) {
	r, db := &e.from.relays[i], &e.from.db
	me := uint8(i + 1)
	if r.run == off {
		if (db.owner == nobody || db.expired) && !e.from.locked() {
			e.do(actTake, i, -1, fine(func(s *state) {
				s.db.owner, s.db.expired = me, false
				s.db.epoch++
				s.relays[i].begin(s.db.epoch, e.noLoad || e.bad == 0)
			}))
		}
		if db.owner == me && !db.expired {
			e.do(actStartAgain, i, -1, fine(func(s *state) { s.relays[i].begin(s.db.epoch, e.noLoad || e.bad == 0) }))
		}
	}
	if db.owner == gone && !db.expired && i == 0 {
		e.do(actExpireGone, -1, -1, fine(func(s *state) { s.db.expired = true }))
	}
	if r.run == off {
		return
	}
	if db.owner == me && r.epoch == db.epoch {
		if db.expired {
			e.do(actRenew, i, -1, fine(func(s *state) { s.db.expired, s.relays[i].sure = false, r.open }))
		} else {
			e.do(actExpire, -1, -1, fine(func(s *state) { s.db.expired = true }))
		}
		e.do(actHandOver, i, -1, fine(func(s *state) { s.relays[i].run = draining }))
		e.do(actOwnClock, i, -1, fine(func(s *state) {
			e.end(s, i, !e.sameEpoch)
		}))
	} else {
		e.do(actLearn, i, -1, fine(func(s *state) { e.end(s, i, false) }))
	}
	if r.run == draining {
		e.do(actDrained, i, -1, fine(func(s *state) { e.end(s, i, true) }))
	}
	e.do(actCrash, i, -1, fine(func(s *state) {
		s.relays[i].abandonConnection()
		e.end(s, i, false)
		s.relays[i].fence = noFence
		if s.db.owner == me {
			s.db.owner = gone
		}
	}))
}

// holds reports whether the lease has not run out.
func (s *state) holds(i int) bool {
	return s.db.owner == uint8(i+1) && s.db.epoch == s.relays[i].epoch && !s.db.expired
}

// begin starts a shard with nothing in memory.
func (r *relay) begin(epoch uint8, loaded bool) { r.run, r.epoch, r.loaded = running, epoch, loaded }

// end is the end of a shard's run: what was under way is left to itself, what is unconfirmed goes with its
// connection, and otherwise the fence is given back.
func (m *model) end(s *state, i int, release bool) {
	r := &s.relays[i]
	if r.settle != 0 {
		s.orphan(statement{kind: settles, rows: r.settle})
	}
	s.orphan(r.errand)
	switch {
	case r.open && r.unconfirmed():
		r.abandonConnection()
	case r.open, r.fence == fenceHeld && (r.run != draining || !m.fenceStays):
		r.fence = noFence
	case r.fence == fenceHeld:
		r.fence = fenceLeft
	}
	epoch := r.epoch
	*r = relay{fence: r.fence, lingers: r.lingers, lingerEpoch: r.lingerEpoch, lingerPipe: r.lingerPipe}
	switch {
	case !release || s.db.epoch != epoch || s.db.owner != uint8(i+1):
	case s.locked():
		s.db.owner = gone // the release waits too long; the lease runs out by itself
	default:
		s.db.owner, s.db.expired = nobody, false
	}
}
