package relay

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

// The rows are the truth, and anybody may delete some: a row that waited long is looked up before it is published, and
// the sweep drops what waits and is gone. What is on its way when its row is deleted may still arrive.

// maxChecked bounds the rows of one look-up.
const maxChecked = 2000

// checkSQL looks rows up by their ids, in the form that settleSQL explains. With its time of creation a row is known from
// a later one that was given the same id: after a sequence was reset, or a failover lost some transactions.
const checkSQL pg.SQL = `
SELECT f.id, f.created_at FROM unnest($2::bigint[]) AS w(id) CROSS JOIN LATERAL (
    SELECT x.shard, x.id, x.created_at FROM @schema@.outbox x
    WHERE (x.shard, x.id) >= ($1, w.id) ORDER BY x.shard, x.id LIMIT 1) f
WHERE f.shard = $1 AND f.id = w.id`

func (s *slowStore) check(ctx context.Context, shard int16, ids []int64) (map[int64]time.Time, error) {
	there := make(map[int64]time.Time, len(ids))
	var id int64
	var created time.Time
	err := planned(ctx, s.pool, checkSQL.In(s.schema), func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&id, &created}, func() error { there[id] = created; return nil })
		return err
	}, shard, ids)
	if err != nil {
		return nil, fmt.Errorf("look up rows: %w", err)
	}
	return there, nil
}

// check looks up rows that waited long, one statement at a time.
func (s *shard) check(ctx context.Context) {
	rows := s.lanes.out.check
	if s.checking || len(rows) == 0 {
		return
	}
	n := min(len(rows), maxChecked)
	s.lanes.out.check = append([]*row(nil), rows[n:]...)
	s.checking = true
	s.checkThese(ctx, rows[:n])
}

func (s *shard) checkThese(ctx context.Context, rows []*row) {
	ids := make([]int64, len(rows))
	for i, r := range rows {
		ids[i] = r.id
	}
	var there map[int64]time.Time
	var err error
	now := time.Now()
	s.errand(ctx, func(ctx context.Context) { there, err = s.relay.slow.check(ctx, s.id, ids) }, func() {
		s.status("check", err)
		if err != nil {
			s.later(time.Now(), func(ctx context.Context) { s.checkThese(ctx, rows) })
			return
		}
		s.checking = false
		s.noteGone(s.lanes.looked(rows, there, now))
	})
}

func (s *shard) noteGone(n int) {
	if n > 0 {
		s.logger.Warn().Int("rows", n).Msg("rows that waited are gone from their table: somebody deleted them; they are not published")
	}
}

// sweepParked looks for parked rows that are remembered and gone: a dead one would block its key for ever.
func (s *shard) sweepParked(ctx context.Context) {
	if len(s.lanes.parked.refs) == 0 {
		return
	}
	var ids []int64
	var err error
	adds := s.lanes.parked.adds
	s.errand(ctx, func(ctx context.Context) { ids, err = s.relay.parking.ids(ctx, s.id) }, func() {
		if err != nil {
			s.logger.Debug().Err(err).Msg("parked rows not swept")
			return
		}
		s.noteGone(s.lanes.sweptParked(ids, adds))
	})
}

// doubtful reports whether r has to be looked up first.
func (s *lanes) doubtful(r *row, now time.Time) bool {
	return r.readAt.ago(now) > s.trust || r.unit != nil && r.unit.checking > 0 && !r.checked
}

// doubt has a row looked up that was about to be published. A parked one is read again.
func (s *lanes) doubt(r *row) {
	if r.parked != nil {
		s.postpone(r)
		return
	}
	r.place = placeChecking
	if r.unit != nil {
		r.unit.checking++
	}
	s.out.check = append(s.out.check, r)
}

// looked takes the answer about rows that were to be looked up at a time: when each of those that are there was
// created. It returns how many are gone.
func (s *lanes) looked(rows []*row, there map[int64]time.Time, at time.Time) int {
	gone := 0
	for _, r := range slices.Backward(rows) { // the first one ends up in front
		if s.rows[r.id] != r {
			continue
		}
		created, is := there[r.id]
		switch same := is && created.UnixMicro() == r.created; {
		case same && r.place == placeChecking:
			s.endCheck(r)
			r.checked, r.readAt = true, instantOf(at)
			r.place = placeReady
			s.ready.pushFront(r)
		case same:
			r.readAt = instantOf(at)
		case s.gone(r):
			gone++
		}
	}
	return gone
}

func (s *lanes) endCheck(r *row) {
	if r.unit != nil {
		r.unit.checking--
	}
}

// takeChecking calls all look-ups off; the caller puts the rows somewhere.
func (s *lanes) takeChecking() []*row {
	var rows []*row
	for _, r := range s.rows {
		if r.place == placeChecking {
			s.endCheck(r)
			r.place, r.probe = placeReady, false
			rows = append(rows, r)
		}
	}
	s.out.check = nil
	return rows
}

// gone forgets a row that waits, or is looked up, and is in the outbox no more; what comes after it in its key goes on. It
// reports whether it did: anything else is on its way.
func (s *lanes) gone(r *row) bool {
	switch r.place {
	case placeChecking:
		s.endCheck(r)
		s.leaveBusy(r)
	case placeWaiting:
		s.leaveQueue(r)
	case placeReady, placeFlying, placeSettling, placeParking:
		return false
	}
	if r.route.probing == r {
		r.route.probing = nil
	}
	s.setIsolated(r, false)
	s.waiting--
	s.waitingBytes -= r.size()
	for i := range s.ghosts {
		s.ghosts[i].add(r.id)
	}
	s.forget(r)
	if u := r.unit; u != nil {
		s.pump(u)
		s.mayResume(u)
		s.releaseUnit(u)
	}
	return true
}

func (s *lanes) leaveBusy(r *row) {
	if r.unit != nil {
		r.unit.busy--
	}
}

// leaveQueue takes a waiting row from where it waits.
func (s *lanes) leaveQueue(r *row) {
	t, u := r.route, r.unit
	switch {
	case slices.Contains(t.suspects, r):
		t.suspects = slices.DeleteFunc(t.suspects, func(other *row) bool { return other == r })
		s.leaveBusy(r)
	case u == nil:
		t.stalled.remove(r)
		s.stalled--
	default:
		if u.waitsFor != nil && u.queue[0] == r {
			u.waitsFor.dropWaiter(u)
			s.unstall(u)
		}
		s.countStalled(u, -1)
		u.queue = slices.DeleteFunc(u.queue, func(other *row) bool { return other == r })
	}
}

// sweptAway forgets the rows that wait and that a sweep did not see, which looked at all from one id to another. It knows
// nothing of rows that were taken after it began. It returns how many are gone.
func (s *lanes) sweptAway(rows []found, from, to int64, takes uint64) int {
	seen := make(map[int64]struct{}, len(rows))
	for _, f := range rows {
		seen[f.id] = struct{}{}
	}
	gone := 0
	for id, r := range s.rows {
		if _, there := seen[id]; !there && id > from && id <= to && r.take <= takes && r.place == placeWaiting && s.gone(r) {
			gone++
		}
	}
	return gone
}

// sweptParked does so for the parked rows, of which ids are all that matter, and those that were added later.
func (s *lanes) sweptParked(ids []int64, adds uint64) int {
	there := make(map[int64]struct{}, len(ids))
	for _, id := range ids {
		there[id] = struct{}{}
	}
	gone := 0
	for id, ref := range s.parked.refs {
		if _, is := there[id]; !is && ref.add <= adds && !ref.busy && ref.row == nil {
			s.unparked(ref)
			gone++
		}
	}
	return gone
}
