package relay

import (
	"cmp"
	"slices"
)

// page is one answer of the main lane's read.
type page struct {
	rows     []*row // late ones and the tail
	snapshot string
	last     int64 // the sequence's last value
	full     bool  // there may be more in the tail
	overflow bool  // more late rows than were asked for
	fresh    bool  // the snapshot it was asked with lay too far behind: read from the first row
}

// applyPage takes an answer and moves cursor and snapshot. Late rows have lower ids than the tail, so the order
// of ids is the order per key.
func (s *lanes) applyPage(p page) {
	defer s.ghosts[mainRead].end()
	s.stuck = false
	if p.overflow {
		s.mustMark = true
		return
	}
	if s.ghosts[mainRead].void {
		return
	}
	cursor := s.cursor
	if p.fresh {
		cursor = 0
	}
	slices.SortFunc(p.rows, func(a, b *row) int { return cmp.Compare(a.id, b.id) })
	for _, r := range p.rows {
		if !s.accept(r) {
			s.stuck = true
			if !r.late { // all late rows before it were taken
				s.cursor, s.snapshot = cursor, p.snapshot
			}
			return
		}
		cursor = max(cursor, r.id)
	}
	if !p.full {
		cursor = max(cursor, p.last)
	}
	s.cursor, s.snapshot = cursor, p.snapshot
}

// mark is a key, or the rows without one, among more late rows than fit one page.
type mark struct {
	hash, id int64
	keyed    bool
}

// applyMarks makes the keys of a flood of late rows lag from their first late row on: the second lane reads
// them in order, and the main lane goes on with all others. Too many to remember: everything is read again in
// order of id, which finds the late rows too.
func (s *lanes) applyMarks(marks []mark, snapshot string) {
	s.mustMark = false
	if s.lag.size()+len(marks) > s.lagging {
		s.reset()
		return
	}
	for _, m := range marks {
		if m.keyed {
			s.lagUnit(s.unitOf(m.hash), m.id, nil)
		} else {
			s.lagLoose(m.id, true)
			s.lag.looseFree = true
		}
	}
	s.snapshot = snapshot
}

// found is one row that the sweep saw at or below the cursor.
type found struct {
	id, hash int64
	keyed    bool
	visible  bool // when the cursor passed it
}

// applySweep looks for rows that nobody remembers, and lets the second lane read them. It returns how many.
func (s *lanes) applySweep(rows []found) int {
	overlooked := 0
	for _, f := range rows {
		if _, here := s.rows[f.id]; here || !f.visible || s.ghosts[sweepRead].has(f.id) {
			continue
		}
		u := s.units[f.hash]
		switch {
		case !f.keyed && s.lag.loose != 0 && f.id >= s.lag.loose:
		case !f.keyed:
			s.lagLoose(f.id, true)
			s.lag.looseFree = true
			overlooked++
		case u != nil && u.lagFrom != 0 && f.id >= u.lagFrom:
		default:
			s.lagUnit(s.unitOf(f.hash), f.id, nil)
			overlooked++
		}
	}
	return overlooked
}
