package relay

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// laneBench is lanes with room for three waiting rows of a key, and rows whose ids say their order.
type laneBench struct {
	*lanes
	now time.Time
}

func newLaneBench() *laneBench {
	return &laneBench{newLanes(0, "x", limits{
		strict: true, window: 6, windowBytes: 1 << 20, maxWaiting: 12, maxSettling: 24, perKey: 3, lagging: 100, attempts: 3,
		probeMin: time.Second, probeMax: 4 * time.Second, confirm: 10 * time.Second, trust: time.Hour,
	}), time.Now()}
}

func (b *laneBench) row(id int64, key string) *row {
	return &row{id: id, readAt: instantOf(b.now), hash: int64(len(key)), msg: contentOf(strconv.FormatInt(id, 10), key, "r")}
}

func (b *laneBench) read(key string, ids ...int64) {
	p := page{snapshot: "1", last: ids[len(ids)-1]}
	for _, id := range ids {
		p.rows = append(p.rows, b.row(id, key))
	}
	b.applyPage(p)
}

func (b *laneBench) fly() *row {
	r := b.next(b.now)
	b.sent(r, b.now)
	return r
}

func (b *laneBench) withdraws(id int64) withdrawal {
	return b.withdraw(pendingRow{id: id, route: routeName{"", "r"}})
}

func (b *laneBench) bring(key string, ids ...int64) {
	var rows []*row
	for _, id := range ids {
		rows = append(rows, b.row(id, key))
	}
	b.passOver(rows, true)
}

var errNoQueue = errors.New("no queue")

func TestOnlyRowsThatWaitForAStoppedRouteAreWithdrawn(t *testing.T) {
	t.Parallel()
	b := newLaneBench()
	b.read("", 1, 2)
	require.Equal(t, wanted, b.withdraws(1))
	r := b.fly()
	require.Equal(t, wanted, b.withdraws(1))
	b.returnedBy(r, errNoQueue, b.now)
	require.Nil(t, b.next(b.now), "row 2 waits as well")
	require.Equal(t, withdrawn, b.withdraws(2))
	b.probeRoutes(b.now.Add(time.Minute))
	probe := b.fly()
	require.EqualValues(t, 1, probe.id)
	require.Equal(t, onItsWay, b.withdraws(1))
	require.Equal(t, withdrawn, b.withdraws(9), "one that was not read yet")
	b.read("", 9)
	require.NotContains(t, b.rows, int64(9))
	b.confirmed(probe)
	require.Equal(t, wanted, b.withdraws(3), "its route works again")
}

func TestAWithheldRowIsNotReadAgain(t *testing.T) {
	t.Parallel()
	b := newLaneBench()
	b.read("", 1)
	b.returnedBy(b.fly(), errNoQueue, b.now)
	require.Equal(t, withdrawn, b.withdraws(1))
	b.armAll()
	require.NotNil(t, b.startPass())
	b.bring("", 1)
	require.Empty(t, b.rows)
	b.endWithdrawal(1, false)
	require.NotNil(t, b.startPass(), "it was not deleted after all")
	b.bring("", 1)
	require.Contains(t, b.rows, int64(1))
}

// A pass that began behind rows which leave memory while it is under way must not bring later ones of their key.
func TestAPassTakesNoRowBeforeThoseThatLeftMemory(t *testing.T) {
	t.Parallel()
	b := newLaneBench()
	b.read("k", 1, 2, 3, 4, 5) // 1 is ready, 2 to 4 wait, 5 lags
	b.confirmed(b.fly())
	b.confirmed(b.fly())
	third := b.fly()
	pass := b.startPass()
	require.NotNil(t, pass)
	require.EqualValues(t, 4, pass.pos, "it reads from 5 on")
	b.returnedBy(third, errNoQueue, b.now)
	require.Equal(t, withdrawn, b.withdraws(4))
	b.endWithdrawal(4, true)
	b.bring("k", 5)
	require.NotContains(t, b.rows, int64(5), "3 is not in memory")
	b.armAll()
	require.NotNil(t, b.startPass())
	b.bring("k", 3, 5)
	require.Len(t, b.units[1].queue, 2)
}

// A confirm that comes late opens its route while a probe is in flight; when that comes back, the route is stopped again,
// and must be probed again.
func TestARouteThatALateConfirmOpenedIsProbedAgain(t *testing.T) {
	t.Parallel()
	b := newLaneBench()
	b.read("", 1, 2)
	late := b.fly()
	b.expire(b.now.Add(b.confirm))
	require.Nil(t, b.next(b.now))
	b.probeRoutes(b.now.Add(time.Minute))
	probe := b.fly()
	b.confirmed(late)
	require.Empty(t, b.shut)
	b.returnedBy(probe, errNoQueue, b.now.Add(time.Minute))
	require.Len(t, b.stoppedRoutes(), 1)
	b.probeRoutes(b.now.Add(time.Hour))
	require.NotNil(t, b.next(b.now))
}

// What the broker does not answer for long is published again on another connection, and not before.
func TestAConfirmThatNeverComesIsGivenUp(t *testing.T) {
	t.Parallel()
	b := newLaneBench()
	b.read("", 1)
	r := b.fly()
	late := r.sentAt.time().Add(b.confirm)
	b.expire(late)
	require.Equal(t, 1, b.overdue)
	require.False(t, b.unanswered(late))
	later := r.sentAt.time().Add(patienceForConfirms*b.confirm + time.Second)
	require.True(t, b.unanswered(later))
	b.lost(false)
	require.False(t, b.unanswered(later))
}

// A discard whose answer was lost is carried out again, and finds that it was done.
func TestADiscardWithALostAnswerIsDoneOnce(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	var shard int16
	var id, other int64
	for range 2 {
		_, err := db.Pool.Exec(t.Context(), `SELECT `+db.Schema+`.enqueue('a', '', key => 'k')`)
		require.NoError(t, err)
	}
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT shard, min(id), max(id) FROM `+db.Schema+`.outbox GROUP BY shard`).Scan(&shard, &id, &other))
	require.NoError(t, db.Pool.QueryRow(t.Context(), `INSERT INTO `+db.Schema+`.outbox_requests (operation, shard, row_id, message_id, action, who, reason)
		VALUES (gen_random_uuid(), $1, $2, 'm', 'discard', 'ann', 'test') RETURNING id`, shard, id).Scan(new(int64)))
	_, err := db.Pool.Exec(t.Context(), `UPDATE `+db.Schema+`.outbox_leases SET server = pg_postmaster_start_time()`)
	require.NoError(t, err)
	p := newParkStore(Options{Pool: db.Pool, Schema: db.Schema})
	found, err := p.requests(t.Context(), []int16{shard})
	require.NoError(t, err)
	require.Len(t, found, 1)
	row, err := p.pending(t.Context(), shard, id)
	require.NoError(t, err)
	require.Equal(t, &pendingRow{id: id, route: routeName{"", "a"}}, row)

	_, err = p.discardPending(t.Context(), 7, &found[0])
	require.ErrorIs(t, err, errFenced)
	for range 2 {
		gone, err := p.discardPending(t.Context(), 0, &found[0])
		require.NoError(t, err)
		require.True(t, gone)
	}
	var audits, left int
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM `+db.Schema+`.audit), (SELECT count(*) FROM `+db.Schema+`.outbox WHERE id = $1)`, other).Scan(&audits, &left))
	require.Equal(t, []int{1, 1}, []int{audits, left}, "once, and not the neighbour")
	row, err = p.pending(t.Context(), shard, id)
	require.NoError(t, err)
	require.Nil(t, row)
}
