package relay

// lagLane is the second lane: keys whose rows did not fit into memory, or that were blocked, are skipped by
// the main lane from some id on, and their rows are read again when they can move. Rows without a key need no
// order, so the main lane goes on taking them; the ones it left are read again from loose on.
type lagLane struct {
	units map[*unit]struct{} // all that lag
	free  map[*unit]struct{} // of these, the ones a pass may be worth for
	pass  *lagPass

	// Of the rows without a key. They are read round by round, each from loose on to the cursor of its last pass.
	loose int64 // the lowest that was skipped; 0: none was
	// While a round is under way: where it goes on, the lowest that it has skipped, and the lowest that the main lane has
	// skipped since it began.
	looseAt, looseSkipped, looseNext int64
	looseFree                        bool // a pass may be worth while
	looseMoves                       bool // some may move though no stopped route opens
}

// passUnits bounds the keys of one pass.
const passUnits = 512

// lagPass is one statement of the second lane, over the rows up to the cursor at its start. It always begins at
// or below the first row that each key was left at: a row that became visible since has a higher id than every
// row of its key that was visible before, because the key's writers take turns. Going on from where the last
// statement ended instead could miss such a row and take a later one of its key.
type lagPass struct {
	pos, to int64
	units   map[int64]*passUnit
	loose   bool
}

type passUnit struct {
	unit    *unit
	taken   int64  // its last row that was taken
	skipped int64  // its first row that found no room; none is taken after it
	waits   *route // the stopped route that this row waits for; nil: something else
}

func (l *lagLane) init() {
	l.units, l.free = map[*unit]struct{}{}, map[*unit]struct{}{}
}

func (l *lagLane) size() int { return len(l.units) }

// skip leaves a row of the main lane to the second one. False: no room to remember that.
func (s *lanes) skip(r *row) bool {
	waits := s.waitsFor(r)
	if r.unit == nil {
		s.lagLoose(r.id, waits == nil)
		s.dropRoute(r.route)
		return true
	}
	if r.unit.lagFrom == 0 && s.lag.size() >= s.lagging {
		s.releaseUnit(r.unit)
		s.dropRoute(r.route)
		return false
	}
	s.lagUnit(r.unit, r.id, waits)
	s.dropRoute(r.route)
	return true
}

// waitsFor returns the stopped route that a row which is skipped waits for, or nil: reading the row again before that
// opens would be for nothing.
func (s *lanes) waitsFor(r *row) *route {
	if r.route.open() || s.isWithheld(r.id) {
		return nil
	}
	return r.route
}

// lagUnit makes a key lag from id on at the latest, which waits for a stopped route or, with nil, for something else.
func (s *lanes) lagUnit(u *unit, id int64, waits *route) {
	if u.lagFrom == 0 || id < u.lagFrom {
		u.lagFor = waits
	}
	u.lagFrom = lower(u.lagFrom, id)
	u.lagNext = lower(u.lagNext, id)
	s.lag.units[u] = struct{}{}
	s.mayResume(u)
}

// lagLoose does so with the rows without a key.
func (s *lanes) lagLoose(id int64, moves bool) {
	s.lag.loose = lower(s.lag.loose, id)
	s.lag.looseNext = lower(s.lag.looseNext, id)
	s.lag.looseMoves = s.lag.looseMoves || moves
}

// lower is the lower of two ids, where 0 is none.
func lower(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// mayResume notes that a pass for a lagging key may be worth while.
func (s *lanes) mayResume(u *unit) {
	shut := u.lagFor != nil && !u.lagFor.open()
	if u.lagFrom != 0 && !shut && !u.blocked() && u.waitsFor == nil && len(u.queue) <= s.perKey/2 {
		s.lag.free[u] = struct{}{}
	}
}

// armAll does so for all; called when a route opens, and now and then.
func (s *lanes) armAll() {
	for u := range s.lag.units {
		s.mayResume(u)
	}
	s.lag.looseFree = s.lag.loose != 0 && (s.lag.looseMoves || s.lag.looseAt != 0)
}

// rearm does so also for what waits for a stopped route: the row that does may be gone.
func (s *lanes) rearm() {
	for u := range s.lag.units {
		u.lagFor = nil
	}
	s.lag.looseMoves = true
	s.armAll()
}

// startPass begins a pass and returns it, or nil when there is nothing to read or no room to keep it.
func (s *lanes) startPass() *lagPass {
	l := &s.lag
	if l.pass != nil || s.full() || len(l.free) == 0 && !l.looseFree {
		return nil
	}
	p := &lagPass{to: s.cursor, units: map[int64]*passUnit{}, loose: l.looseFree}
	from := int64(0)
	if p.loose {
		from = s.goRound()
	}
	for u := range l.free {
		if len(p.units) == passUnits {
			break
		}
		delete(l.free, u)
		p.units[u.hash] = &passUnit{unit: u}
		from = lower(from, u.lagFrom)
		u.lagNext = 0
	}
	l.looseFree = false
	p.pos = from - 1
	l.pass = p
	return p
}

// goRound begins a round over the rows without a key, or goes on with it, and returns from where.
func (s *lanes) goRound() int64 {
	l := &s.lag
	if l.looseAt == 0 {
		l.looseAt, l.looseSkipped, l.looseNext, l.looseMoves = l.loose, 0, 0, false
	}
	return l.looseAt
}

// passOver takes the rows of the pass, in order of id; reached tells that these are all up to its end.
func (s *lanes) passOver(rows []*row, reached bool) {
	p := s.lag.pass
	for _, r := range rows {
		s.passRow(p, r)
		p.pos = r.id
	}
	s.endPass(p, reached)
}

func (s *lanes) passRow(p *lagPass, r *row) {
	if _, here := s.rows[r.id]; here || s.ghosts[lagRead].has(r.id) {
		return
	}
	s.place(r)
	pu := p.units[r.hash]
	withheld := s.isWithheld(r.id)
	switch {
	case r.unit == nil && !withheld && s.room(r):
		s.take(r)
		return
	case r.unit == nil:
		s.lag.looseSkipped = lower(s.lag.looseSkipped, r.id)
		s.lag.looseMoves = s.lag.looseMoves || s.waitsFor(r) == nil
	case pu == nil || pu.unit != r.unit: // asked for by hash alone; not of this pass
		s.releaseUnit(r.unit)
	case pu.skipped == 0 && !withheld && !pu.unit.blocked() && s.room(r):
		pu.taken = r.id
		s.take(r)
		return
	case pu.skipped == 0 || r.id < pu.skipped:
		pu.skipped, pu.waits = r.id, s.waitsFor(r)
	}
	s.dropRoute(r.route)
}

// endPass decides what lags on: what was skipped in the pass or, by the main lane, since it began.
func (s *lanes) endPass(p *lagPass, reached bool) {
	s.lag.pass = nil
	for _, pu := range p.units {
		s.endUnit(pu, reached)
	}
	if p.loose {
		s.endLoose(p, reached)
	}
}

func (s *lanes) endLoose(p *lagPass, reached bool) {
	l := &s.lag
	l.loose = lower(l.looseSkipped, l.looseNext)
	if reached {
		l.looseAt = 0
		return
	}
	l.looseAt = max(l.looseAt, p.pos+1) // a pass may begin further down, for a key
	l.loose = lower(l.loose, l.looseAt)
	l.looseFree = true
}

func (s *lanes) endUnit(pu *passUnit, reached bool) {
	u := pu.unit
	u.lagFor = pu.waits
	switch {
	case pu.skipped != 0:
		u.lagFrom = lower(pu.skipped, u.lagNext)
		return
	case reached:
		u.lagFrom = u.lagNext
	case pu.taken != 0:
		u.lagFrom = lower(pu.taken+1, u.lagNext)
	default:
		u.lagFrom = lower(u.lagFrom, u.lagNext)
	}
	if u.lagFrom != 0 {
		s.mayResume(u)
		return
	}
	delete(s.lag.units, u)
	delete(s.lag.free, u)
	s.releaseUnit(u)
}

// skipInPass tells a pass under way that rows of the key from id on, which it began behind, are to be read again: it
// must take no later ones.
func (s *lanes) skipInPass(u *unit, id int64) {
	if s.lag.pass == nil {
		return
	}
	if pu := s.lag.pass.units[u.hash]; pu != nil && pu.unit == u {
		pu.skipped, pu.waits = lower(pu.skipped, id), nil
	}
}

// abandonPass gives up a pass whose statement failed.
func (s *lanes) abandonPass() {
	if p := s.lag.pass; p != nil {
		s.endPass(p, false)
	}
}
