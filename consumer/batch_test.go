package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

// effectsOf is the effect of each message, in order, by one statement.
func (w *world) effectsOf(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
	ids, keys := make([]string, len(msgs)), make([]string, len(msgs))
	for i, m := range msgs {
		ids[i], keys[i] = m.ID, m.Key
	}
	_, err := tx.Exec(ctx, `INSERT INTO `+w.db.Schema+`.effects (id, key)
SELECT id, key FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS m (id, key, n) ORDER BY n`, ids, keys)
	return err
}

// batches are the options of a consumer of batches up to size; handler may be nil for one that records the effects.
func (w *world) batches(size int, handler consumer.BatchHandler) consumer.Options {
	if handler == nil {
		handler = w.effectsOf
	}
	o := w.options(nil)
	o.Handler, o.Batch, o.BatchSize, o.BatchWait, o.Prefetch = nil, handler, size, 50*time.Millisecond, 2*size
	return o
}

func (w *world) publishRange(prefix string, n int) (ids []string) {
	w.t.Helper()
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s%03d", prefix, i))
	}
	w.publish(ids...)
	return ids
}

// startWide starts a consumer and lets it take its whole prefetch, which it does after a first message. That one has no
// id, so that it waits for no batch.
func (w *world) startWide(o consumer.Options) (stop func()) {
	w.t.Helper()
	stop = w.start(o)
	w.send(amqp.Publishing{Type: "order.created"})
	w.get("q.dlq")
	return stop
}

func (w *world) awaitCounts(registry prometheus.Gatherer, want string) {
	w.t.Helper()
	testkit.EventuallyNil(w.t, soon, "the counts", func() error {
		return testutil.GatherAndCompare(registry, strings.NewReader(want), "surefoot_consumer_handled_total", "surefoot_consumer_in_flight")
	})
}

func hasID(msgs []message.Message, id string) bool {
	for _, m := range msgs {
		if m.ID == id {
			return true
		}
	}
	return false
}

func TestABatchHasItsEffectsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	var ids []string
	for i := range 120 {
		id := strconv.Itoa(i)
		ids = append(ids, id, id, id)
	}
	rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	w.publish(ids...)
	var largest atomic.Int32
	o := w.batches(50, func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
		largest.Store(max(largest.Load(), int32(len(msgs))))
		seen := map[string]bool{}
		for _, m := range msgs {
			if seen[m.ID] {
				return consumer.Permanent(errors.New("twice in a batch"))
			}
			seen[m.ID] = true
		}
		if _, carried := message.FromContext(ctx); carried {
			return consumer.Permanent(errors.New("one message cannot be the cause"))
		}
		return w.effectsOf(ctx, tx, msgs)
	})
	registry := prometheus.NewRegistry()
	o.Metrics = registry
	w.start(o)
	w.awaitEffects(120)
	w.awaitCounts(registry, `
# HELP surefoot_consumer_handled_total Deliveries that were settled, by result.
# TYPE surefoot_consumer_handled_total counter
surefoot_consumer_handled_total{queue="q",result="done",type="order.created"} 120
surefoot_consumer_handled_total{queue="q",result="duplicate",type="order.created"} 240
# HELP surefoot_consumer_in_flight Messages in their handler.
# TYPE surefoot_consumer_in_flight gauge
surefoot_consumer_in_flight{queue="q"} 0
`)
	w.awaitEmpty("q.dlq", "q.retry")
	require.Len(t, w.effects(), 120)
	require.Greater(t, largest.Load(), int32(10))
	require.Empty(t, w.logs.find("batch failed, its messages are handled singly"))
}

// Two transactions that write the rows of the same messages wait for each other in one direction only.
func TestInboxRowsOfABatchAreWrittenInTheOrderOfIDs(t *testing.T) {
	t.Parallel()
	for name, copies := range map[string]int{"without duplicates": 1, "with duplicates": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			for range 200 {
				w.publish(slices.Repeat([]string{uuid.NewString()}, copies)...)
			}
			w.start(w.batches(50, nil))
			w.awaitEffects(200)
			rows, err := w.db.Pool.Query(t.Context(), `SELECT handled_at, message FROM `+w.db.Schema+`.inbox ORDER BY handled_at, ctid`)
			require.NoError(t, err)
			var at, last time.Time
			var id, before uuid.UUID
			together := 0
			_, err = pgx.ForEachRow(rows, []any{&at, &id}, func() error {
				if at.Equal(last) {
					together++
					require.Negative(t, bytes.Compare(before[:], id[:]), "order of ids in one transaction")
				}
				last, before = at, id
				return nil
			})
			require.NoError(t, err)
			require.Greater(t, together, 100)
		})
	}
}

func TestTwoReplicasOfBatchesWithTheSameMessagesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	var ids []string
	for i := range 40 {
		ids = append(ids, strconv.Itoa(i))
	}
	for range 8 { // each prefetch has most of the ids, in an order of its own
		rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		w.publish(ids...)
	}
	for range 2 {
		w.start(w.batches(40, func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
			if _, err := tx.Exec(ctx, `SELECT pg_sleep(0.02)`); err != nil {
				return err
			}
			return w.effectsOf(ctx, tx, msgs)
		}))
	}
	w.awaitEffects(40)
	w.awaitEmpty("q.dlq", "q.retry")
	require.Len(t, w.effects(), 40)
	require.Empty(t, w.logs.find("batch failed, its messages are handled singly"))
	require.Empty(t, w.logs.find("database retry"))
}

// A failing batch leaves nothing behind; then only the guilty message fails.
func TestOnlyTheGuiltyOneOfABatchIsDeadLettered(t *testing.T) {
	t.Parallel()
	for class, misbehave := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"permanent": func(context.Context, pgx.Tx) error { return consumer.Permanent(errors.New("never")) },
		"unknown":   func(context.Context, pgx.Tx) error { return errors.New("not yet") },
		"panic":     func(context.Context, pgx.Tx) error { panic("boom") },
		"timeout":   func(ctx context.Context, _ pgx.Tx) error { <-ctx.Done(); return ctx.Err() },
		"panic of another kind": func(context.Context, pgx.Tx) error {
			exitGoroutine()
			return nil
		},
		"unknown, told by the commit": func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, `SELECT 1/0`)
			return nil
		},
	} {
		t.Run(class, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			ids := w.publishRange("m", 40)
			var together atomic.Bool
			o := w.batches(20, func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
				if err := w.effectsOf(ctx, tx, msgs); err != nil {
					return err
				}
				if hasID(msgs, "m015") {
					together.Store(together.Load() || len(msgs) > 1)
					return misbehave(ctx, tx)
				}
				return nil
			})
			o.MaxAttempts, o.BatchWait = 1, 100*time.Millisecond
			if class == "timeout" {
				o.Timeout = 500 * time.Millisecond
			}
			w.start(o)
			w.awaitEffects(39)
			d := w.get("q.dlq")
			require.Equal(t, "m015", d.MessageId)
			require.Equal(t, 1, message.Attempts(d.Headers), "the run in the batch is not counted")
			require.True(t, strings.HasPrefix(class, message.FailureOf(d.Headers).Class), message.FailureOf(d.Headers).Class)
			w.awaitEmpty("q.dlq", "q.retry")
			require.True(t, together.Load())
			require.Len(t, w.logs.find("batch failed, its messages are handled singly"), 1)
			require.ElementsMatch(t, append(ids[:15:15], ids[16:]...), w.effects())
		})
	}
}

func TestARetriedMessageOfABatchClimbsTheLadderAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	ids := w.publishRange("m", 20)
	o := w.batches(10, func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
		for _, m := range msgs {
			if m.ID == "m005" && m.Attempts < 2 {
				return errors.New("not yet")
			}
			if m.ID != "m005" && m.Attempts > 0 {
				return consumer.Permanent(errors.New("a neighbour was charged"))
			}
		}
		return w.effectsOf(ctx, tx, msgs)
	})
	w.start(o)
	w.awaitEffects(20)
	w.awaitEmpty("q.dlq", "q.retry")
	require.ElementsMatch(t, ids, w.effects())
	require.Len(t, w.logs.find("deferred retry"), 2)
}

func TestBatchesKeepTheOrderOfEachKey(t *testing.T) {
	t.Parallel()
	for name, replicas := range map[string]int{"one process": 1, "two with a single active consumer": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{singleActive: replicas > 1})
			var largest atomic.Int32
			o := w.batches(15, func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
				if len(msgs) > 1 && rand.IntN(5) == 0 {
					return errors.New("a batch that fails")
				}
				largest.Store(max(largest.Load(), int32(len(msgs))))
				if _, err := tx.Exec(ctx, `SELECT pg_sleep($1)`, rand.Float64()/100); err != nil {
					return err
				}
				return w.effectsOf(ctx, tx, msgs)
			})
			o.Ordering = consumer.OrderLanes
			send := func(from, to int) {
				for i := from; i < to; i++ {
					w.send(amqp.Publishing{MessageId: fmt.Sprintf("k%d-%03d", i%7, i), Headers: amqp.Table{"sf-key": fmt.Sprintf("k%d", i%7)}})
				}
			}
			send(0, 100)
			stop := w.start(o)
			if replicas > 1 {
				w.start(o)
			}
			send(100, 150)
			if replicas > 1 {
				stop() // the other replica takes over
			}
			send(150, 300)
			w.awaitEffects(300)
			last := map[string]string{}
			for _, id := range w.effects() {
				require.Less(t, last[id[:2]], id, "order within a key")
				last[id[:2]] = id
			}
			require.Greater(t, largest.Load(), int32(7), "several of one key share a batch")
			w.awaitEmpty("q.dlq", "q.retry")
		})
	}
}

// The connection dies with the commit still to come, so nothing was done.
func TestADatabaseConnectionKilledBeforeTheCommitOfABatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	ids := w.publishRange("m", 20)
	var backend atomic.Int32
	var kills, attempts atomic.Int32
	o := w.batches(10, func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
		for _, m := range msgs {
			attempts.Add(int32(m.Attempts))
		}
		if len(msgs) > 1 && kills.Load() == 0 {
			backend.Store(int32(tx.Conn().PgConn().PID()))
		}
		return w.effectsOf(ctx, tx, msgs)
	})
	consumer.SetStep(&o, func(name string) error {
		if pid := backend.Swap(0); name == "before-commit" && pid != 0 {
			kills.Add(1)
			_, err := w.db.Pool.Exec(context.Background(), `SELECT pg_terminate_backend($1, 5000)`, pid)
			return err
		}
		return nil
	})
	o.Concurrency = 1
	w.start(o)
	w.awaitEffects(20)
	w.awaitEmpty("q.dlq", "q.retry")
	require.Equal(t, int32(1), kills.Load())
	require.ElementsMatch(t, ids, w.effects())
	require.Zero(t, attempts.Load(), "nothing was counted")
}

// The commit takes effect and its answer is lost: its outcome is unknown, and nothing is acknowledged before the inbox
// has told.
func TestACommitOfABatchWithoutAnAnswerIsDecidedByTheInbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	network := testkit.Proxy(t, w.db.URL)
	pool, err := pgxpool.New(t.Context(), network.Through(t, w.db.URL)+"&pool_max_conns=4&connect_timeout=2")
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	w.publish("first")
	g := newGate()
	var lost atomic.Bool
	o := w.batches(10, func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
		if msgs[0].ID == "first" {
			if err := g.pass(ctx, "first"); err != nil {
				return err
			}
		}
		return w.effectsOf(ctx, tx, msgs)
	})
	o.Pool, o.Concurrency, o.Timeout = pool, 1, 2*time.Second
	registry := prometheus.NewRegistry()
	o.Metrics = registry
	commits := 0 // one handler at a time
	consumer.SetStep(&o, func(name string) error {
		if name != "before-commit" {
			return nil
		}
		if commits++; commits == 2 {
			lost.Store(true)
			network.HalfOpenAnswers(t)
		}
		return nil
	})
	w.start(o)
	receive(t, g.entered, "the first run")
	ids := append([]string{"first"}, w.publishRange("m", 10)...)
	close(g.open)
	w.awaitEffects(11)
	require.True(t, lost.Load())
	testkit.Eventually(t, soon, "the lost commit to be noticed", func() bool {
		return len(w.logs.find("batch failed, its messages are handled singly")) > 0
	})
	network.Heal(t)
	w.awaitCounts(registry, `
# HELP surefoot_consumer_handled_total Deliveries that were settled, by result.
# TYPE surefoot_consumer_handled_total counter
surefoot_consumer_handled_total{queue="q",result="done",type="order.created"} 1
surefoot_consumer_handled_total{queue="q",result="duplicate",type="order.created"} 10
# HELP surefoot_consumer_in_flight Messages in their handler.
# TYPE surefoot_consumer_in_flight gauge
surefoot_consumer_in_flight{queue="q"} 0
`)
	w.awaitEmpty("q.dlq", "q.retry")
	require.ElementsMatch(t, ids, w.effects())
}

func TestABatchHoldsForAnAbsentDependency(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	ids := w.publishRange("m", 30)
	var away atomic.Bool
	var calls, attempts atomic.Int32
	away.Store(true)
	o := w.batches(10, func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
		calls.Add(1)
		for _, m := range msgs {
			attempts.Add(int32(m.Attempts))
		}
		if away.Load() {
			return consumer.Unavailable(errors.New("circuit open"))
		}
		return w.effectsOf(ctx, tx, msgs)
	})
	ready := watchReady(&o)
	w.start(o)
	ready.await(t, "circuit open")
	require.LessOrEqual(t, calls.Load(), int32(6), "one message at a time probes")
	require.Empty(t, w.logs.find("batch failed, its messages are handled singly"))
	require.Zero(t, w.depth("q.retry"))
	away.Store(false)
	w.awaitEffects(30)
	ready.await(t, "")
	w.awaitEmpty("q.retry", "q.dlq")
	require.ElementsMatch(t, ids, w.effects())
	require.Zero(t, attempts.Load())
}

func TestAConnectionLostUnderABatchRepeatsNoEffect(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	ids := w.publishRange("m", 60)
	g := newGate()
	w.start(w.batches(15, func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
		if len(msgs) > 1 {
			if err := g.pass(ctx, "batch"); err != nil {
				return err
			}
		}
		return w.effectsOf(ctx, tx, msgs)
	}))
	receive(t, g.entered, "a batch")
	w.killConnections("consumer")
	testkit.Eventually(t, soon, "the messages to be back", func() bool { return w.depth("q") > 0 })
	close(g.open)
	w.awaitEffects(60)
	w.awaitEmpty("q.dlq", "q.retry")
	require.ElementsMatch(t, ids, w.effects())
}

func TestShutdownLetsABatchFinish(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	g := newGate()
	o := w.batches(10, func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
		if err := g.pass(ctx, strconv.Itoa(len(msgs))); err != nil {
			return err
		}
		return w.effectsOf(ctx, tx, msgs)
	})
	o.Concurrency, o.BatchWait = 1, time.Minute
	stop := w.startWide(o)
	ids := w.publishRange("m", 30)
	require.Equal(t, "10", receive(t, g.entered, "a batch"))
	var stopped sync.WaitGroup
	stopped.Go(stop)
	testkit.Eventually(t, soon, "the rest to be back", func() bool { return w.depth("q") == 20 })
	close(g.open)
	stopped.Wait()
	require.Equal(t, ids[:10], w.effects())
	require.Equal(t, 20, w.depth("q"), "the batch is acknowledged")
}

func TestAnInterruptedBatchGoesBackUncounted(t *testing.T) {
	t.Parallel()
	for _, ordering := range []consumer.Ordering{consumer.OrderNone, consumer.OrderLanes} {
		t.Run(string(ordering), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			w.publishRange("m", 20)
			g := newGate()
			o := w.batches(10, func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
				if err := w.effectsOf(ctx, tx, msgs); err != nil {
					return err
				}
				if len(msgs) == 1 {
					return nil
				}
				return g.pass(ctx, "batch")
			})
			o.Drain, o.Ordering = 200*time.Millisecond, ordering
			stop := w.start(o)
			receive(t, g.entered, "a batch")
			stop()
			before := len(w.effects())
			require.LessOrEqual(t, before, 1)
			testkit.Eventually(t, soon, "everything to be back", func() bool { return w.depth("q") == 20-before })
			require.Zero(t, w.depth("q.retry"))
			var attempts atomic.Int32
			w.start(w.batches(10, func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
				for _, m := range msgs {
					attempts.Add(int32(m.Attempts))
				}
				return w.effectsOf(ctx, tx, msgs)
			}))
			w.awaitEffects(20)
			w.awaitEmpty("q.retry", "q.dlq")
			require.Zero(t, attempts.Load())
		})
	}
}

func TestAPauseLetsABatchFinishAndStartsNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	g := newGate()
	o := w.batches(10, func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
		if err := g.pass(ctx, strconv.Itoa(len(msgs))); err != nil {
			return err
		}
		return w.effectsOf(ctx, tx, msgs)
	})
	o.Concurrency, o.BatchWait = 1, 2*time.Second
	ready := watchReady(&o)
	w.startWide(o)
	ids := w.publishRange("m", 40)
	require.Equal(t, "10", receive(t, g.entered, "a batch"))
	_, err := consumer.PauseQueue(t.Context(), w.db.Pool, w.db.Schema, "q", "ann", "")
	require.NoError(t, err)
	ready.await(t, "by ann")
	close(g.open)
	w.awaitEffects(10)
	require.Equal(t, ids[:10], w.effects())
	require.Empty(t, g.entered)
	_, err = consumer.ResumeQueue(t.Context(), w.db.Pool, w.db.Schema, "q", "ann", "")
	require.NoError(t, err)
	w.awaitEffects(40)
	w.awaitEmpty("q.dlq", "q.retry")
	require.ElementsMatch(t, ids, w.effects())
}

func TestABatchWaitsUntilItIsFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	sizes := make(chan int, 10)
	o := w.batches(5, func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
		sizes <- len(msgs)
		return w.effectsOf(ctx, tx, msgs)
	})
	o.BatchWait = time.Minute
	w.startWide(o)
	w.publishRange("m", 5)
	require.Equal(t, 5, receive(t, sizes, "a batch"))
	w.awaitEffects(5)
}

func TestABatchDoesNotWaitForWhatCannotCome(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	g := newGate()
	o := w.batches(4, func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
		if err := g.pass(ctx, strconv.Itoa(len(msgs))); err != nil {
			return err
		}
		return w.effectsOf(ctx, tx, msgs)
	})
	o.Prefetch, o.BatchWait = 6, time.Minute
	w.startWide(o)
	w.publishRange("m", 7)
	sizes := []string{receive(t, g.entered, "a batch"), receive(t, g.entered, "the other, which waits for nobody")}
	slices.Sort(sizes)
	// A full one and the rest of the prefetch, with one more if the first subscription still brought one.
	require.Contains(t, [][]string{{"2", "4"}, {"3", "4"}}, sizes)
}

func TestWhatDoesNotBelongInABatchIsHandledSingly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.publishRange("m", 10)
	w.send(amqp.Publishing{Type: "order.created"})
	w.send(amqp.Publishing{MessageId: "early", Headers: amqp.Table{"sf-not-before": time.Now().Add(time.Hour).UnixMilli()}})
	w.publishRange("n", 10)
	o := w.batches(30, nil)
	w.start(o)
	require.Equal(t, "no-id", message.FailureOf(w.get("q.dlq").Headers).Class)
	require.Equal(t, "early", w.get("q.retry").MessageId)
	w.awaitEffects(20)
	w.awaitEmpty("q.dlq", "q.retry")
	require.Empty(t, w.logs.find("batch failed, its messages are handled singly"))

	o.AllowNoID = true
	w.start(o)
	for range 3 {
		w.send(amqp.Publishing{Type: "order.created", Body: []byte("the same")})
	}
	w.awaitEffects(23)
	w.awaitEmpty("q.dlq", "q.retry")
}

func TestEachRunsAMuxAndItsMiddlewareInABatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.publishRange("m", 20)
	var measured, together atomic.Int32
	mux := consumer.NewMux(consumer.MuxOptions{})
	mux.Handle("order.created", func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if cause, _ := message.FromContext(ctx); cause.ID != m.ID {
			return consumer.Permanent(errors.New("the cause is another message"))
		}
		return w.effect(ctx, tx, m)
	})
	each := consumer.Each(consumer.Chain(mux.Serve, func(next consumer.Handler) consumer.Handler {
		return func(ctx context.Context, tx pgx.Tx, m message.Message) error {
			measured.Add(1)
			return next(ctx, tx, m)
		}
	}))
	w.start(w.batches(10, func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
		together.Store(max(together.Load(), int32(len(msgs))))
		return each(ctx, tx, msgs)
	}))
	w.send(amqp.Publishing{MessageId: "strange", Type: "unheard.of"})
	w.awaitEffects(20)
	require.Equal(t, "strange", w.get("q.dlq").MessageId)
	w.awaitEmpty("q.dlq", "q.retry")
	require.GreaterOrEqual(t, measured.Load(), int32(21))
	require.Greater(t, together.Load(), int32(1))
}

func TestABatchHandlerIsRehearsedWithOneMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	o := w.batches(10, nil)
	m := message.Message{ID: message.NewID(), Type: "x", Exchange: "e", RoutingKey: "x"}
	for _, fate := range []consumer.Fate{consumer.Done, consumer.Duplicate} {
		r, err := consumer.Rehearse(t.Context(), o, m)
		require.NoError(t, err)
		require.Equal(t, fate, r.Fate)
	}
	require.Equal(t, []string{m.ID}, w.effects())
}

func TestBatchOptionsNameTheirFaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	for text, change := range map[string]func(*consumer.Options){
		"exactly one of Handler, Plain, Remote and Batch": func(o *consumer.Options) { o.Handler = w.effect },
		"BatchSize is 11; use 1 to Prefetch (10)":         func(o *consumer.Options) { o.BatchSize = 11 },
		"BatchSize is -1":   func(o *consumer.Options) { o.BatchSize = -1 },
		"BatchWait is 2m0s": func(o *consumer.Options) { o.BatchWait = 2 * time.Minute },
		"BatchWait is -1s":  func(o *consumer.Options) { o.BatchWait = -time.Second },
		// Ten of them late alone would be 20 minutes; late in their batches first they are too late for the broker.
		"can take 28m0s": func(o *consumer.Options) { o.Timeout, o.Concurrency, o.BatchSize = 4*time.Minute, 2, 3 },
	} {
		o := w.batches(5, nil)
		o.Prefetch = 10
		change(&o)
		_, err := consumer.New(o)
		require.ErrorContains(t, err, text)
	}
}
