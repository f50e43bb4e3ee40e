package model

// reads are the main lane's pages, the marks of a flood of late rows, and the second lane's passes.
func (e *expansion) reads(i int) {
	r := &e.from.relays[i]
	switch r.main.kind {
	case pageRead:
		e.do(actPage, i, -1, fine(func(s *state) { e.applyPage(s, &s.relays[i]) }))
		e.do(actReadFails, i, -1, fine(func(s *state) { s.relays[i].reset() }))
	case marksRead:
		e.do(actMarked, i, -1, fine(func(s *state) { e.applyMarks(s, &s.relays[i]) }))
		e.do(actReadFails, i, -1, fine(func(s *state) { s.relays[i].reset() }))
	}
	if r.pass.kind != noRead {
		e.do(actPassed, i, -1, fine(func(s *state) { e.applyPass(s, &s.relays[i]) }))
		e.do(actPassFails, i, -1, fine(func(s *state) {
			s.relays[i].pass.rows, s.relays[i].pass.full = 0, true
			e.applyPass(s, &s.relays[i])
		}))
	}
	if r.run != running || !r.open || !r.loaded {
		return
	}
	if room := e.roomForPage(r); r.main.kind == noRead {
		switch {
		case r.marking:
			e.do(actMarks, i, -1, fine(func(s *state) {
				s.relays[i].main = read{kind: marksRead, late: e.late(s, r), at: s.db.snapshot()}
			}))
		case room > 0:
			e.do(actRead, i, -1, fine(func(s *state) { s.relays[i].main = e.page(s, r, room) }))
		}
	}
	if units := e.freeUnits(r); r.pass.kind == noRead && units != 0 && e.count(r, -1, waiting, waiting) < e.waiting {
		e.do(actPass, i, -1, fine(func(s *state) { e.beginPass(s, &s.relays[i], units) }))
	}
}

// reset is lanes.reset: what is in memory stays.
func (r *relay) reset() { r.cursor, r.seen, r.marking, r.main = 0, snapshot{}, false, read{} }

func (m *model) roomForPage(r *relay) int {
	return min(m.window, m.waiting-m.count(r, -1, waiting, waiting))
}

// page is readSQL: late rows and the tail, as of now.
func (m *model) page(s *state, r *relay, room int) read {
	p := read{kind: pageRead, at: s.db.snapshot(), late: m.late(s, r)}
	p.overflow = p.late.len() > room
	tail := set(0)
	for x := range m.rows {
		if m.visible(s, x) && m.rank(s, x) > r.cursor && (!m.xidCursor || s.db.xid[m.tx[x]] < m.oldest(s)) {
			tail.add(x)
		}
	}
	for _, x := range m.inOrder(s, tail) {
		if p.rows.len() == room {
			break
		}
		p.rows.add(x)
	}
	p.full = p.rows.len() == room
	return p
}

// oldest is pg_snapshot_xmin.
func (m *model) oldest(s *state) uint8 {
	at := s.db.snapshot()
	for t := range m.txs {
		if at.xip.has(t) {
			at.xmax = min(at.xmax, s.db.xid[t])
		}
	}
	return at.xmax
}

// late are the rows below the cursor whose transactions were not visible in the snapshot of the last read: in
// flight then (the branch "committed"), or without a number or a higher one (the branch from xmax on).
func (m *model) late(s *state, r *relay) (rows set) {
	if r.seen == (snapshot{}) || m.plainCursor || m.xidCursor {
		return 0
	}
	for x := range m.rows {
		t := m.tx[x]
		since := r.seen.xip.has(t) || s.db.xid[t] >= r.seen.xmax && !m.noNewXids
		if m.visible(s, x) && s.db.id[x] <= r.cursor && since {
			rows.add(x)
		}
	}
	return rows
}

func (m *model) applyPage(s *state, r *relay) {
	p := r.main
	r.main = read{}
	if p.overflow {
		r.marking = true
		return
	}
	for _, x := range m.inOrder(s, p.late|p.rows) {
		m.accept(s, r, x, p.ghosts)
		r.cursor = max(r.cursor, m.rank(s, x))
	}
	if !p.full && !m.plainCursor && !m.xidCursor {
		r.cursor = max(r.cursor, s.db.lastID())
	}
	r.seen = p.at
}

// accept is lanes.accept.
func (m *model) accept(s *state, r *relay, x int, ghosts set) {
	key := m.keys[x]
	switch {
	case r.mem[x] != absent || ghosts.has(x):
	case r.lagFrom[key] != 0 || m.blocked(r, key) && !m.noDropping || !m.room(r, key):
		r.lag(key, m.rank(s, x))
	default:
		r.mem[x] = waiting
	}
}

// room is lanes.room, for routes that are open.
func (m *model) room(r *relay, key int) bool {
	full := m.count(r, -1, waiting, waiting) >= m.waiting
	if queue := m.count(r, key, waiting, waiting); queue > 0 {
		return queue < m.perKey && !full
	}
	return m.skip || !m.busy(r, key) || !full
}

func (m *model) applyMarks(s *state, r *relay) {
	for _, x := range m.inOrder(s, r.main.late) {
		r.lag(m.keys[x], m.rank(s, x))
	}
	r.seen, r.marking, r.main = r.main.at, false, read{}
}

// freeUnits are the lagging keys that a pass may be worth for, see lanes.mayResume.
func (m *model) freeUnits(r *relay) (units set) {
	for key := range maxKeys {
		if r.lagFrom[key] != 0 && !m.blocked(r, key) && m.count(r, key, waiting, waiting) <= m.perKey/2 {
			units.add(key)
		}
	}
	return units
}

func (m *model) beginPass(s *state, r *relay, units set) {
	p := read{kind: passRead, to: r.cursor, units: units}
	from := uint8(0)
	for key := range maxKeys {
		if units.has(key) {
			from = lower(from, r.lagFrom[key])
			r.lagNext[key] = 0
		}
	}
	found := set(0)
	for x := range m.rows {
		if m.visible(s, x) && units.has(m.keys[x]) && m.rank(s, x) >= from && m.rank(s, x) <= p.to {
			found.add(x)
		}
	}
	limit := max(m.window/2, 1)
	for _, x := range m.inOrder(s, found) {
		if p.rows.len() == limit {
			break
		}
		p.rows.add(x)
	}
	p.full = p.rows.len() == limit
	r.pass = p
}

// applyPass is lanes.passOver and lanes.endUnit.
func (m *model) applyPass(s *state, r *relay) {
	p := r.pass
	r.pass = read{}
	var taken, skipped [maxKeys]uint8
	for _, x := range m.inOrder(s, p.rows) {
		key := m.keys[x]
		switch {
		case r.mem[x] != absent || p.ghosts.has(x):
		case skipped[key] == 0 && !m.blocked(r, key) && m.room(r, key):
			r.mem[x], taken[key] = waiting, m.rank(s, x)
		default:
			skipped[key] = lower(skipped[key], m.rank(s, x))
		}
	}
	for key := range maxKeys {
		if !p.units.has(key) {
			continue
		}
		switch {
		case skipped[key] != 0:
			r.lagFrom[key] = lower(skipped[key], r.lagNext[key])
		case !p.full:
			r.lagFrom[key] = r.lagNext[key]
		case taken[key] != 0:
			r.lagFrom[key] = lower(taken[key]+1, r.lagNext[key])
		default:
			r.lagFrom[key] = lower(r.lagFrom[key], r.lagNext[key])
		}
		r.lagNext[key] = 0
	}
}
