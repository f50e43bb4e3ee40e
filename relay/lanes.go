package relay

import (
	"cmp"
	"slices"
	"time"
)

// limits bound what one shard keeps in memory.
type limits struct {
	strict      bool
	window      int // rows flying
	windowBytes int
	maxWaiting  int // rows read but not yet published
	maxSettling int // rows confirmed but not yet settled; beyond it nothing is published
	perKey      int // waiting rows of one key
	lagging     int // keys and routes whose rows are read again later
	attempts    int
	probeMin    time.Duration
	probeMax    time.Duration
	confirm     time.Duration
	trust       time.Duration // what was read longer ago is looked up before it is published
}

// maxLagging bounds the keys of a shard whose rows are read again later.
const maxLagging = 100_000

func (o Options) limits() limits {
	return limits{
		strict: o.OnPoison == Strict, window: o.Window, windowBytes: o.WindowBytes, maxWaiting: 2 * o.Window, maxSettling: 4 * o.Window,
		perKey: max(o.Window/8, 4), lagging: maxLagging, attempts: o.Attempts, probeMin: o.ProbeMin, probeMax: o.ProbeMax,
		confirm: o.ConfirmTimeout, trust: o.Lease,
	}
}

// lanes is the state of one shard: what is in memory, what must wait, and how far reading has come. It does no
// I/O and reads no clock. One goroutine owns it.
//
// The rule that keeps rows from being lost: the cursor passes a row only if the row is in rows, or its key or
// route lags (and then the second lane reads it again), or it is parked. Everything else about a row is in the
// database.
type lanes struct {
	limits
	shard    int16
	exchange string // of rows that name none

	// Every visible row with an id up to cursor was seen in the snapshot; "" is none, read from the first row.
	cursor   int64
	snapshot string

	rows   map[int64]*row // in memory and in the outbox
	units  map[int64]*unit
	routes map[routeName]*route
	gates  map[string]*gate    // exchanges that are missing, or were a moment ago
	shut   map[*route]struct{} // stopped routes
	ready  queue               // may be published now, in order
	parked parkedLane
	// withheld rows are being discarded: nobody takes them.
	withheld map[int64]struct{}

	flying, flyingBytes   int
	waiting, waitingBytes int // waiting or ready
	stalled               int // of these, waiting for a stopped route
	overdue, overdueBytes int // flying, but out of the window
	settling              int
	isolated              int
	seq                   uint64
	takes                 uint64    // rows taken so far
	lateFrom              time.Time // no confirm is late before that

	lag        lagLane
	ghosts     [readKinds]ghosts
	generation int  // grows with every reset: answers to older reads are void
	stuck      bool // no room to remember more lagging keys: the cursor stays
	mustMark   bool // more late rows than one page: their keys have to be noted first

	out todo
}

// todo is what lanes want done; the shard takes it.
type todo struct {
	settle []*row // confirmed
	check  []*row // to be looked up
	bad    []verdict
	probes []string // exchanges to look for
	notes  []note   // for the log
}

// note says that a route was stopped, or that it works again (reason nil).
type note struct {
	route  routeName
	reason error
}

// verdict says that a row is bad.
type verdict struct {
	row    *row
	reason string // refused, channel_closed or unroutable
	err    error
}

func newLanes(shard int16, exchange string, l limits) *lanes {
	s := &lanes{
		limits: l, shard: shard, exchange: exchange, rows: map[int64]*row{}, units: map[int64]*unit{}, routes: map[routeName]*route{},
		gates: map[string]*gate{}, shut: map[*route]struct{}{}, parked: newParkedLane(), withheld: map[int64]struct{}{},
	}
	s.lag.init()
	return s
}

// accept takes a row that was read by the main lane, unless it is known already. It reports whether the row
// (or its lagging key) is now remembered; false means that there is no room to remember even that, and the
// cursor must not pass it.
func (s *lanes) accept(r *row) bool {
	if s.known(r.id) {
		return true
	}
	s.place(r)
	if s.isWithheld(r.id) || s.mustLag(r) {
		return s.skip(r)
	}
	s.take(r)
	return true
}

// known reports whether a row that was read is in memory, or was settled while the read was under way.
func (s *lanes) known(id int64) bool {
	if _, here := s.rows[id]; here {
		return true
	}
	return s.ghosts[mainRead].has(id)
}

// place finds the row's unit and route.
func (s *lanes) place(r *row) {
	r.route = s.routeOf(r)
	if r.msg.text(textKey) != "" {
		r.unit = s.unitOf(r.hash)
	}
}

// mustLag reports whether a row of the main lane has to be left for the second one.
func (s *lanes) mustLag(r *row) bool {
	if u := r.unit; u != nil {
		return u.lagFrom != 0 || u.blocked() || !s.room(r)
	}
	return !s.room(r)
}

// room reports whether a row that must wait may be kept. Rows that wait for a stopped route get half of the
// memory at most, so that the others go on.
func (s *lanes) room(r *row) bool {
	u := r.unit
	if u != nil && len(u.queue) > 0 {
		if len(u.queue) >= s.perKey || s.full() {
			return false
		}
		return u.waitsFor == nil || s.stalled < s.maxWaiting/2
	}
	if !r.route.open() {
		return s.stalled < s.maxWaiting/2 && !s.full()
	}
	return u == nil || u.busy == 0 || !s.strict || !s.full()
}

func (s *lanes) full() bool {
	return s.waiting >= s.maxWaiting || s.waitingBytes >= 2*s.windowBytes
}

// roomBytes is how much may be read at once.
func (s *lanes) roomBytes() int { return min(s.windowBytes, 2*s.windowBytes-s.waitingBytes) }

// take keeps a row and moves it on as far as it may go.
func (s *lanes) take(r *row) {
	s.rows[r.id] = r
	s.takes++
	r.take = s.takes
	r.route.refs++
	r.place = placeWaiting
	s.waiting++
	s.waitingBytes += r.size()
	if u := r.unit; u != nil {
		s.enqueue(u, r)
		s.pump(u)
		return
	}
	s.readyOrStall(r)
}

// readyOrStall moves on a row without a key.
func (s *lanes) readyOrStall(r *row) {
	if r.route.open() {
		r.place = placeReady
		s.ready.push(r)
		return
	}
	s.setIsolated(r, false)
	r.place = placeWaiting
	r.route.stalled.push(r)
	s.stalled++
}

// next returns the row to publish now, or nil. The caller publishes it and calls sent, or putBack.
func (s *lanes) next(now time.Time) *row {
	for {
		r := s.ready.front()
		if r == nil || !s.mayFly(r) {
			return nil
		}
		s.ready.pop()
		switch {
		case !r.probe && !r.route.open():
			s.wait(r) // its route was stopped meanwhile
		case s.doubtful(r, now):
			s.doubt(r)
		default:
			return r
		}
	}
}

// mayFly reports whether the window has a place for r.
func (s *lanes) mayFly(r *row) bool {
	if s.settling >= s.maxSettling || s.overdue >= s.window || s.overdueBytes >= s.windowBytes {
		return false
	}
	if s.isolated > 0 {
		return s.flying+s.overdue == 0
	}
	return s.flying < s.window && (s.flying == 0 || s.flyingBytes+r.size() <= s.windowBytes)
}

// wait puts a ready row back among the waiting ones of its key or route.
func (s *lanes) wait(r *row) {
	r.probe = false
	if u := r.unit; u != nil && r.parked == nil {
		u.busy--
		s.enqueue(u, r)
		s.pump(u)
		return
	}
	if r.parked != nil {
		s.postpone(r)
		return
	}
	s.readyOrStall(r)
}

// putBack returns a row that next gave out and that could not be published just now.
func (s *lanes) putBack(r *row) { s.ready.pushFront(r) }

// sent notes that r was handed to the broker.
func (s *lanes) sent(r *row, now time.Time) {
	s.seq++
	r.place, r.seq, r.sentAt, r.checked = placeFlying, s.seq, instantOf(now), false
	s.waiting--
	s.waitingBytes -= r.size()
	s.flying++
	s.flyingBytes += r.size()
}

// landed takes r out of the window.
func (s *lanes) landed(r *row) {
	if r.overdue {
		r.overdue = false
		s.overdue--
		s.overdueBytes -= r.size()
		return
	}
	s.flying--
	s.flyingBytes -= r.size()
}

// confirmed notes that the broker has r. It stays in memory until it is settled.
func (s *lanes) confirmed(r *row) {
	late := r.overdue
	s.landed(r)
	s.setIsolated(r, false)
	r.empty()
	r.place = placeSettling
	s.settling++
	s.out.settle = append(s.out.settle, r)
	s.passed(r, late)
	if r.parked != nil {
		return // its key is free once it is gone from the parked table
	}
	if u := r.unit; u != nil {
		u.busy--
		s.pump(u)
		s.mayResume(u)
	}
}

// unsettled puts rows back whose settling failed; they are confirmed and stay so.
func (s *lanes) unsettled(rows []*row) { s.out.settle = append(s.out.settle, rows...) }

// settled forgets rows that are gone from the table. Reads that are under way may still return them.
func (s *lanes) settled(rows []*row) {
	for _, r := range rows {
		s.settling--
		for i := range s.ghosts {
			s.ghosts[i].add(r.id)
		}
		s.forget(r)
	}
}

// forget drops a row from memory.
func (s *lanes) forget(r *row) {
	delete(s.rows, r.id)
	s.releaseRoute(r.route)
	if r.unit != nil {
		s.releaseUnit(r.unit)
	}
}

// nacked is called for a row that the broker refused while the channel lives on: back-pressure of its route,
// never an attempt.
func (s *lanes) nacked(r *row, now time.Time, err error) {
	s.landed(r)
	s.setIsolated(r, false)
	s.probeFailed(r, err, now)
	s.stop(r.route, err, now)
	s.again(r)
}

// again makes a row that was flying wait for its next publish.
func (s *lanes) again(r *row) {
	s.waiting++
	s.waitingBytes += r.size()
	s.wait(r)
}

// lost takes back everything that was flying when a channel ended; nobody knows what the broker has of it.
// It is published again from memory, in order of id, before newer rows of its keys. With suspect set the
// broker closed the channel because of one of these rows, so each goes alone until it is found.
func (s *lanes) lost(suspect bool) {
	var flown []*row
	for _, r := range s.rows {
		if r.place == placeFlying {
			flown = append(flown, r)
		}
	}
	flown = append(flown, s.parked.flying()...)
	for _, r := range flown {
		s.landed(r)
		r.probe = false
		s.waiting++
		s.waitingBytes += r.size()
		r.place = placeWaiting
		if suspect {
			s.setIsolated(r, true)
		}
	}
	for _, g := range s.gates {
		g.asked = false
	}
	for _, route := range s.routes {
		route.probing = nil
		flown = append(flown, s.takeSuspects(route)...)
	}
	flown = append(flown, s.takeChecking()...)
	flown = append(flown, s.ready.drain()...)
	slices.SortFunc(flown, func(a, b *row) int { return cmp.Compare(a.id, b.id) })
	s.refill(flown)
}

// refill gives rows in order of id back to their keys first, and only then lets them move: an older row must
// not be overtaken by a newer one that happens to be put back earlier.
func (s *lanes) refill(rows []*row) {
	for _, r := range rows {
		if r.unit != nil && r.parked == nil {
			r.probe = false
			r.unit.busy--
			s.enqueue(r.unit, r)
		}
	}
	for _, r := range rows {
		switch {
		case r.parked != nil:
			r.place = placeReady
			s.ready.push(r)
		case r.unit == nil:
			s.readyOrStall(r)
		default:
			s.pump(r.unit)
		}
	}
}

// bad notes that r itself is at fault, and hands it over to be parked. Its key waits, under strict.
func (s *lanes) bad(r *row, reason string, err error) {
	s.setIsolated(r, false)
	if r.place == placeFlying {
		s.landed(r)
	} else {
		s.waiting--
		s.waitingBytes -= r.size()
	}
	if r.route.probing == r {
		r.route.probing = nil
	}
	r.probe = false
	r.empty()
	r.place = placeParking
	if r.parked == nil && r.unit != nil {
		r.unit.busy--
		if s.strict {
			r.unit.parking++
			s.dropQueue(r.unit)
		}
	}
	s.out.bad = append(s.out.bad, verdict{r, reason, err})
}

// moved notes that a bad row has been moved to the parked table, where ref stands for it.
func (s *lanes) moved(r *row, ref *parkedRef) {
	for i := range s.ghosts {
		s.ghosts[i].add(r.id)
	}
	if r.unit != nil && s.strict {
		r.unit.parking--
	}
	s.parked.add(ref)
	if r.unit != nil && s.strict {
		r.unit.parked++
	}
	if r.unit != nil {
		s.pump(r.unit)
	}
	s.forget(r)
}

// vanished notes that a bad row was gone from the outbox when it should have been moved.
func (s *lanes) vanished(r *row) {
	s.forget(r)
	if u := r.unit; u != nil {
		if s.strict {
			u.parking--
		}
		s.pump(u)
		s.mayResume(u)
		s.releaseUnit(u)
	}
}

// reset forgets how far reading has come, and starts from the first row. What is in memory stays.
func (s *lanes) reset() {
	s.cursor, s.snapshot, s.mustMark = 0, "", false
	s.generation++
}

func (s *lanes) setIsolated(r *row, on bool) {
	if r.isolated == on {
		return
	}
	r.isolated = on
	if on {
		s.isolated++
	} else {
		s.isolated--
	}
}

// idle reports whether nothing is on its way.
func (s *lanes) idle() bool {
	return s.flying+s.overdue == 0 && s.settling == 0 && len(s.out.settle) == 0 && len(s.out.bad) == 0
}
