package relay

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// parkedAtOnce is how many parked rows of a shard are tried at the same time.
const parkedAtOnce = 64

// load reads the parked rows before anything else: a key that they block must not be published.
func (s *shard) load(ctx context.Context) {
	var refs []*parkedRef
	var err error
	s.errand(ctx, func(ctx context.Context) { refs, err = s.relay.parking.load(ctx, s.id) }, func() {
		s.status("parked", err)
		if err != nil {
			s.later(time.Now(), s.load)
			return
		}
		s.lanes.loadParked(refs)
		s.loaded = true
	})
}

// askMain asks the reader for the next page of the main lane, when there is room for it.
func (s *shard) askMain() {
	l := s.lanes
	room := min(max(l.window/2, 1), l.maxWaiting-l.waiting)
	if s.asking || s.draining || !s.loaded || s.marking || s.current.pub == nil || l.mustMark ||
		room < max(l.window/4, 1) || l.ready.count > l.window/4 || l.full() {
		return
	}
	s.asked = ask{
		shard: s.id, generation: l.generation, cursor: l.cursor, snapshot: l.snapshot, n: room, bytes: l.roomBytes(),
		server: s.server, urgent: (s.hungry || l.snapshot == "") && !l.stuck, reply: s.pages,
	}
	l.ghosts[mainRead].begin()
	s.asking = true
	s.relay.reader.asks <- s.asked
}

// page takes the reader's answer. Any doubt about the database session drops cursor and snapshot.
func (s *shard) page(a answer) {
	s.asking = false
	if a.err != nil || a.generation != s.lanes.generation {
		s.lanes.ghosts[mainRead].end()
		if a.err != nil {
			s.lanes.reset()
			s.server, s.hungry = time.Time{}, false
			s.status("read", a.err)
		}
		if errors.Is(a.err, errNewServer) {
			s.lose(a.err)
		}
		return
	}
	s.status("read", nil)
	s.server = a.server
	s.lanes.applyPage(a.page)
	s.hungry = a.page.full
	if s.lanes.stuck {
		s.status("lag", errTooMuchLag)
	} else {
		s.status("lag", nil)
	}
}

var errTooMuchLag = errors.New("too many keys wait for a blocked key or a stopped route; the shard waits with them (surefoot outbox ls)")

// takeOut does what the lanes want done.
func (s *shard) takeOut(ctx context.Context, now time.Time) {
	out := &s.lanes.out
	for _, v := range out.bad {
		s.park(ctx, v)
	}
	out.bad = nil
	for _, exchange := range out.probes {
		s.lookUp(ctx, exchange)
	}
	out.probes = nil
	for _, n := range out.notes {
		s.note(n)
	}
	out.notes = nil
	s.check(ctx)
	s.settle(ctx, now)
}

func (s *shard) note(n note) {
	if n.reason == nil {
		s.logger.Info().Str("exchange", n.route.exchange).Str("routing_key", n.route.key).Msg("route works again")
		return
	}
	s.logger.Warn().Err(n.reason).Str("exchange", n.route.exchange).Str("routing_key", n.route.key).Msg("route stopped, its messages wait")
}

// settle hands confirmed rows to the settler, one batch at a time.
func (s *shard) settle(ctx context.Context, now time.Time) {
	rows := s.lanes.out.settle
	if len(rows) == 0 || s.settlingNow || now.Before(s.settleAfter) {
		return
	}
	if s.settleSince.IsZero() {
		s.settleSince = now
	}
	if len(rows) < settleMost/4 && now.Sub(s.settleSince) < settleEvery && !s.draining {
		return
	}
	s.settleSince = time.Time{}
	batch := rows[:min(len(rows), settleMost)]
	s.lanes.out.settle = append([]*row(nil), rows[len(batch):]...)
	plain := batch[:0:0]
	for _, r := range batch {
		if r.parked != nil {
			s.settleParked(ctx, r)
			continue
		}
		plain = append(plain, r)
	}
	if len(plain) == 0 {
		return
	}
	s.settlingNow = true
	s.relay.settler.batch <- settlement{shard: s.id, epoch: s.epoch, rows: plain, reply: s.replies}
}

func (s *shard) settled(o settled) {
	s.settlingNow = false
	switch {
	case errors.Is(o.err, errFenced):
		s.lose(o.err)
	case o.err != nil:
		s.status("settle", o.err)
		s.lanes.unsettled(o.rows)
		s.settleAfter = time.Now().Add(retryLater)
	default:
		s.status("settle", nil)
		s.lanes.settled(o.rows)
	}
}

func (s *shard) settleParked(ctx context.Context, r *row) {
	var err error
	s.errand(ctx, func(ctx context.Context) { err = s.relay.parking.settle(ctx, s.id, s.epoch, []int64{r.id}) }, func() {
		switch {
		case errors.Is(err, errFenced):
			s.lose(err)
		case err != nil:
			s.later(time.Now(), func(ctx context.Context) { s.settleParked(ctx, r) })
		default:
			s.logger.Info().Str(telemetry.FieldEventID, r.msg.text(textID)).Msg("parked row published")
			s.lanes.unparked(r.parked)
		}
	})
}

// park stores the failed try of a bad row.
func (s *shard) park(ctx context.Context, v verdict) {
	var f failure
	var there bool
	var err error
	s.errand(ctx, func(ctx context.Context) { f, there, err = s.relay.parking.fail(ctx, s.epoch, v) }, func() {
		switch {
		case errors.Is(err, errFenced):
			s.lose(err)
		case err != nil:
			s.later(time.Now(), func(ctx context.Context) { s.park(ctx, v) })
		default:
			s.parkedAs(v, f, there)
		}
	})
}

func (s *shard) parkedAs(v verdict, f failure, there bool) {
	r := v.row
	due := time.Now().Add(f.wait)
	level := zerolog.WarnLevel
	if f.dead {
		level = zerolog.ErrorLevel
	}
	s.logger.WithLevel(level).Err(v.err).Str(telemetry.FieldEventID, r.msg.text(textID)).Str(telemetry.FieldType, r.msg.text(textType)).Str(telemetry.FieldReason, v.reason).Int(telemetry.FieldAttempt, f.attempts).
		Bool("dead", f.dead).Msg("bad row parked")
	switch {
	case r.parked != nil && there:
		s.lanes.failedAgain(r.parked, f.dead, due)
	case r.parked != nil:
		s.lanes.unparked(r.parked)
	case there:
		s.lanes.moved(r, &parkedRef{id: r.id, hash: r.hash, keyed: r.unit != nil, dead: f.dead, attempts: f.attempts, due: due})
	default:
		s.lanes.vanished(r)
	}
}

func (s *shard) lookUp(ctx context.Context, exchange string) {
	current := s.current
	if current.pub == nil {
		return
	}
	var err error
	s.errand(ctx, func(ctx context.Context) { err = current.lookUp(context.WithoutCancel(ctx), exchange) }, func() {
		s.lanes.exchangeSeen(exchange, err, time.Now())
	})
}

// timed starts what is due.
func (s *shard) timed(ctx context.Context, now time.Time) {
	if s.draining || !s.loaded || s.current.pub == nil {
		return
	}
	if now.After(s.expireAt) {
		s.expireAt = now.Add(min(time.Second, s.lanes.confirm/2))
		if blocked, _ := s.current.conn.Blocked(); !blocked {
			s.lanes.expire(now)
			if s.lanes.unanswered(now) {
				s.current.conn.Abort(errUnanswered)
			}
		}
	}
	if now.After(s.armAt) {
		s.armAt = now.Add(idleTick)
		s.lanes.armAll()
	}
	s.lanes.probeRoutes(now)
	s.tell(ctx, now)
	s.fetchParked(ctx, now)
	s.mark(ctx)
	s.pass(ctx)
	if now.After(s.sweepAt) && !s.sweeping && s.lanes.snapshot != "" {
		s.sweepAt = now.Add(s.relay.opts.Sweep)
		s.lanes.rearm()
		s.sweep(ctx, 0, s.lanes.cursor, s.lanes.snapshot)
		s.sweepParked(ctx)
	}
}

// fetchParked reads the parked rows that are due, when they can be sent.
func (s *shard) fetchParked(ctx context.Context, now time.Time) {
	if blocked, _ := s.current.conn.Blocked(); blocked || s.fetching || s.jammed || s.lanes.full() {
		return
	}
	ids := s.lanes.dueParked(now, parkedAtOnce)
	if len(ids) == 0 {
		return
	}
	s.fetching = true
	var f fetched
	var err error
	bytes := s.lanes.roomBytes()
	s.errand(ctx, func(ctx context.Context) { f, err = s.relay.parking.fetch(ctx, s.id, ids, bytes) }, func() {
		s.fetching = false
		for _, r := range f.rows {
			s.lanes.takeParked(r)
		}
		for _, id := range ids {
			s.notFetched(id, slices.Contains(f.left, id), err)
		}
		s.status("parked", err)
	})
}

// notFetched deals with a parked row that was asked for and is not in memory now.
func (s *shard) notFetched(id int64, left bool, err error) {
	ref := s.lanes.parked.refs[id]
	switch {
	case ref == nil || ref.row != nil:
	case err != nil:
		ref.busy, ref.due = false, time.Now().Add(retryLater)
	case left:
		ref.busy = false
	default:
		s.lanes.unparked(ref)
		s.noteGone(1)
	}
}

// mark notes the keys of a flood of late rows.
func (s *shard) mark(ctx context.Context) {
	if !s.lanes.mustMark || s.marking {
		return
	}
	s.marking = true
	s.lanes.ghosts[mainRead].begin()
	var a marksAnswer
	asked, timeout := s.asked, s.slowFor
	s.errand(ctx, func(ctx context.Context) { a = s.relay.slow.marks(ctx, timeout, asked, s.lanes.lagging+1) }, func() {
		s.marking = false
		s.lanes.ghosts[mainRead].end()
		if a.err != nil {
			s.slowFailed(a.err)
			s.lanes.reset()
			return
		}
		if a.generation == s.lanes.generation {
			s.lanes.applyMarks(a.marks, a.snapshot)
			s.hungry = true
		}
	})
}

func (s *shard) slowFailed(err error) {
	s.logger.Warn().Err(err).Dur("timeout", s.slowFor).Msg("slow read failed")
	if errors.Is(err, context.DeadlineExceeded) {
		s.slowFor = min(2*s.slowFor, maxSlowTimeout)
	}
}

// pass runs the second lane, one statement at a time.
func (s *shard) pass(ctx context.Context) {
	if s.passing {
		return
	}
	p := s.lanes.startPass()
	if p == nil {
		return
	}
	s.passing = true
	hashes := make([]int64, 0, len(p.units))
	for hash := range p.units {
		hashes = append(hashes, hash)
	}
	s.lanes.ghosts[lagRead].begin()
	var a passAnswer
	view, n, bytes, timeout := *p, max(s.lanes.window/2, 1), s.lanes.roomBytes(), s.slowFor
	s.errand(ctx, func(ctx context.Context) { a = s.relay.slow.pass(ctx, timeout, s.id, view, hashes, n, bytes) }, func() {
		s.passing = false
		defer s.lanes.ghosts[lagRead].end()
		switch {
		case a.err != nil:
			s.slowFailed(a.err)
			s.lanes.abandonPass()
		case s.lanes.ghosts[lagRead].void:
			s.lanes.abandonPass()
		default:
			s.lanes.passOver(a.rows, a.reached)
		}
	})
}

// sweep looks for rows that nobody remembers, page by page.
func (s *shard) sweep(ctx context.Context, from, to int64, snapshot string) {
	s.sweeping = true
	s.lanes.ghosts[sweepRead].begin()
	generation, takes, timeout := s.lanes.generation, s.lanes.takes, s.slowFor
	var a sweepAnswer
	s.errand(ctx, func(ctx context.Context) { a = s.relay.slow.sweep(ctx, timeout, s.id, from, to, snapshot) }, func() {
		s.sweeping = false
		void := s.lanes.ghosts[sweepRead].void || generation != s.lanes.generation
		if a.err != nil {
			s.slowFailed(a.err)
		}
		if a.err == nil && !void {
			if n := s.lanes.applySweep(a.rows); n > 0 {
				s.relay.metrics.swept(n)
				s.logger.Warn().Int("rows", n).Msg("the sweep found rows that were overlooked; they are published now")
			}
			s.noteGone(s.lanes.sweptAway(a.rows, from, a.last, takes))
		}
		s.lanes.ghosts[sweepRead].end()
		if a.err == nil && a.more && !void {
			s.sweep(ctx, a.last, to, snapshot)
		}
	})
}
