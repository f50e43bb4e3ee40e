package relay_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/relay"
)

// poison writes a row that no way into the outbox lets pass, as one that slipped through: its headers hold a name
// of the broker's.
func (w *world) poison(key, id string) {
	w.t.Helper()
	require.NoError(w.t, pgx.BeginFunc(w.t.Context(), w.db.Pool, func(tx pgx.Tx) error {
		bad := message.Message{ID: id, Type: "order.created", Key: key, Payload: []byte("0")}
		if _, err := w.box.Enqueue(w.t.Context(), tx, bad); err != nil {
			return err
		}
		_, err := tx.Exec(w.t.Context(), `UPDATE `+w.db.Schema+`.outbox SET headers = '{"x-death": 1}' WHERE message_id = $1`, id)
		return err
	}))
}

// request asks for something as the command line does, and waits for its outcome.
func (w *world) request(action, messageID string) (state string) {
	w.t.Helper()
	var id int64
	err := w.db.Pool.QueryRow(w.t.Context(), `INSERT INTO `+w.db.Schema+`.outbox_requests (operation, shard, row_id, message_id, action, who, reason)
		SELECT $1, shard, id, message_id, $2, 'ann@host', 'test' FROM `+w.db.Schema+`.outbox_parked WHERE message_id = $3 RETURNING id`,
		uuid.New(), action, messageID).Scan(&id)
	require.NoError(w.t, err)
	w.wait("the request to be carried out", func() bool {
		require.NoError(w.t, w.db.Pool.QueryRow(w.t.Context(), `SELECT state FROM `+w.db.Schema+`.outbox_requests WHERE id = $1`, id).Scan(&state))
		return state != "pending"
	})
	return state
}

func (w *world) dead() int {
	w.t.Helper()
	var n int
	require.NoError(w.t, w.db.Pool.QueryRow(w.t.Context(), `SELECT count(*) FROM `+w.db.Schema+`.outbox_parked WHERE state = 'dead'`).Scan(&n))
	return n
}

func TestBadRowIsParkedAndHoldsBackOnlyItsKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	w.enqueue(msg("bad", 1), msg("good", 1))
	w.poison("bad", "poison")
	for n := 2; n <= 30; n++ {
		w.enqueue(msg("bad", n+1), msg("good", n))
	}
	w.start(w.options())
	w.settledBut(31, 29) // bad-1 and all of good; the later rows of bad wait
	w.wait("the bad row to be dead", func() bool { return w.dead() == 1 })
	var attempts int
	var reason, text string
	var waited time.Duration
	require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT attempts, reason, error, last_failed_at - parked_at FROM `+w.db.Schema+`.outbox_parked`).
		Scan(&attempts, &reason, &text, &waited))
	require.Equal(t, 3, attempts)
	require.Equal(t, "refused", reason)
	require.Contains(t, text, "x-death")
	require.GreaterOrEqual(t, waited, 600*time.Millisecond, "200 and 400 ms between the tries")

	require.Equal(t, "done", w.request("retry", "poison"))
	w.wait("the bad row to be dead again", func() bool { return w.dead() == 1 })
	w.settledBut(31, 29)
	require.Equal(t, "done", w.request("discard", "poison"))
	w.settled(60)
	w.inOrder()
	var audited int
	require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+w.db.Schema+`.audit WHERE message_id = 'poison' AND who = 'ann@host'`).Scan(&audited))
	require.Equal(t, 2, audited)
}

func TestMendedRowIsPublishedBeforeTheLaterOnesOfItsKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	stop := w.start(w.options())
	w.poison("k", "k-1")
	w.wait("the bad row to be dead", func() bool { return w.dead() == 1 })
	for n := 2; n <= 600; n++ {
		w.enqueue(msg("k", n))
	}
	w.enqueue(msg("other", 1))
	w.settledBut(1, 599)
	stop() // a new owner must know the blocked key before it reads
	w.start(w.options())
	w.enqueue(msg("other", 2))
	w.settledBut(2, 599)
	_, err := w.db.Pool.Exec(t.Context(), `UPDATE `+w.db.Schema+`.outbox_parked SET headers = NULL, payload = '1'`)
	require.NoError(t, err)
	require.Equal(t, "done", w.request("retry", "k-1"))
	w.settled(602)
	w.inOrder()
}

func TestSkipLetsTheLaterOnesPass(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	w.poison("k", "poison")
	w.enqueue(msg("k", 1), msg("k", 2))
	o := w.options()
	o.OnPoison = relay.Skip
	w.start(o)
	w.settled(2)
	w.wait("the bad row to be dead", func() bool { return w.dead() == 1 })
}

// TestPoisonCannotFillEveryBatch has more bad rows than fit one read.
func TestPoisonCannotFillEveryBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	for n := range 300 {
		w.poison(fmt.Sprintf("p%d", n), fmt.Sprintf("poison-%d", n))
	}
	w.enqueue(msg("good", 1))
	o := w.options()
	o.Window, o.Backoff = 16, 10*time.Millisecond
	w.start(o)
	w.settled(1)
	w.wait("all bad rows to be dead", func() bool { return w.dead() == 300 })
}

// TestTooLargeRowIsFoundAndItsNeighboursPass has one row that is refused before it is sent.
func TestTooLargeRowIsFoundAndItsNeighboursPass(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	o := w.options()
	o.MaxBody = 1000
	big := msg("big", 1)
	big.Payload = make([]byte, 2000)
	w.enqueue(big)
	for n := 1; n <= 50; n++ {
		w.enqueue(msg("good", n), msg("big", n+1))
	}
	w.start(o)
	w.settledBut(50, 50)
	w.wait("the large row to be dead", func() bool { return w.dead() == 1 })
}

func TestRowsToAMissingExchangeWaitAndBurnNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.options()
	for n := 1; n <= 100; n++ {
		w.enqueue(msg("k", n), msg(fmt.Sprint("j", n), 1), msg("", n))
	}
	w.start(o)
	ch := w.channel()
	_, err := ch.QueueDeclare("direct", true, false, false, false, amqp.Table{"x-queue-type": "classic"})
	require.NoError(t, err)
	// The default exchange is there all along, so its rows pass meanwhile.
	for n := range 20 {
		w.enqueue(message.Message{ID: fmt.Sprint("d", n), Type: "order.created", Exchange: "amq.fanout", Payload: []byte("1")})
	}
	require.NoError(t, ch.QueueBind("direct", "", "amq.fanout", false, nil))
	w.wait("the rows of the other exchange to be settled", func() bool { return w.count("outbox") == 300 })
	time.Sleep(5 * time.Second) // as long as the topology is away in practice
	w.topology()
	w.settled(300)
	w.inOrder()
	require.Zero(t, w.count("outbox_parked"))
}

func TestUnroutableRouteWaitsWhileOthersPass(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	for n := 1; n <= 200; n++ {
		stray := msg(fmt.Sprint("s", n%20), n)
		stray.Type = "stray.created"
		strayNoKey := msg("", n)
		strayNoKey.Type = "stray.created"
		w.enqueue(msg("k", n), stray, strayNoKey)
	}
	o := w.options()
	o.Window = 64
	w.start(o)
	w.settledBut(200, 400)
	w.enqueue(msg("k", 201))
	w.settledBut(201, 400)
	w.bind(w.channel(), "stray", "stray.#")
	w.settled(601)
	w.inOrder()
	require.Zero(t, w.count("outbox_parked"))
}
