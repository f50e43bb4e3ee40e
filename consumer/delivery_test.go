package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

func TestADuplicateHasNoSecondEffect(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.start(w.options(nil))
	w.publish("m1", "m1", "m2", "m1")
	w.awaitEffects(2)
	w.awaitEmpty("q.dlq", "q.retry")
	require.ElementsMatch(t, []string{"m1", "m2"}, w.effects())
}

func TestADuplicateInFlightInAnotherReplicaWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	g := newGate()
	handler := func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if err := w.effect(ctx, tx, m); err != nil {
			return err
		}
		return g.pass(ctx, m.ID)
	}
	w.start(w.options(handler))
	w.start(w.options(handler))
	w.publish("m1", "m1")
	receive(t, g.entered, "the first run")
	testkit.Eventually(t, soon, "the second insert to wait", func() bool {
		var waiting int
		require.NoError(t, w.db.Pool.QueryRow(t.Context(),
			`SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%`+w.db.Schema+`.inbox%'`).Scan(&waiting))
		return waiting == 1
	})
	close(g.open)
	w.awaitEmpty("q.dlq", "q.retry")
	require.Equal(t, []string{"m1"}, w.effects())
	require.Empty(t, g.entered, "the second did not run")
}

func TestASlowConsumerHoldsItsPrefetchAndNoMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	g := newGate()
	o := w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if err := g.pass(ctx, m.ID); err != nil {
			return err
		}
		return w.effect(ctx, tx, m)
	})
	o.Prefetch, o.Concurrency = 5, 1
	w.start(o)
	for i := range 50 {
		w.publish(strconv.Itoa(i))
	}
	receive(t, g.entered, "the first run")
	// One from the narrow subscription at the start, five from the wide one.
	testkit.Eventually(t, soon, "the prefetch to be full", func() bool { return w.depth("q") == 44 })
	close(g.open)
	w.awaitEffects(50)
	w.awaitEmpty()
}

func TestReplicasShareTheWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	for range 2 {
		w.start(w.options(nil))
	}
	for i := range 200 {
		w.publish(strconv.Itoa(i))
	}
	w.awaitEffects(200)
	w.awaitEmpty("q.dlq", "q.retry")
	require.Len(t, w.effects(), 200)
}

// A process that dies at a step leaves its message unacknowledged and goes away: the step fails, and then the
// connection is cut.
func TestACrashBetweenTheSafeCopyAndTheAckLosesNothingAndRepeatsNoEffect(t *testing.T) {
	t.Parallel()
	for step, want := range map[string]struct{ effects, dead int }{
		"after-deliver":      {1, 0},
		"before-commit":      {1, 0},
		"after-commit":       {1, 0},
		"before-retry":       {1, 0},
		"after-retry":        {1, 0}, // two copies, one effect
		"before-dead-letter": {0, 1},
		"after-dead-letter":  {0, 2}, // two copies of a dead letter, the price of losing none
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			o := w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
				switch {
				case want.dead > 0:
					return consumer.Permanent(errors.New("never"))
				case strings.HasSuffix(step, "retry") && m.Attempts == 0:
					return errors.New("not yet")
				}
				return w.effect(ctx, tx, m)
			})
			crashed := make(chan struct{})
			var once atomic.Bool
			consumer.SetStep(&o, func(name string) error {
				if name == step && once.CompareAndSwap(false, true) {
					close(crashed)
					return errors.New("crash")
				}
				return nil
			})
			w.start(o)
			w.publish("m1")
			receive(t, crashed, "the step")
			if step != "before-commit" { // there the failed step rolls back and is a failure like another
				w.killConnections("consumer")
			}
			w.awaitEffects(want.effects)
			testkit.Eventually(t, soon, "the dead letters", func() bool { return w.depth("q.dlq") == want.dead })
			w.awaitEmpty("q.retry")
			require.Len(t, w.effects(), want.effects)
		})
	}
}

func TestAConnectionLostUnderHandlersRepeatsNoEffect(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.start(w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if _, err := tx.Exec(ctx, `SELECT pg_sleep(0.01)`); err != nil {
			return err
		}
		return w.effect(ctx, tx, m)
	}))
	for i := range 150 {
		w.publish(strconv.Itoa(i))
		if i == 50 || i == 100 {
			w.killConnections("consumer")
		}
	}
	w.awaitEffects(150)
	w.awaitEmpty("q.dlq", "q.retry")
	require.Len(t, w.effects(), 150)
}

func TestAQueueDeletedUnderTheConsumerIsReportedAndTakenUpAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	o := w.options(nil)
	ready := watchReady(&o)
	w.start(o)
	w.publish("m1")
	w.awaitEffects(1)
	ready.await(t, "")
	_, err := w.ch.QueueDelete("q", false, false, false)
	require.NoError(t, err)
	ready.await(t, "surefoot topology apply")
	w.declare(worldOptions{})
	ready.await(t, "")
	w.publish("m2")
	w.awaitEffects(2)
}

func TestAMissingRetryQueueKeepsTheMessageAndSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	o := w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if m.Attempts == 0 {
			return errors.New("not yet")
		}
		return w.effect(ctx, tx, m)
	})
	ready := watchReady(&o)
	stop := w.start(o)
	ready.await(t, "")
	_, err := w.ch.QueueDelete("q.retry", false, false, false)
	require.NoError(t, err)
	w.publish("m1")
	ready.await(t, "cannot be moved to q.retry")
	stop()
	testkit.Eventually(t, soon, "the message to be back", func() bool { return w.depth("q") == 1 })
	w.start(o)
	w.declare(worldOptions{})
	w.awaitEffects(1)
	ready.await(t, "")
	w.awaitEmpty("q.retry", "q.dlq")
}

func TestConsumingNeedsTheDeadLetterPath(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	_, err := w.ch.QueueDelete("q.dlq", false, false, false)
	require.NoError(t, err)
	o := w.options(nil)
	ready := watchReady(&o)
	w.publish("m1")
	w.start(o)
	ready.await(t, `queue "q.dlq" is missing`)
	require.Empty(t, w.effects())
	w.declare(worldOptions{})
	w.awaitEffects(1)
}

func TestConsumingNeedsADeadLetterPathThatLosesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	require.NoError(t, w.ch.QueueUnbind("q.dlq", "q", "x.dlx", nil))
	o := w.options(nil)
	o.ManagementURL = w.vhost.ManagementURL
	ready := watchReady(&o)
	w.publish("m1")
	w.start(o)
	ready.await(t, "no binding leads to \"q.dlq\"")
	require.Empty(t, w.effects())
	w.declare(worldOptions{})
	w.awaitEffects(1)
	ready.await(t, "")
}

func TestWhatCannotBePublishedAgainIsLeftToTheBroker(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	o := w.options(func(context.Context, pgx.Tx, message.Message) error { return errors.New("not yet") })
	w.startWith(o, func(c *consumer.Consumer) { consumer.SetMaxMessageBytes(c, 1000) })
	w.send(amqp.Publishing{MessageId: "large", Body: make([]byte, 1001)})
	d := w.get("q.dlq")
	require.Equal(t, "large", d.MessageId)
	require.Equal(t, "rejected", d.Headers["x-first-death-reason"], "at once, not by using up the delivery limit")
	w.awaitEmpty("q.retry")
}

func TestWhatIsTooWideToBePutOffIsADeadLetter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.start(w.options(nil))
	// With the broker's x-death it would not fit a frame.
	w.send(amqp.Publishing{MessageId: "wide", Headers: amqp.Table{
		"sf-not-before": time.Now().Add(time.Hour).UnixMilli(), "big": strings.Repeat("x", 130_900),
	}})
	d := w.get("q.dlq")
	require.Equal(t, "wide", d.MessageId)
	require.Equal(t, "malformed", message.FailureOf(d.Headers).Class)
	w.awaitEmpty("q.retry")
}

func TestWideHeadersLeaveRoomForTheRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.start(w.options(func(context.Context, pgx.Tx, message.Message) error { return errors.New("not yet") }))
	w.send(amqp.Publishing{MessageId: "wide", Headers: amqp.Table{"big": strings.Repeat("x", 130_900)}})
	d := w.get("q.dlq")
	require.Equal(t, "wide", d.MessageId)
	require.Equal(t, 5, message.Attempts(d.Headers))
	require.Equal(t, "not yet", message.FailureOf(d.Headers).Message)
	w.awaitEmpty("q.retry")
}

func TestShutdownUnderLoadReturnsWhatItHoldsUncounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	g := newGate()
	o := w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if err := g.pass(ctx, m.ID); err != nil {
			return fmt.Errorf("interrupted: %w", err)
		}
		return w.effect(ctx, tx, m)
	})
	o.Drain, o.Concurrency = 300*time.Millisecond, 2
	stop := w.start(o)
	for i := range 20 {
		w.publish(strconv.Itoa(i))
	}
	receive(t, g.entered, "a run")
	receive(t, g.entered, "a run")
	stop()
	testkit.Eventually(t, soon, "everything to be back", func() bool { return w.depth("q") == 20 })
	require.Zero(t, w.depth("q.retry"))

	attempts := make(chan int, 100)
	w.start(w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		attempts <- m.Attempts
		return w.effect(ctx, tx, m)
	}))
	w.awaitEffects(20)
	w.awaitEmpty("q.retry", "q.dlq")
	for range 20 {
		require.Zero(t, receive(t, attempts, "a run"))
	}
}

func TestShutdownLetsHandlersFinish(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	g := newGate()
	stop := w.start(w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if err := g.pass(ctx, m.ID); err != nil {
			return err
		}
		return w.effect(ctx, tx, m)
	}))
	w.publish("m1")
	receive(t, g.entered, "the run")
	var stopped sync.WaitGroup
	stopped.Go(stop)
	w.publish("m2")
	testkit.Eventually(t, soon, "the consumer to take no more", func() bool { return w.depth("q") == 1 })
	close(g.open)
	stopped.Wait()
	require.Equal(t, []string{"m1"}, w.effects())
	require.Equal(t, "m2", w.get("q").MessageId)
	require.Zero(t, w.depth("q"), "m1 is acknowledged")
}

func TestLanesKeepTheOrderOfEachKey(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]struct{ replicas int }{"one process": {1}, "two with a single active consumer": {2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{singleActive: o.replicas > 1})
			options := w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
				if _, err := tx.Exec(ctx, `SELECT pg_sleep($1)`, rand.Float64()/100); err != nil {
					return err
				}
				return w.effect(ctx, tx, m)
			})
			options.Ordering = consumer.OrderLanes
			stop := w.start(options)
			if o.replicas > 1 {
				w.start(options)
			}
			for i := range 200 {
				w.send(amqp.Publishing{MessageId: fmt.Sprintf("k%d-%03d", i%7, i), Headers: amqp.Table{"sf-key": fmt.Sprintf("k%d", i%7)}})
				if i == 100 && o.replicas > 1 {
					stop() // the other replica takes over
				}
			}
			w.awaitEffects(200)
			last := map[string]string{}
			for _, id := range w.effects() {
				key := id[:2]
				require.Less(t, last[key], id, "order within a key")
				last[key] = id
			}
		})
	}
}

func TestAMessageWithoutAnIDIsHandledOnlyWhenThatIsAllowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	o := w.options(nil)
	o.AllowNoID = true
	w.start(o)
	w.send(amqp.Publishing{Type: "order.created"})
	w.awaitEffects(1)
	w.awaitEmpty("q.dlq")
}

func TestPlainHandlerIsRememberedAfterwards(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	var runs atomic.Int32
	w.start(w.plain(func(_ context.Context, m message.Message) error {
		if runs.Add(1) == 1 {
			return errors.New("not yet")
		}
		require.Equal(t, 1, m.Attempts)
		return nil
	}))
	w.publish("m1")
	testkit.Eventually(t, soon, "the second run", func() bool { return runs.Load() == 2 })
	testkit.Eventually(t, soon, "the inbox row, which is written after the handler has returned", func() bool {
		var there bool
		require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM `+w.db.Schema+`.inbox)`).Scan(&there))
		return there
	})
	w.publish("m1")
	w.awaitEmpty("q.retry", "q.dlq")
	require.Equal(t, int32(2), runs.Load())
}

// readyWatch keeps the last report of readiness.
type readyWatch struct {
	mu   sync.Mutex
	last error
}

func watchReady(o *consumer.Options) *readyWatch {
	w := &readyWatch{last: errors.New("not started")}
	o.Ready = func(err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.last = err
	}
	return w
}

// await waits for a reason that contains text; "" waits for ready.
func (w *readyWatch) await(t *testing.T, text string) {
	t.Helper()
	testkit.EventuallyNil(t, soon, fmt.Sprintf("readiness to say %q", text), func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if text == "" || w.last != nil && strings.Contains(w.last.Error(), text) {
			if text == "" && w.last != nil {
				return w.last
			}
			return nil
		}
		return fmt.Errorf("it says: %w", w.last)
	})
}
