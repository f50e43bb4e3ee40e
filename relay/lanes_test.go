package relay

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is a database and a broker of a few maps around real lanes. Snapshots are numbers: a row is visible in
// all from the one at its commit on. Rows of a key commit in the order of their ids, as serialised writers do.
type model struct {
	t         *rapid.T
	l         *lanes
	now       time.Time
	version   int
	nextID    int64
	open      []*modelRow // drawn, not committed
	table     map[int64]*modelRow
	parked    map[int64]*modelRow
	closed    map[string]bool // routes without a queue
	flying    []*row
	lastFirst map[string]int64 // of each key: the highest row that was confirmed
	confirmed map[int64]bool
	committed int
	discarded map[int64]bool
	withheld  []int64 // being discarded while they are pending
	deleted   map[int64]deletion
	lookUp    *lookUp
	finishing bool
}

// deletion is of a row that somebody else deleted.
type deletion struct {
	row *modelRow
	at  time.Time
}

// lookUp is a statement of shard.check that is under way.
type lookUp struct {
	rows  []*row
	there map[int64]time.Time
	at    time.Time
}

type modelRow struct {
	id        int64
	key       string
	route     string
	poison    bool
	committed int
}

func newModel(t *rapid.T, strict bool) *model {
	limits := limits{
		strict: strict, window: 6, windowBytes: 1 << 20, maxWaiting: 12, maxSettling: 24, perKey: 3, lagging: 1000, attempts: 3,
		probeMin: time.Second, probeMax: 4 * time.Second, confirm: 10 * time.Second,
		trust: 2 * time.Second,
	}
	return &model{
		t: t, l: newLanes(0, "x", limits), now: time.Now(), table: map[int64]*modelRow{}, parked: map[int64]*modelRow{},
		closed: map[string]bool{}, lastFirst: map[string]int64{}, confirmed: map[int64]bool{}, discarded: map[int64]bool{},
		deleted: map[int64]deletion{},
	}
}

func contentOf(id, key, typ string) (c content) {
	c.keep(id+typ+key, &[allTexts]int{textID: len(id), textType: len(typ), textKey: len(key)})
	return c
}

func (m *model) row(r *modelRow, late bool) *row {
	hash := r.id << 20
	if r.key != "" {
		hash = int64(r.key[0])
	}
	return &row{id: r.id, hash: hash, late: late, readAt: instantOf(m.now), msg: contentOf(strconv.FormatInt(r.id, 10), r.key, r.route)}
}

// draw takes ids for rows of one transaction.
func (m *model) draw() {
	for range rapid.IntRange(1, 8).Draw(m.t, "rows") {
		m.nextID++
		m.open = append(m.open, &modelRow{
			id: m.nextID, key: rapid.SampledFrom([]string{"a", "b", "c", "d", ""}).Draw(m.t, "key"),
			route: rapid.SampledFrom([]string{"r1", "r2"}).Draw(m.t, "route"), poison: rapid.IntRange(0, 19).Draw(m.t, "poison") == 0,
		})
	}
}

// commit makes drawn rows visible, of each key the first ones first.
func (m *model) commit(all bool) {
	m.version++
	held := map[string]bool{}
	var rest []*modelRow
	for _, r := range m.open {
		if held[r.key] || !all && rapid.Bool().Draw(m.t, "later") {
			held[r.key] = r.key != ""
			rest = append(rest, r)
			continue
		}
		r.committed = m.version
		m.table[r.id] = r
		m.committed++
	}
	m.open = rest
}

func (m *model) visible(from int64, match func(*modelRow) bool) []*modelRow {
	var rows []*modelRow
	for _, r := range m.table {
		if r.id > from && match(r) {
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b *modelRow) int { return int(a.id - b.id) })
	return rows
}

// read is one page of the main lane.
func (m *model) read() {
	room := min(m.l.window, m.l.maxWaiting-m.l.waiting)
	if room < 1 || m.l.mustMark {
		m.mark()
		return
	}
	m.l.ghosts[mainRead].begin()
	seen, _ := strconv.Atoi(m.l.snapshot)
	cursor := m.l.cursor
	p := page{snapshot: strconv.Itoa(m.version), last: m.nextID}
	if m.l.snapshot != "" {
		late := m.visible(0, func(r *modelRow) bool { return r.id <= cursor && r.committed > seen })
		p.overflow = len(late) > room
		slices.SortStableFunc(late, func(a, b *modelRow) int { return a.committed - b.committed }) // as the statement does
		for _, r := range late[:min(len(late), room+1)] {
			p.rows = append(p.rows, m.row(r, true))
		}
	}
	tail := m.visible(cursor, func(*modelRow) bool { return true })
	p.full = len(tail) > room
	for _, r := range tail[:min(len(tail), room)] {
		p.rows = append(p.rows, m.row(r, false))
	}
	if m.chance("settle during the read") {
		m.settle()
	}
	m.discardAmid()
	m.l.applyPage(p)
}

// chance is a draw, except at the end, which must not depend on luck.
func (m *model) chance(what string) bool { return !m.finishing && rapid.Bool().Draw(m.t, what) }

func (m *model) mark() {
	if !m.l.mustMark {
		return
	}
	seen, _ := strconv.Atoi(m.l.snapshot)
	cursor := m.l.cursor
	marks := map[int64]mark{}
	for _, r := range m.visible(0, func(r *modelRow) bool { return r.id <= cursor && r.committed > seen }) {
		row := m.row(r, true)
		hash := row.hash
		if r.key == "" {
			hash = 0
		}
		if old, has := marks[hash]; !has || r.id < old.id {
			marks[hash] = mark{hash: hash, id: r.id, keyed: r.key != ""}
		}
	}
	var list []mark
	for _, k := range marks {
		list = append(list, k)
	}
	m.l.applyMarks(list, strconv.Itoa(m.version))
}

// pass is one statement of the second lane; the main lane may read and settle while it is under way.
func (m *model) pass() {
	m.l.armAll()
	p := m.l.startPass()
	if p == nil {
		return
	}
	m.l.ghosts[lagRead].begin()
	var rows []*row
	found := m.visible(p.pos, func(r *modelRow) bool {
		_, wanted := p.units[m.row(r, false).hash]
		return r.id <= p.to && (r.key == "" && p.loose || r.key != "" && wanted)
	})
	n := 12
	if !m.finishing {
		n = rapid.IntRange(1, 12).Draw(m.t, "pass")
	}
	for _, r := range found[:min(n, len(found))] {
		rows = append(rows, m.row(r, false))
	}
	if m.chance("settle during the pass") {
		m.settle()
	}
	if m.chance("read during the pass") {
		m.read()
	}
	m.discardAmid()
	m.l.passOver(rows, len(found) < n)
	m.l.ghosts[lagRead].end()
}

// publish hands rows to the broker; a poisoned one is refused.
func (m *model) publish() {
	for {
		r := m.l.next(m.now)
		if r == nil {
			break
		}
		of := m.table[r.id]
		if r.parked != nil {
			of = m.parked[r.id]
		}
		if gone, is := m.deleted[r.id]; is && of == nil && m.now.Sub(gone.at) <= m.l.trust {
			of = gone.row
		}
		require.NotNil(m.t, of, "row %d is published but not in its table", r.id)
		require.NotContains(m.t, m.withheld, r.id, "published while it is being discarded")
		if of.poison {
			m.l.bad(r, reasonRefused, errors.New("poison"))
			continue
		}
		m.l.sent(r, m.now)
		m.flying = append(m.flying, r)
	}
	m.park()
}

func (m *model) park() {
	for _, v := range m.l.out.bad {
		r := v.row
		if r.parked != nil {
			m.l.failedAgain(r.parked, r.parked.attempts+1 >= m.l.attempts, m.now.Add(time.Second))
			continue
		}
		if m.table[r.id] == nil {
			m.l.vanished(r)
			continue
		}
		m.parked[r.id] = m.table[r.id]
		delete(m.table, r.id)
		m.l.moved(r, &parkedRef{id: r.id, hash: r.hash, keyed: r.unit != nil, attempts: 1, due: m.now.Add(time.Second)})
	}
	m.l.out.bad = nil
	m.l.out.notes = nil
}

// answer gives some of the flying rows their outcome, in the order of publishing within a route.
func (m *model) answer(all bool) {
	flying := m.flying
	m.flying = nil
	for _, r := range flying {
		if !all && rapid.Bool().Draw(m.t, "unanswered") {
			m.flying = append(m.flying, r)
			continue
		}
		switch {
		case m.closed[r.msg.text(textType)]:
			m.l.returnedBy(r, errors.New("no route"), m.now)
		case !all && rapid.IntRange(0, 9).Draw(m.t, "nack") == 0:
			m.l.nacked(r, m.now, errors.New("nack"))
		default:
			m.confirm(r)
		}
	}
	m.park()
}

func (m *model) confirm(r *row) {
	if m.l.strict && r.msg.text(textKey) != "" && !m.confirmed[r.id] {
		require.Greater(m.t, r.id, m.lastFirst[r.msg.text(textKey)], "key %s out of order", r.msg.text(textKey))
		m.lastFirst[r.msg.text(textKey)] = r.id
	}
	m.confirmed[r.id] = true
	delete(m.discarded, r.id) // deleted too late
	m.l.confirmed(r)
}

func (m *model) settle() {
	rows := m.l.out.settle
	m.l.out.settle = nil
	var plain []*row
	for _, r := range rows {
		if r.parked != nil {
			delete(m.parked, r.id)
			m.l.unparked(r.parked)
			continue
		}
		delete(m.table, r.id)
		plain = append(plain, r)
	}
	m.l.settled(plain)
}

// lose ends the channel; some of what was flying had reached the broker.
func (m *model) lose() {
	m.flying = nil
	m.l.lost(rapid.Bool().Draw(m.t, "suspect"))
}

// tick lets time pass: routes probe, parked rows come due, an operator mends dead ones.
func (m *model) tick() {
	m.now = m.now.Add(time.Second)
	m.l.probeRoutes(m.now)
	for _, id := range m.l.dueParked(m.now, 8) {
		if m.parked[id] == nil {
			m.l.unparked(m.l.parked.refs[id])
			continue
		}
		r := m.row(m.parked[id], false)
		require.True(m.t, m.l.takeParked(r))
	}
}

func (m *model) operator(mend bool) {
	for id, r := range m.parked {
		ref := m.l.parked.refs[id]
		if ref != nil && (!ref.dead || ref.busy) {
			continue
		}
		if mend {
			r.poison = false
			m.l.revive(id, m.row(r, false).hash, r.key != "")
			continue
		}
		m.discarded[id] = true
		delete(m.parked, id)
		if ref != nil {
			m.l.unparked(ref)
		}
	}
}

// vanish deletes a row behind the relay's back.
func (m *model) vanish() {
	tables := []map[int64]*modelRow{m.table, m.parked}
	rows := tables[rapid.IntRange(0, 1).Draw(m.t, "table")]
	if len(rows) == 0 {
		return
	}
	id := rapid.SampledFrom(slices.Sorted(maps.Keys(rows))).Draw(m.t, "row")
	m.deleted[id] = deletion{rows[id], m.now}
	delete(rows, id)
	if !m.confirmed[id] {
		m.discarded[id] = true
	}
}

// look begins to look rows up, or brings the answer.
func (m *model) look() {
	if q := m.lookUp; q != nil {
		m.lookUp = nil
		m.l.looked(q.rows, q.there, q.at)
		return
	}
	q := &lookUp{rows: m.l.out.check, there: map[int64]time.Time{}, at: m.now}
	m.l.out.check = nil
	for _, r := range q.rows {
		if m.table[r.id] != nil {
			q.there[r.id] = time.UnixMicro(0)
		}
	}
	m.lookUp = q
}

// discard begins to discard a row that waits for a stopped route.
func (m *model) discard() {
	waiting := m.visible(0, func(r *modelRow) bool {
		return !slices.Contains(m.withheld, r.id) && !m.l.routeOpen(routeName{"x", r.route})
	})
	if len(waiting) == 0 {
		return
	}
	r := rapid.SampledFrom(waiting).Draw(m.t, "row")
	if m.l.withdraw(pendingRow{id: r.id, route: routeName{"x", r.route}}) == withdrawn {
		m.withheld = append(m.withheld, r.id)
	}
}

// endDiscards deletes what is being discarded, or fails to.
func (m *model) endDiscards(deleted bool) {
	for _, id := range m.withheld {
		if deleted {
			m.discarded[id] = !m.confirmed[id] // else it was sent, and its settling was lost
			if !m.discarded[id] {
				delete(m.discarded, id)
			}
			delete(m.table, id)
		}
		m.l.endWithdrawal(id, deleted)
	}
	m.withheld = nil
}

// discardAmid lets discards begin and end while a read is under way.
func (m *model) discardAmid() {
	if m.chance("discard meanwhile") {
		m.discard()
	}
	if m.chance("end discards meanwhile") {
		m.endDiscards(rapid.Bool().Draw(m.t, "deleted"))
	}
}

// restart is a new owner: only the tables are left.
func (m *model) restart() {
	m.withheld, m.lookUp = nil, nil
	old := m.l
	m.l = newLanes(0, "x", old.limits)
	m.flying = nil
	var refs []*parkedRef
	for id, r := range m.parked {
		refs = append(refs, &parkedRef{id: id, hash: m.row(r, false).hash, keyed: r.key != "", attempts: 1, due: m.now})
	}
	m.l.loadParked(refs)
}

func (m *model) sweep() {
	seen, _ := strconv.Atoi(m.l.snapshot)
	to, takes, adds := m.l.cursor, m.l.takes, m.l.parked.adds
	m.l.ghosts[sweepRead].begin()
	var rows []found
	for _, r := range m.visible(0, func(r *modelRow) bool { return r.id <= to }) {
		rows = append(rows, found{id: r.id, hash: m.row(r, false).hash, keyed: r.key != "", visible: r.committed <= seen})
	}
	parked := slices.Collect(maps.Keys(m.parked))
	if m.chance("go on during the sweep") {
		m.settle()
		m.commit(false)
		m.read()
		m.publish()
		m.answer(false)
	}
	require.Zero(m.t, m.l.applySweep(rows), "the sweep must never find anything")
	m.l.sweptAway(rows, 0, to, takes)
	m.l.sweptParked(parked, adds)
	m.l.ghosts[sweepRead].end()
}

// finish lets everything work and requires that everything arrives.
func (m *model) finish() {
	m.finishing = true
	m.commit(true)
	m.endDiscards(true)
	clear(m.closed)
	for i := 0; len(m.table)+len(m.parked)+len(m.l.rows)+len(m.l.parked.refs) > 0; i++ {
		require.Less(m.t, i, 2000, "rows that never leave: table %d parked %d cursor %d lag %d waiting %d flying %d ready %d",
			len(m.table), len(m.parked), m.l.cursor, m.l.lag.size(), m.l.waiting, m.l.flying, m.l.ready.count)
		m.read()
		m.mark()
		m.pass()
		m.publish()
		m.look()
		m.answer(true)
		m.settle()
		m.tick()
		m.sweep()
		m.operator(i%2 == 0)
	}
	m.drainPass()
	require.Equal(m.t, m.committed, len(m.confirmed)+len(m.discarded), "every row is published or was discarded")
	require.Zero(m.t, m.l.waiting+m.l.flying+m.l.settling+m.l.overdue+m.l.isolated+m.l.stalled, "all counts return to zero")
	require.Zero(m.t, m.l.waitingBytes+m.l.flyingBytes)
	require.Empty(m.t, m.l.rows)
	require.Empty(m.t, m.l.units, "no key is remembered without need")
	require.Empty(m.t, m.l.withheld)
}

func (m *model) drainPass() {
	for range 10 {
		m.l.armAll()
		m.pass()
	}
}

func TestLanesLoseNothingAndKeepTheOrderOfKeys(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{true, false} {
		t.Run(fmt.Sprintf("strict=%v", strict), rapid.MakeCheck(func(t *rapid.T) {
			m := newModel(t, strict)
			t.Repeat(map[string]func(*rapid.T){
				"draw":       func(t *rapid.T) { m.t = t; m.draw() },
				"commit":     func(t *rapid.T) { m.t = t; m.commit(false) },
				"read":       func(t *rapid.T) { m.t = t; m.read() },
				"read again": func(t *rapid.T) { m.t = t; m.read() },
				"mark":       func(t *rapid.T) { m.t = t; m.mark() },
				"pass":       func(t *rapid.T) { m.t = t; m.pass() },
				"publish":    func(t *rapid.T) { m.t = t; m.publish() },
				"answer":     func(t *rapid.T) { m.t = t; m.answer(false) },
				"settle":     func(t *rapid.T) { m.t = t; m.settle() },
				"lose":       func(t *rapid.T) { m.t = t; m.lose() },
				"reset":      func(*rapid.T) { m.l.reset() },
				"tick":       func(t *rapid.T) { m.t = t; m.tick() },
				"operator":   func(t *rapid.T) { m.t = t; m.operator(rapid.Bool().Draw(t, "mend")) },
				"discard":    func(t *rapid.T) { m.t = t; m.discard() },
				"deleted":    func(t *rapid.T) { m.t = t; m.endDiscards(rapid.Bool().Draw(t, "deleted")) },
				"vanish":     func(t *rapid.T) { m.t = t; m.vanish() },
				"look":       func(t *rapid.T) { m.t = t; m.look() },
				"restart":    func(t *rapid.T) { m.t = t; m.restart() },
				"sweep":      func(t *rapid.T) { m.t = t; m.sweep() },
				"close": func(t *rapid.T) {
					m.closed[rapid.SampledFrom([]string{"r1", "r2"}).Draw(t, "route")] = rapid.Bool().Draw(t, "closed")
				},
			})
			m.t = t
			m.finish()
		}))
	}
}

// Under skip several rows of a key are on their way at once: one that is looked up holds back those after it, until
// it has passed.
func TestALookUpKeepsTheOrderUnderSkip(t *testing.T) {
	t.Parallel()
	b := newLaneBench()
	b.strict, b.trust = false, time.Minute
	b.read("k", 1, 2)
	b.now = b.now.Add(2 * time.Minute)
	b.read("k", 3)
	require.Nil(t, b.next(b.now))
	first := b.out.check
	b.out.check = nil
	require.Len(t, first, 3, "the last one is young, but comes after the others")
	b.read("k", 4)
	require.Nil(t, b.next(b.now))
	second := b.out.check

	b.looked(first, map[int64]time.Time{1: time.UnixMicro(0), 3: time.UnixMicro(0)}, b.now)
	require.EqualValues(t, 1, b.fly().id)
	require.EqualValues(t, 3, b.fly().id, "2 is gone")
	require.Nil(t, b.next(b.now))
	b.looked(second, map[int64]time.Time{4: time.UnixMicro(0)}, b.now)
	require.EqualValues(t, 4, b.fly().id)
}

// Rows that wait for a stopped route and found no room in memory would be read again and again for nothing.
func TestWhatWaitsForAStoppedRouteIsNotReadAgain(t *testing.T) {
	t.Parallel()
	b := newLaneBench()
	b.read("k", 1)
	b.returnedBy(b.fly(), errNoQueue, b.now)
	keys := []string{"", "kk", "kkk", "kkkk", "kkkkk", "kkkkkk"}
	id := int64(1)
	for range 2 {
		for _, key := range keys {
			id++
			b.read(key, id)
		}
	}
	require.NotZero(t, b.lag.loose)
	require.NotZero(t, b.lag.size())
	none := func() {
		t.Helper()
		b.armAll()
		require.Nil(t, b.startPass())
	}
	none()

	b.rearm() // now and then, for somebody may have deleted the row that waits
	p := b.startPass()
	require.NotEmpty(t, p.units)
	require.True(t, p.loose)
	var rows []*row
	for n := int64(2); n <= id; n++ {
		rows = append(rows, b.row(n, keys[(n-2)%int64(len(keys))]))
	}
	b.passOver(rows, true)
	none()

	b.openRoute(b.routes[routeName{"x", "r"}])
	require.NotNil(t, b.startPass(), "it is open")
}

// Among the rows without a key, those that can go are found behind a page of those that cannot.
func TestARoundGoesPastWhatWaits(t *testing.T) {
	t.Parallel()
	b := newLaneBench()
	for id := int64(1); id <= 20; id++ {
		b.read("", id)
		if id == 1 {
			b.returnedBy(b.fly(), errNoQueue, b.now)
		}
	}
	from := b.lag.loose
	require.NotZero(t, from)
	b.applyMarks([]mark{{id: from}}, "1")
	page := func(first, last int64) (rows []*row) {
		for id := first; id <= last; id++ {
			r := b.row(id, "")
			if id == 20 {
				r.msg = contentOf(r.msg.text(textID), r.msg.text(textKey), "open")
			}
			rows = append(rows, r)
		}
		return rows
	}
	require.Equal(t, from-1, b.startPass().pos)
	b.passOver(page(from, from+4), false)
	require.Equal(t, from+4, b.startPass().pos)
	b.passOver(page(from+5, 20), true)
	require.EqualValues(t, 20, b.fly().id)
	require.Equal(t, from, b.lag.loose, "the others are still to be read")
	b.armAll()
	require.Nil(t, b.startPass(), "when their route opens")
}
