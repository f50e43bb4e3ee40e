package relay_test

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

// feed enqueues numbers first to last of ten keys.
func (w *world) feed(first, last int) {
	w.t.Helper()
	for n := first; n <= last; n++ {
		var msgs []message.Message
		for k := range 10 {
			msgs = append(msgs, msg(fmt.Sprintf("k%d", k), n))
		}
		w.enqueue(msgs...)
	}
}

// owners returns how many shards each member owns.
func (w *world) owners() map[string]int {
	w.t.Helper()
	rows, err := w.db.Pool.Query(w.t.Context(), `SELECT owner::text, count(*) FROM `+w.db.Schema+`.outbox_leases
		WHERE owner IS NOT NULL AND expires_at > clock_timestamp() GROUP BY 1`)
	require.NoError(w.t, err)
	defer rows.Close()
	owners := map[string]int{}
	for rows.Next() {
		var owner string
		var n int
		require.NoError(w.t, rows.Scan(&owner, &n))
		owners[owner] = n
	}
	return owners
}

func TestReplicasShareTheShardsEvenly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	o := w.options()
	stop := w.start(o)
	w.wait("the first to own all", func() bool { o := w.owners(); return len(o) == 1 })
	w.feed(1, 20)
	for range 2 {
		o := w.options()
		w.start(o)
	}
	w.wait("three to share", func() bool {
		o := w.owners()
		for _, n := range o {
			if n < 2 || n > 3 {
				return false
			}
		}
		return len(o) == 3
	})
	w.feed(21, 40)
	stop()
	w.wait("two to share", func() bool {
		o := w.owners()
		for _, n := range o {
			if n != 4 {
				return false
			}
		}
		return len(o) == 2
	})
	w.feed(41, 60)
	w.settled(600)
	w.inOrder()
	require.Len(t, w.deliveries(), 600, "handing over publishes nothing twice")
}

// epochs is how often shards were taken, all together.
func (w *world) epochs() (n int) {
	w.t.Helper()
	require.NoError(w.t, w.db.Pool.QueryRow(w.t.Context(), `SELECT sum(epoch) FROM `+w.db.Schema+`.outbox_leases`).Scan(&n))
	return n
}

// share waits until so many relays own so many shards each.
func (w *world) share(relays, shards int) {
	w.t.Helper()
	w.wait(fmt.Sprintf("%d relays to own %d shards each", relays, shards), func() bool {
		owners := w.owners()
		for _, n := range owners {
			if n != shards {
				return false
			}
		}
		return len(owners) == relays
	})
}

// A relay that cannot publish must not keep shards from one that can.
func TestARelayWithoutABrokerLeavesTheShardsToOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	net := testkit.Proxy(t, w.broker.URL)
	o := w.options()
	o.AMQPURL = net.Through(t, w.broker.URL)
	w.start(o)
	w.share(1, 8)

	wrong := w.options() // it lives, and never gets anywhere
	u, err := url.Parse(w.broker.URL)
	require.NoError(t, err)
	u.User = url.UserPassword("nobody", "nothing")
	wrong.AMQPURL = u.String()
	w.start(wrong)
	w.wait("both to live", func() bool { return w.count("outbox_members") == 2 })
	before := w.epochs()
	w.feed(1, 20)
	w.settled(200)
	require.Equal(t, before, w.epochs(), "no shard was handed over")

	w.start(w.options())
	w.share(2, 4)
	net.Cut() // for good, as far as the others know
	w.share(1, 8)
	w.feed(21, 40)
	w.settled(400)
	net.Heal(t)
	w.share(2, 4)
	w.inOrder()
}

// While the broker is away from all, handing over would help nobody.
func TestAnOutageOfTheBrokerMovesNoShard(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	net := testkit.Proxy(t, w.broker.URL)
	for range 2 {
		o := w.options()
		o.AMQPURL = net.Through(t, w.broker.URL)
		w.start(o)
	}
	w.share(2, 4)
	before := w.epochs()
	net.Cut()
	w.wait("both to know", func() bool {
		var able int
		require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT count(able_since) FROM `+w.db.Schema+`.outbox_members`).Scan(&able))
		return able == 0
	})
	net.Heal(t)
	w.feed(1, 20)
	w.settled(200)
	w.wait("both to be proven again", func() bool {
		var proven int
		require.NoError(t, w.db.Pool.QueryRow(t.Context(),
			`SELECT count(*) FROM `+w.db.Schema+`.outbox_members WHERE able_since < clock_timestamp() - interval '7 s'`).Scan(&proven))
		return proven == 2
	})
	require.Equal(t, before, w.epochs())
}

// killConnections closes all of the relay's connections to the broker, as an operator would.
func (w *world) killConnections() {
	w.t.Helper()
	w.broker.CloseConnections(w.t, func(c testkit.Connection) bool { return c.Client.Product == "surefoot" })
}

func TestConnectionsLostUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	net := testkit.Proxy(t, w.broker.URL)
	o := w.options()
	o.AMQPURL = net.Through(t, w.broker.URL)
	w.start(o)
	done := make(chan struct{})
	go func() { defer close(done); w.feed(1, 150) }()
	w.wait("traffic", func() bool { return len(w.ids()) > 100 })
	net.Cut()
	w.wait("rows to pile up", func() bool { return w.count("outbox") > 50 })
	net.Heal(t)
	w.wait("traffic again", func() bool { return len(w.ids()) > 500 })
	net.Cut()
	net.Heal(t)
	w.killConnections()
	<-done
	w.settled(1500)
	w.inOrder()
	require.Zero(t, w.count("outbox_parked"))
}

// TestOwnerCutOffFromTheDatabaseIsReplaced cuts the first owner off the database, in mid-traffic: another one
// takes over within the lease, and nothing is out of order for it.
func TestOwnerCutOffFromTheDatabaseIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	net := testkit.Proxy(t, w.db.URL)
	o := w.options()
	cut, err := pg.Open(t.Context(), pg.Options{URL: net.Through(t, w.db.URL), Name: "cut", MaxConns: 8, ConnectTimeout: time.Second})
	require.NoError(t, err)
	t.Cleanup(cut.Close)
	o.Pool, o.ListenURL = cut, ""
	first := w.start(o)
	w.wait("the first to own all", func() bool { return len(w.owners()) == 1 })
	var before int
	require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT sum(epoch) FROM `+w.db.Schema+`.outbox_leases`).Scan(&before))
	done := make(chan struct{})
	go func() { defer close(done); w.feed(1, 200) }()
	w.wait("traffic", func() bool { return len(w.ids()) > 200 })
	net.HalfOpen(t)
	w.start(w.options())
	w.wait("the second to own all", func() bool {
		var epochs, owners int
		require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT sum(epoch), count(DISTINCT owner) FROM `+w.db.Schema+`.outbox_leases`).Scan(&epochs, &owners))
		return epochs == before+8 && owners == 1
	})
	<-done
	w.settled(2000)
	net.Heal(t)
	w.inOrder()
	first()
	newest := map[string]int64{}
	for _, d := range w.deliveries() { // the former owner publishes nothing once the new one has begun
		row := message.Text(d.Headers, message.HeaderOutbox)
		epoch, _ := message.Integer(d.Headers[message.HeaderEpoch])
		shard := row[:1]
		require.GreaterOrEqual(t, epoch, newest[shard], "row %s came from a former owner after the new one had begun", row)
		newest[shard] = epoch
	}
}

// TestACutConnectionIsNoRowsFault cuts it while one row is in flight, which then is not the one that the broker closed it for.
func TestACutConnectionIsNoRowsFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	broker := testkit.Proxy(t, w.broker.URL)
	o := w.options()
	o.AMQPURL, o.Attempts = broker.Through(t, w.broker.URL), 1
	w.start(o)
	w.enqueue(msg("k", 0))
	w.settled(1)
	broker.HalfOpenAnswers(t)
	w.enqueue(msg("k", 1))
	w.wait("it to be in flight", func() bool { return len(w.ids()) == 2 })
	broker.Cut()
	broker.Heal(t)
	w.settled(2)
	require.Zero(t, w.count("outbox_parked"))
}

// TestWhatIsInMemoryDoesNotOutliveItsServer has the database come back as another server, in which an id that the relay has in
// memory belongs to another message: so it is after a failover to a standby that lagged, or when a backup was restored.
func TestWhatIsInMemoryDoesNotOutliveItsServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	database, broker := testkit.Proxy(t, w.db.URL), testkit.Proxy(t, w.broker.URL)
	o := w.options()
	cut, err := pg.Open(t.Context(), pg.Options{URL: database.Through(t, w.db.URL), MaxConns: 8})
	require.NoError(t, err)
	t.Cleanup(cut.Close)
	o.Pool, o.ListenURL, o.AMQPURL, o.Lease = cut, "", broker.Through(t, w.broker.URL), 20*time.Second
	w.start(o)
	w.enqueue(msg("k", 0))
	w.settled(1)
	broker.HalfOpenAnswers(t)
	w.enqueue(msg("k", 1))
	w.wait("the first message to be in flight", func() bool { return len(w.ids()) == 2 })
	database.Cut()
	_, err = w.db.Pool.Exec(t.Context(), `UPDATE `+w.db.Schema+`.outbox SET message_id = 'k-2', payload = '2'`)
	require.NoError(t, err)
	_, err = w.db.Pool.Exec(t.Context(), `UPDATE `+w.db.Schema+`.outbox_leases SET server = server - interval '1 s'`)
	require.NoError(t, err)
	broker.Cut()
	broker.Heal(t)
	w.wait("the first message to be published again, from memory", func() bool { return len(w.deliveries()) == 3 })
	database.Heal(t)
	w.settled(3)
	require.Equal(t, []string{"k-0", "k-1", "k-2"}, w.ids())
}

func TestAnotherNumberOfShardsRefusesToStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.options()
	o.Shards = 16
	r := newRelay(t, o)
	require.ErrorContains(t, r.Run(t.Context()), "set relay.shards to 8")
}

func TestLeaseFromAClockThatWasSetBackIsTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	_, err := w.db.Pool.Exec(t.Context(), `UPDATE `+w.db.Schema+`.outbox_leases SET owner = gen_random_uuid(), expires_at = now() + interval '5 hours'`)
	require.NoError(t, err)
	w.enqueue(msg("k", 1))
	w.start(w.options())
	w.settled(1)
}

// TestForeignFenceIsWaitedFor has somebody else hold the fences: the relay waits, says why, and goes on when they are free.
func TestForeignFenceIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	conn, err := amqp.Dial(w.broker.URL)
	require.NoError(t, err)
	ch, err := conn.Channel()
	require.NoError(t, err)
	var database string
	require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT system_identifier || '.' || current_database() FROM pg_control_system()`).Scan(&database))
	for shard := range 8 {
		_, err := ch.QueueDeclare(fmt.Sprintf("surefoot.fence.%s.%s.%d", database, w.db.Schema, shard), false, false, true, false, amqp.Table{"x-queue-type": "classic"})
		require.NoError(t, err)
	}
	w.enqueue(msg("k", 1))
	reasons := make(chan error, 1000)
	o := w.options()
	o.Ready = func(err error) { reasons <- err }
	w.start(o)
	w.wait("readiness to tell", func() bool {
		err := <-reasons
		return err != nil && len(w.ids()) == 0 && containsFence(err)
	})
	require.NoError(t, conn.Close())
	w.settled(1)
	w.wait("readiness to be fine", func() bool { return <-reasons == nil })
}

// Services that have a database each often call it alike.
func TestClustersWithTheSameNamesDoNotFenceEachOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	w.start(w.options())
	w.share(1, 8)
	other := testkit.PrivatePostgres(t).Database(t)
	_, err := other.Pool.Exec(t.Context(), "ALTER SCHEMA "+other.Schema+" RENAME TO tmp; DROP SCHEMA tmp CASCADE")
	require.NoError(t, err)
	other.Schema = w.db.Schema
	_, err = pg.Migrate(t.Context(), pg.MigrateOptions{URL: other.URL, Schema: other.Schema})
	require.NoError(t, err)
	require.Equal(t, w.db.Pool.Config().ConnConfig.Database, other.Pool.Config().ConnConfig.Database)
	second := newWorldOn(t, other, w.broker)
	second.start(second.options())
	second.enqueue(msg("k", 1))
	second.wait("its row to be published", func() bool { return second.count("outbox") == 0 })
	w.wait("it to arrive", func() bool { return len(w.ids()) == 1 })
}
