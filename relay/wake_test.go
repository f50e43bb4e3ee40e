package relay_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

// doorbell returns the value of the doorbell: 2 while the relay sleeps and wants to be woken.
func (w *world) doorbell() (v int) {
	w.t.Helper()
	require.NoError(w.t, w.db.Pool.QueryRow(w.t.Context(), `SELECT last_value FROM `+w.db.Schema+`.outbox_doorbell`).Scan(&v))
	return v
}

// TestDoorbellAndHintWake has a relay that polls every ten seconds.
func TestDoorbellAndHintWake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	net := testkit.Proxy(t, w.db.URL)
	o := w.options()
	o.ListenURL = net.Through(t, w.db.URL)
	o.PollMin, o.PollMax = time.Second, 10*time.Second
	r := newRelay(t, o)
	w.run(r)
	w.wait("the relay to sleep", func() bool { return w.doorbell() == 2 })
	begun := time.Now()
	w.enqueue(msg("k", 1))
	w.wait("the doorbell to wake it", func() bool { return len(w.ids()) == 1 })
	require.Less(t, time.Since(begun), 5*time.Second)

	net.Cut() // LISTEN is lost: the hint still works, and so does polling
	w.enqueue(msg("k", 2))
	testkit.Eventually(t, 5*time.Second, "the hint to wake it", func() bool { r.Wake(); return len(w.ids()) == 2 })
	w.enqueue(msg("k", 3))
	w.wait("polling to find it", func() bool { return len(w.ids()) == 3 })

	w.enqueue(msg("k", 4)) // rings for nobody; heard at once when LISTEN is back
	net.Heal(t)
	w.settled(4)
	w.wait("the relay to sleep with somebody listening", func() bool { return w.doorbell() == 2 })
}

// TestTheDoorbellStaysArmedBetweenRowsThatComeOneByOne has a relay for which a row is rare that comes 40 ms after another.
func TestTheDoorbellStaysArmedBetweenRowsThatComeOneByOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	o := w.options()
	o.ListenURL = w.db.Direct
	o.PollMin, o.PollMax = 20*time.Millisecond, 2*time.Second
	w.start(o)
	w.wait("the relay to sleep", func() bool { return w.doorbell() == 2 })
	for n := range 5 {
		w.enqueue(msg("k", n))
		w.settled(n + 1)
		require.Equal(t, 2, w.doorbell())
	}
	var many []message.Message
	for n := range 300 { // of which no wait for them makes rare ones
		many = append(many, msg("many", n))
	}
	w.enqueue(many...)
	w.wait("many rows to silence it", func() bool { return w.doorbell() == 1 })
}

// TestARelayThatConnectsDuringItsFirstLookTakesShardsAtOnce has a slow database, so that the broker is there before the first look has ended.
func TestARelayThatConnectsDuringItsFirstLookTakesShardsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	net := testkit.Proxy(t, w.db.URL)
	net.Latency(t, 150*time.Millisecond)
	o := w.options()
	pool, err := pg.Open(t.Context(), pg.Options{URL: net.Through(t, w.db.URL), Name: "relay", MaxConns: 8})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	o.Pool, o.Lease = pool, 6*patience // who waits for the next look waits too long
	w.start(o)
	w.enqueue(msg("k", 1))
	w.settled(1)
}

// TestLateConfirmsStopTheRouteAndSettle has a broker whose answers do not come for a while.
func TestLateConfirmsStopTheRouteAndSettle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	net := testkit.Proxy(t, w.broker.URL)
	o := w.options()
	o.AMQPURL = net.Through(t, w.broker.URL)
	o.ConfirmTimeout, o.Lease = 200*time.Millisecond, 10*time.Second
	w.start(o)
	w.enqueue(msg("k", 1))
	w.settled(1)
	net.Latency(t, 300*time.Millisecond)
	for n := 2; n <= 5; n++ {
		w.enqueue(msg("k", n), msg("", n))
	}
	w.settled(9)
	w.inOrder()
	require.Zero(t, w.count("outbox_parked"))
	known := map[string]int{}
	for _, d := range w.deliveries() {
		known[d.MessageId]++
		require.Equal(t, 1, known[d.MessageId], "a late confirm settles; nothing is published again for it")
	}
}

func TestDatabaseRestartedUnderLoad(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t)
	w := newWorldOn(t, server.Database(t), testkit.Broker(t))
	w.topology()
	w.start(w.options())
	w.feed(1, 30)
	w.settled(300)
	w.feed(31, 40)
	server.Kill(t)
	server.Start(t)
	w.wait("the database to take rows again", func() bool { return w.tryEnqueue(msg("k0", 41)) == nil })
	w.feed(42, 60)
	w.settled(300 + 100 + 1 + 190)
	w.inOrder()
}

func TestRestoredRowsOfAForeignXidArePublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	w.enqueue(msg("k", 1), msg("k", 2))
	_, err := w.db.Pool.Exec(t.Context(), `UPDATE `+w.db.Schema+`.outbox SET xid = '9000000000000'`) // as from a cluster far ahead
	require.NoError(t, err)
	w.start(w.options())
	w.settled(2)
	w.inOrder()
}

// TestSweepFindsWhatNobodyRemembers puts a row below the cursor with an xid that counts as seen long ago, which
// only a restore into a running database can do.
func TestSweepFindsWhatNobodyRemembers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	o := w.options()
	o.Sweep = 500 * time.Millisecond
	w.start(o)
	w.enqueue(msg("k", 1))
	w.settled(1)
	_, err := w.db.Pool.Exec(t.Context(), `INSERT INTO `+w.db.Schema+`.outbox (id, xid, occurred_at, hash, shard, message_id, type, key, exchange, routing_key,
		content_type, source, correlation_id, causation_id, request_id, traceparent, tracestate, payload)
		SELECT 1, '3', now(), 5, 5, 'restored', 'order.created', '', '', '', '', '', '', '', '', '', '', '\x31'`)
	require.NoError(t, err)
	w.wait("the sweep to find it", func() bool { return len(w.ids()) == 2 })
}
