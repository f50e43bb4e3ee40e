package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

func TestADatabaseAwayBurnsNoAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	network := testkit.Proxy(t, w.db.URL)
	pool, err := pgxpool.New(t.Context(), network.Through(t, w.db.URL)+"&pool_max_conns=8&connect_timeout=2")
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	var attempts atomic.Int32
	g := newGate()
	o := w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		attempts.Store(max(attempts.Load(), int32(m.Attempts)))
		if m.ID == "first" {
			if err := g.pass(ctx, m.ID); err != nil {
				return err
			}
		}
		return w.effect(ctx, tx, m)
	})
	o.Pool = pool
	ready := watchReady(&o)
	w.start(o)
	w.publish("first")
	receive(t, g.entered, "the first run")
	network.Cut() // under a handler's transaction
	close(g.open)
	for i := range 20 {
		w.publish(strconv.Itoa(i))
	}
	ready.await(t, "a dependency is away")
	network.Heal(t)
	w.awaitEffects(21)
	ready.await(t, "")
	w.awaitEmpty("q.retry", "q.dlq")
	require.Len(t, w.effects(), 21)
	require.Zero(t, attempts.Load())
}

func TestADatabaseAwayAtTheStartIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	network := testkit.Proxy(t, w.db.URL)
	pool, err := pgxpool.New(t.Context(), network.Through(t, w.db.URL)+"&pool_max_conns=8&connect_timeout=2")
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	network.Cut()
	o := w.options(nil)
	o.Pool = pool
	ready := watchReady(&o)
	w.publish("m1")
	w.start(o)
	ready.await(t, "refused")
	network.Heal(t)
	w.awaitEffects(1)
	ready.await(t, "")
}

func TestABrokerAwayIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	network := testkit.Proxy(t, w.vhost.URL)
	o := w.options(nil)
	o.URL = network.Through(t, w.vhost.URL)
	ready := watchReady(&o)
	w.start(o)
	w.publish("m1")
	w.awaitEffects(1)
	ready.await(t, "")
	network.Cut()
	ready.await(t, "refused")
	w.publish("m2")
	network.Heal(t)
	w.awaitEffects(2)
	ready.await(t, "")
	w.awaitEmpty("q.dlq", "q.retry")
}

func TestAnAbsentDependencyHoldsEverythingAndCountsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	var away atomic.Bool
	var calls atomic.Int32
	away.Store(true)
	o := w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		calls.Add(1)
		require.Zero(t, m.Attempts)
		if away.Load() {
			return consumer.Unavailable(errors.New("circuit open"))
		}
		return w.effect(ctx, tx, m)
	})
	ready := watchReady(&o)
	w.start(o)
	for i := range 30 {
		w.publish(strconv.Itoa(i))
	}
	ready.await(t, "circuit open")
	before := calls.Load()
	ready.await(t, "circuit open")
	require.LessOrEqual(t, before, int32(6), "one message at a time probes")
	testkit.Eventually(t, soon, "further probes", func() bool { return calls.Load() >= before+2 })
	require.Zero(t, w.depth("q.retry"))
	away.Store(false)
	w.awaitEffects(30)
	ready.await(t, "")
	held := w.logs.find("dependency away, holding messages uncounted")
	require.Len(t, held, 1, "once, not at every probe")
	require.Equal(t, []any{"warn", "q", "circuit open"}, []any{held[0]["level"], held[0]["queue"], held[0]["error"]})
	require.Len(t, w.logs.find("dependency back, going on"), 1)
	w.awaitEmpty("q.retry", "q.dlq")
}

func TestTheLogTellsWhenAConsumerWorks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	stop := w.start(w.options(nil))
	w.publish("m1")
	w.awaitEffects(1)
	begun := w.logs.find("consuming")
	require.Len(t, begun, 1)
	require.Equal(t, []any{"info", "q", 4.0, 10.0}, []any{begun[0]["level"], begun[0]["queue"], begun[0]["concurrency"], begun[0]["prefetch"]})
	require.Empty(t, w.logs.find("stopped consuming"))
	stop()
	require.Len(t, w.logs.find("stopped consuming"), 1)
}

func TestWhatIsHeldForTooLongIsRenewedUncounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	var away atomic.Bool
	away.Store(true)
	o := w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		require.Zero(t, m.Attempts)
		if away.Load() {
			return consumer.Unavailable(errors.New("circuit open"))
		}
		return w.effect(ctx, tx, m)
	})
	o.RenewAfter = 300 * time.Millisecond
	w.start(o)
	w.publish("m1", "m2")
	w.get("q.retry") // taken away for the proof; the other goes round
	away.Store(false)
	w.awaitEffects(1)
	w.awaitEmpty("q.dlq", "q.retry")
}

func TestAPauseIsObeyedByEveryReplicaAndSurvivesRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	g := newGate()
	o := w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if m.ID == "running" {
			if err := g.pass(ctx, m.ID); err != nil {
				return err
			}
		}
		return w.effect(ctx, tx, m)
	})
	ready := []*readyWatch{watchReady(&o)}
	stop := w.start(o)
	ready = append(ready, watchReady(&o))
	w.start(o)
	w.publish("running")
	receive(t, g.entered, "a run")
	changed, err := consumer.PauseQueue(t.Context(), w.db.Pool, w.db.Schema, "q", "ann", "INC-7")
	require.NoError(t, err)
	require.True(t, changed)
	for _, r := range ready {
		r.await(t, "paused since")
		r.await(t, "by ann: INC-7")
	}
	for i := range 30 {
		w.publish(strconv.Itoa(i))
	}
	close(g.open)
	w.awaitEffects(1) // what ran may end
	stop()
	third := watchReady(&o)
	w.start(o)
	third.await(t, "by ann: INC-7")
	require.Equal(t, []string{"running"}, w.effects(), "nothing was started")
	changed, err = consumer.ResumeQueue(t.Context(), w.db.Pool, w.db.Schema, "q", "bob", "")
	require.NoError(t, err)
	require.True(t, changed)
	third.await(t, "")
	w.awaitEffects(31)
	w.awaitEmpty("q.retry", "q.dlq")
	require.NotEmpty(t, w.logs.find("queue resumed"))
}

func TestALongPauseGivesBackOnceWhatItHolds(t *testing.T) {
	t.Parallel()
	for _, ordering := range []consumer.Ordering{consumer.OrderNone, consumer.OrderLanes} {
		t.Run(string(ordering), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			g := newGate()
			o := w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
				if err := g.pass(ctx, m.ID); err != nil {
					return err
				}
				return w.effect(ctx, tx, m)
			})
			o.RenewAfter, o.Concurrency, o.Ordering = time.Second, 1, ordering
			w.start(o)
			for i := range 8 {
				w.publish(strconv.Itoa(i))
			}
			receive(t, g.entered, "a run")
			_, err := consumer.PauseQueue(t.Context(), w.db.Pool, w.db.Schema, "q", "ann", "")
			require.NoError(t, err)
			testkit.Eventually(t, soon, "the pause", func() bool { return len(w.logs.find("queue paused")) == 1 })
			close(g.open)
			testkit.Eventually(t, soon, "what was held to be back", func() bool { return w.depth("q") == 7 })
			_, err = consumer.ResumeQueue(t.Context(), w.db.Pool, w.db.Schema, "q", "ann", "")
			require.NoError(t, err)
			w.awaitEffects(8)
			w.awaitEmpty("q.retry", "q.dlq")
			require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6", "7"}, w.effects())
		})
	}
}

func TestAMemoryAlarmHoldsMovesAndNotAcks(t *testing.T) {
	t.Parallel()
	broker := testkit.PrivateBroker(t)
	w := newWorldOn(t, worldOptions{}, testkit.Database(t), broker.NewVhost(t))
	for i := range 20 {
		w.publish(fmt.Sprintf("good-%d", i))
	}
	w.publish("bad")
	_ = w.conn.Close() // a blocked publisher of the test's own would only be in the way
	broker.MemoryAlarm(t, true)
	o := w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if m.ID == "bad" && m.Attempts == 0 {
			return errors.New("not yet")
		}
		return w.effect(ctx, tx, m)
	})
	metrics := prometheus.NewRegistry()
	o.Metrics = metrics
	w.start(o)
	w.awaitEffects(20)
	broker.MemoryAlarm(t, false)
	w.awaitEffects(21)
	w.connect()
	w.awaitEmpty("q.retry", "q.dlq")
}
