package relay_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.db.Pool.Exec(w.t.Context(), sql, args...)
	require.NoError(w.t, err)
}

// lost is a message that no queue wants, until one is bound.
func lost(key, id string) message.Message {
	return message.Message{ID: id, Type: "nowhere.x", Key: key, Payload: []byte("1")}
}

func (w *world) awaitStopped() {
	w.t.Helper()
	w.wait("the route to be stopped", func() bool { return w.count("outbox_stopped") > 0 })
}

// Whoever deletes a row decides: it is not published any more, and blocks nothing.
func TestARowDeletedWhileItWaitsIsForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	o := w.options()
	o.Lease = time.Second
	w.start(o)
	w.enqueue(lost("order-1", "typo-1"), lost("", "typo-2"), lost("order-2", "typo-3"))
	w.awaitStopped()
	w.exec("DELETE FROM " + w.db.Schema + ".outbox WHERE message_id <> 'typo-3'")
	w.enqueue(msg("order-1", 1))
	w.wait("the key to go on", func() bool { return len(w.ids()) == 1 })

	w.bind(w.channel(), "work", "nowhere.#")
	w.settled(2)
	require.ElementsMatch(t, []string{"order-1-1", "typo-3"}, w.ids(), "what is gone is not published")
}

// Many that are gone: one probe at a time would take long to find them all.
func TestTheSweepForgetsWhatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	o := w.options()
	o.Sweep, o.ProbeMin, o.ProbeMax = time.Second, time.Hour, time.Hour
	w.start(o)
	var typos, good []message.Message
	for i := range 200 {
		key := string(rune('a'+i%26)) + string(rune('a'+i/26))
		typos, good = append(typos, lost(key, "typo-"+key)), append(good, msg(key, 1))
	}
	w.enqueue(typos...)
	w.awaitStopped()
	w.exec("TRUNCATE " + w.db.Schema + ".outbox")
	w.enqueue(good...)
	w.settled(len(good))
}

func TestAParkedRowThatWasDeletedBlocksNothing(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"retry", "dead"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.topology()
			o := w.options()
			o.Backoff, o.Sweep = time.Hour, time.Second
			if state == "dead" {
				o.Attempts = 1
			}
			w.start(o)
			w.poison("k", "bad")
			w.enqueue(msg("k", 1))
			w.wait("the row to be parked", func() bool { return w.count("outbox_parked") == 1 })
			w.exec("DELETE FROM " + w.db.Schema + ".outbox_parked")
			w.settled(1)
		})
	}
}

// After an outage everything in memory is looked up at once; what was deleted meanwhile is not published.
func TestRowsDeletedDuringAnOutageAreNotPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	net := testkit.Proxy(t, w.broker.URL)
	o := w.options()
	o.AMQPURL, o.Lease = net.Through(t, w.broker.URL), time.Second
	var ready atomic.Bool
	o.Ready = func(err error) { ready.Store(err == nil) }
	w.start(o)
	w.enqueue(msg("first", 1))
	w.settled(1)
	w.wait("readiness", ready.Load)
	net.HalfOpen(t)
	var msgs []message.Message
	for n := 1; n <= 300; n++ {
		msgs = append(msgs, msg("k", n), msg("", n))
	}
	w.enqueue(msgs...)
	w.wait("the outage to be noticed", func() bool { return !ready.Load() })
	w.exec("DELETE FROM "+w.db.Schema+".outbox WHERE message_id <> ALL ($1)", []string{"k-1", "k-300", "-300"})
	net.Heal(t)
	w.settled(4)
	w.inOrder()
}
