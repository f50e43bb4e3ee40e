package relay

import (
	"cmp"
	"errors"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// routeName is what decides where the broker puts a message.
type routeName struct{ exchange, key string }

// gate is open, or closed with a reason and a time to try again.
type gate struct {
	stopped bool
	reason  error
	since   time.Time     // of the first stop
	backoff time.Duration // of the last stop; 0 once something passed
	probeAt time.Time
	asked   bool // for an exchange: whether it is there is being looked up
}

func (g *gate) stop(err error, now time.Time, l limits) {
	if g.backoff == 0 {
		g.since = now
	}
	g.backoff = min(max(2*g.backoff, l.probeMin), l.probeMax)
	g.stopped, g.reason, g.probeAt, g.asked = true, err, now.Add(g.backoff), false
}

// route is one (exchange, routing key). It is stopped as a whole when one of its messages is returned or
// refused, or has no confirm in time: the next ones would fare no better. Then one row at a time probes.
type route struct {
	gate
	name     routeName
	exchange *gate // nil: nothing is known against it
	refs     int   // rows in memory
	waiters  []*unit
	stalled  queue // rows without a key
	probing  *row

	stoppedSeq uint64 // the last publish before the stop
	slow       bool   // stopped because a confirm is late
	passes     uint64
	suspects   []*row // returned again though others passed; what comes after decides
}

func (t *route) open() bool { return !t.stopped && (t.exchange == nil || !t.exchange.stopped) }

func (t *route) dropWaiter(u *unit) {
	if i := slices.Index(t.waiters, u); i >= 0 {
		t.waiters = slices.Delete(t.waiters, i, i+1)
	}
}

func (s *lanes) routeOf(r *row) *route {
	name := routeName{cmp.Or(r.msg.text(textExchange), s.exchange), r.msg.route()}
	t := s.routes[name]
	if t == nil {
		t = &route{name: name, exchange: s.gates[name.exchange]}
		s.routes[name] = t
	}
	return t
}

func (s *lanes) releaseRoute(t *route) {
	t.refs--
	s.dropRoute(t)
}

// dropRoute forgets a route that nothing refers to, so that routing keys without number cannot fill memory.
func (s *lanes) dropRoute(t *route) {
	if t.refs == 0 && len(t.waiters) == 0 && !t.stopped && s.routes[t.name] == t {
		delete(s.routes, t.name)
	}
}

// stop stops a route. Rows of it that are suspects wait like all others: it is the route, after all.
func (s *lanes) stop(t *route, err error, now time.Time) {
	if !t.stopped {
		s.noteStop(t.name, t.gate, err)
		t.stop(err, now, s.limits)
		t.stoppedSeq, t.slow = s.seq, false
		s.shut[t] = struct{}{}
	}
	for _, r := range s.takeSuspects(t) {
		s.wait(r)
	}
}

// noteStop tells of a route's first stop, not of each probe that fails.
func (s *lanes) noteStop(name routeName, g gate, err error) {
	if g.backoff == 0 {
		s.out.notes = append(s.out.notes, note{name, err})
	}
}

// takeSuspects ends the suspicion: the rows count as waiting again, and the caller puts them somewhere.
func (s *lanes) takeSuspects(t *route) []*row {
	rows := t.suspects
	t.suspects = nil
	return rows
}

// openRoute lets the waiting rows of a route go on.
func (s *lanes) openRoute(t *route) {
	t.stopped, t.slow, t.reason = false, false, nil
	delete(s.shut, t)
	s.release(t)
	s.dropRoute(t)
}

// release moves on what waited for a route that is open now.
func (s *lanes) release(t *route) {
	if !t.open() {
		return
	}
	waiters := t.waiters
	t.waiters = nil
	for _, u := range waiters {
		s.unstall(u)
	}
	for _, u := range waiters {
		s.pump(u)
	}
	for _, r := range t.stalled.drain() {
		s.stalled--
		s.readyOrStall(r)
	}
	s.lag.looseMoves = true
	s.armAll()
}

// passed notes that a message of r's route was routed and confirmed.
func (s *lanes) passed(r *row, late bool) {
	t := r.route
	t.passes++
	if t.backoff != 0 {
		t.backoff = 0
		s.out.notes = append(s.out.notes, note{route: t.name})
	}
	if g := s.gates[t.name.exchange]; g != nil && !g.stopped {
		s.forgetGate(t.name.exchange)
	}
	if t.probing == r {
		t.probing = nil
	}
	probe := r.probe
	r.probe = false
	if t.stopped && (probe || r.seq > t.stoppedSeq || late && t.slow) {
		s.openRoute(t)
	}
	s.judge(t, r.seq)
}

// judge condemns the suspects that were published before a message that passed.
func (s *lanes) judge(t *route, seq uint64) {
	suspects := t.suspects
	t.suspects = nil
	for _, r := range suspects {
		if r.seq > seq {
			t.suspects = append(t.suspects, r)
			continue
		}
		s.bad(r, reasonUnroutable, errReturnedAgain)
	}
}

// returnedBy notes that the broker found no queue for r. That concerns the route; only a row that comes back
// again, while others of its route before and after it pass, is bad itself.
func (s *lanes) returnedBy(r *row, err error, now time.Time) {
	if r.parked != nil {
		s.bad(r, reasonUnroutable, err)
		return
	}
	t := r.route
	s.landed(r)
	s.setIsolated(r, false)
	s.waiting++
	s.waitingBytes += r.size()
	if r.returned && !r.probe && t.passes > r.passes && t.open() {
		r.place = placeWaiting
		t.suspects = append(t.suspects, r)
		return
	}
	s.probeFailed(r, err, now)
	r.returned, r.passes = true, t.passes
	s.stop(t, err, now)
	s.wait(r)
}

// probeFailed makes the route of a probe wait longer for the next one.
func (s *lanes) probeFailed(r *row, err error, now time.Time) {
	if t := r.route; t.probing == r {
		t.probing = nil
		t.stop(err, now, s.limits)
		s.shut[t] = struct{}{} // a late confirm may have opened it meanwhile
	}
}

// closeExchange stops all routes of an exchange that is missing or forbidden.
func (s *lanes) closeExchange(name string, err error, now time.Time) {
	g := s.gates[name]
	if g == nil {
		g = &gate{}
		s.gates[name] = g
	}
	s.noteStop(routeName{exchange: name}, *g, err)
	g.stop(err, now, s.limits)
	for _, t := range s.routes {
		if t.name.exchange == name {
			t.exchange = g
		}
	}
}

// exchangeSeen takes the answer whether a missing exchange is there now.
func (s *lanes) exchangeSeen(name string, err error, now time.Time) {
	g := s.gates[name]
	if g == nil || !g.stopped {
		return
	}
	if err != nil {
		g.stop(err, now, s.limits)
		return
	}
	g.stopped, g.reason, g.asked = false, nil, false
	s.lag.looseMoves = true
	for _, t := range s.routes {
		if t.name.exchange == name {
			s.release(t)
		}
	}
}

func (s *lanes) forgetGate(name string) {
	s.out.notes = append(s.out.notes, note{route: routeName{exchange: name}})
	delete(s.gates, name)
	for _, t := range s.routes {
		if t.name.exchange == name {
			t.exchange = nil
		}
	}
}

// guilty judges a row that was alone in flight when the broker closed the channel. A missing or forbidden
// exchange concerns the exchange; anything else the row.
func (s *lanes) guilty(r *row, code int, err error, now time.Time) {
	if code == amqp.NotFound || code == amqp.AccessRefused {
		s.landed(r)
		s.setIsolated(r, false)
		s.closeExchange(r.route.name.exchange, err, now)
		s.again(r)
		return
	}
	s.bad(r, reasonChannelClosed, err)
}

// alone returns the only row in flight, or nil.
func (s *lanes) alone() *row {
	if s.flying+s.overdue != 1 {
		return nil
	}
	for _, r := range s.rows {
		if r.place == placeFlying {
			return r
		}
	}
	for _, r := range s.parked.flying() {
		return r
	}
	return nil
}

// probe lets one row of each stopped route go, when its time has come.
func (s *lanes) probeRoutes(now time.Time) {
	for name, g := range s.gates {
		if g.stopped && !g.asked && !now.Before(g.probeAt) {
			g.asked = true
			s.out.probes = append(s.out.probes, name)
		}
	}
	for t := range s.shut {
		if now.Before(t.probeAt) || t.probing != nil || t.exchange != nil && t.exchange.stopped {
			continue
		}
		s.probe(t)
	}
}

func (s *lanes) probe(t *route) {
	var r *row
	switch {
	case len(t.waiters) > 0:
		u := t.waiters[0]
		t.waiters = t.waiters[1:]
		s.unstall(u)
		r = u.queue[0]
		s.toReady(u, r)
	case t.stalled.count > 0:
		r = t.stalled.pop()
		s.stalled--
		r.place = placeReady
		s.ready.push(r)
	default:
		s.openRoute(t) // nothing in memory to try it with: the next row will tell
		return
	}
	r.probe = true
	t.probing = r
}

// expire stops the routes whose confirms do not come in time. Their rows leave the window and stay remembered:
// a late confirm settles them.
func (s *lanes) expire(now time.Time) {
	if !now.Before(s.lateFrom) {
		s.expireRows(now)
	}
	for _, t := range s.routes {
		if len(t.suspects) > 0 && t.suspects[0].sentAt.ago(now) > s.probeMax {
			s.stop(t, errReturnedAgain, now) // nothing came after them that could tell
		}
	}
}

// patienceForConfirms is after how many times the confirm timeout a confirm is taken to be lost.
const patienceForConfirms = 4

// errUnanswered ends a connection: its rows are published again on the next. A broker whose queue has lost its leader without a word may never
// answer what it was given before, and the channel stands still with it.
var errUnanswered = errors.New("relay: the broker has not confirmed a message for several times the confirm timeout; connecting anew")

// unanswered reports whether the confirm of a row is so late that it will not come on this channel.
func (s *lanes) unanswered(now time.Time) bool {
	if s.overdue == 0 {
		return false
	}
	for _, r := range s.rows {
		if r.place == placeFlying && r.overdue && r.sentAt.ago(now) > patienceForConfirms*s.confirm {
			return true
		}
	}
	return false
}

// expireRows looks at all that flies, and notes when to look again: not before the oldest of them is late.
func (s *lanes) expireRows(now time.Time) {
	oldest := instantOf(now)
	for _, r := range s.rows {
		if r.place != placeFlying || r.overdue {
			continue
		}
		if r.sentAt.ago(now) < s.confirm {
			oldest = min(oldest, r.sentAt)
			continue
		}
		s.landed(r)
		r.overdue = true
		s.overdue++
		s.overdueBytes += r.size()
		s.probeFailed(r, errConfirmLate, now)
		s.stop(r.route, errConfirmLate, now)
		r.route.slow = true
	}
	s.lateFrom = oldest.time().Add(s.confirm)
}
