package consumer_test

import (
	"context"
	"errors"
	"strconv"
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

// remote are the options of a consumer whose handler returns events.
func (w *world) remote(handler consumer.RemoteHandler) consumer.Options {
	o := w.options(w.effect)
	o.Handler, o.Remote = nil, handler
	return o
}

// emitted are the events in the outbox: type, causation, correlation.
func (w *world) emitted() (rows [][]string) {
	w.t.Helper()
	found, err := w.db.Pool.Query(w.t.Context(), `SELECT ARRAY[type, causation_id, correlation_id] FROM `+w.db.Schema+`.outbox ORDER BY id`)
	require.NoError(w.t, err)
	rows, err = pgx.CollectRows(found, pgx.RowTo[[]string])
	require.NoError(w.t, err)
	return rows
}

func (w *world) handled() (n int) {
	w.t.Helper()
	require.NoError(w.t, w.db.Pool.QueryRow(w.t.Context(), `SELECT count(*) FROM `+w.db.Schema+`.inbox`).Scan(&n))
	return n
}

func TestEventsOfARemoteHandlerAreEmittedOnceWhenItIsDone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	var runs atomic.Int32
	w.start(w.remote(func(ctx context.Context, m message.Message) ([]message.Message, error) {
		var open int
		err := w.db.Pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%`+w.db.Schema+`%'`).Scan(&open)
		if err != nil || open > 0 {
			return nil, consumer.Permanent(errors.Join(err, errors.New("a transaction is open")))
		}
		events := []message.Message{{Type: "mail.sent", Payload: []byte(`1`)}, {Type: "mail.billed", Payload: []byte(`2`), CorrelationID: "own"}}
		if runs.Add(1) == 1 {
			return events, errors.New("failed after all")
		}
		return events, nil
	}))
	w.publish("m1")
	testkit.Eventually(t, soon, "the record", func() bool { return w.handled() == 1 })
	w.publish("m1")
	w.awaitEmpty("q.retry", "q.dlq")
	require.Equal(t, int32(2), runs.Load())
	require.Equal(t, [][]string{{"mail.sent", "m1", "m1"}, {"mail.billed", "m1", "own"}}, w.emitted())
}

func TestAnEventThatTheOutboxRefusesEmitsNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.start(w.remote(func(context.Context, message.Message) ([]message.Message, error) {
		return []message.Message{{Type: "mail.sent", Payload: []byte(`1`)}, {Payload: []byte(`2`)}}, nil
	}))
	w.publish("m1")
	failure := message.FailureOf(w.get("q.dlq").Headers)
	require.Equal(t, "permanent", failure.Class)
	require.Contains(t, failure.Message, "Type is empty")
	require.Empty(t, w.emitted())
	require.Zero(t, w.handled())
}

// locked runs fn while nobody else can look into the inbox.
func (w *world) locked(fn func()) {
	w.t.Helper()
	tx, err := w.db.Pool.Begin(w.t.Context())
	require.NoError(w.t, err)
	_, err = tx.Exec(w.t.Context(), `LOCK TABLE `+w.db.Schema+`.inbox IN ACCESS EXCLUSIVE MODE`)
	require.NoError(w.t, err)
	fn()
	require.NoError(w.t, tx.Rollback(w.t.Context()))
}

// Looks and records are gathered, one statement for several messages: each still gets its own answer.
func TestARemoteHandlerRunsEachOfManyMessagesOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	var runs sync.Map
	o := w.remote(func(_ context.Context, m message.Message) ([]message.Message, error) {
		if _, again := runs.LoadOrStore(m.ID, true); again {
			return nil, consumer.Permanent(errors.New("run again"))
		}
		return nil, nil
	})
	o.Prefetch = 50
	w.start(o)
	const n = 40
	var first, all []string
	for i := range n {
		all = append(all, strconv.Itoa(i))
		if i%2 == 0 {
			first = append(first, strconv.Itoa(i))
		}
	}
	w.start(o)
	w.publish(first...)
	testkit.Eventually(t, soon, "the records", func() bool { return w.handled() == n/2 })
	w.locked(func() { w.publish(all...) }) // the first look waits, and the next ones gather: every other one is known
	testkit.Eventually(t, soon, "the records", func() bool { return w.handled() == n })
	w.awaitEmpty("q", "q.retry", "q.dlq")
}

// A row that somebody holds locked keeps its own message waiting, and those with which it shares a statement for a bounded time.
func TestALockedRecordKeepsOthersForABoundedTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	o := w.remote(func(context.Context, message.Message) ([]message.Message, error) { return nil, nil })
	o.Timeout = time.Minute
	w.start(o)
	w.publish("first")
	testkit.Eventually(t, soon, "the consumer", func() bool { return w.handled() == 1 })
	tx, err := w.db.Pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	for i, id := range []string{"a", "b"} {
		_, err := tx.Exec(t.Context(), `INSERT INTO `+w.db.Schema+`.inbox (consumer, message) SELECT id, `+w.db.Schema+`.inbox_key($1) FROM `+w.db.Schema+`.inbox_consumers`, id)
		require.NoError(t, err)
		w.publish(id)
		testkit.Eventually(t, soon, "another statement that waits", func() bool {
			var waiting int
			require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%`+w.db.Schema+`.inbox %'`).Scan(&waiting))
			return waiting == i+1
		})
	}
	w.publish("c")
	testkit.Eventually(t, soon, "the record of the other", func() bool { return w.handled() == 2 })
	require.Empty(t, w.logs.find("dependency away, holding messages uncounted"))
	require.NoError(t, tx.Rollback(t.Context()))
	testkit.Eventually(t, soon, "the records", func() bool { return w.handled() == 4 })
	w.awaitEmpty("q", "q.retry", "q.dlq")
}

// Two replicas may run a message at a time, when one has lost its connection: one of them records it.
func TestEventsOfARunThatSomebodyElseHasRecordedAreDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.start(w.remote(func(ctx context.Context, m message.Message) ([]message.Message, error) {
		_, err := w.db.Pool.Exec(ctx, `INSERT INTO `+w.db.Schema+`.inbox (consumer, message) SELECT id, `+w.db.Schema+`.inbox_key($1) FROM `+w.db.Schema+`.inbox_consumers`, m.ID)
		return []message.Message{{Type: "mail.sent", Payload: []byte(`1`)}}, err
	}))
	w.publish("m1")
	testkit.Eventually(t, soon, "the record", func() bool { return w.handled() == 1 })
	w.awaitEmpty("q.retry", "q.dlq")
	require.Empty(t, w.emitted())
}

// impatientError gives up after a second failure of its kind.
type impatientError struct{}

func (impatientError) Error() string       { return "odd" }
func (impatientError) FailureType() string { return "odd" }

func (impatientError) GiveUp(earlier []message.Attempt) bool {
	for _, a := range earlier {
		if a.Type == "odd" {
			return true
		}
	}
	return false
}

func TestAnErrorMayGiveUpBeforeTheAttemptsAreUsedUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	o := w.remote(func(_ context.Context, m message.Message) ([]message.Message, error) {
		if m.Attempts == 0 {
			return nil, errors.New("something else")
		}
		return nil, impatientError{}
	})
	o.MaxAttempts = 9
	w.start(o)
	w.publish("m1")
	dead := w.get("q.dlq")
	require.Equal(t, 3, message.Attempts(dead.Headers), "another failure, and two of this kind")

	// After a redrive the message begins anew, with the record of what was before.
	delete(dead.Headers, message.HeaderAttempts)
	w.send(amqp.Publishing{MessageId: "m1", Type: "order.created", Headers: dead.Headers})
	require.Equal(t, 3, message.Attempts(w.get("q.dlq").Headers))
}

// finalError gives up at its first failure.
type finalError struct{}

func (finalError) Error() string                 { return "gone for good" }
func (finalError) GiveUp([]message.Attempt) bool { return true }

func TestARehearsalAsksTheErrorToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	o := w.options(func(context.Context, pgx.Tx, message.Message) error { return finalError{} })
	r, err := consumer.Rehearse(t.Context(), o, message.Message{ID: message.NewID(), Type: "x", Exchange: "e", RoutingKey: "x"})
	require.NoError(t, err)
	require.Equal(t, consumer.Dead, r.Fate)
	require.Equal(t, "q.dlq", r.Queue)
}
