package consumer_test

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// expiring is a message that expires so long from now.
func expiring(id string, left time.Duration, more amqp.Table) amqp.Publishing {
	headers := amqp.Table{message.HeaderExpiresAt: time.Now().Add(left).UnixMilli()}
	maps.Copy(headers, more)
	return amqp.Publishing{MessageId: id, Type: "order.created", Body: []byte("{}"), Headers: headers}
}

func TestAnExpiredMessageIsADeadLetterAndIsNotRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	o := w.options(nil)
	o.Handler = nil
	o.Batch = func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
		for _, m := range msgs {
			if err := w.effect(ctx, tx, m); err != nil {
				return err
			}
		}
		return nil
	}
	w.publish("ordinary", "another") // so that what follows comes while batches are made
	w.send(expiring("late", -time.Second, nil))
	w.send(expiring("in time", time.Hour, nil))
	w.send(expiring("redriven", -time.Hour, amqp.Table{message.HeaderReprocess: time.Now().UTC().Format(time.RFC3339)}))
	w.start(o)
	w.awaitEffects(4)
	dead := w.get("q.dlq")
	require.Equal(t, "late", dead.MessageId)
	require.Equal(t, "expired", dead.Headers[message.HeaderErrorClass])
	require.Contains(t, dead.Headers[message.HeaderErrorMessage], "redrive it to have it handled all the same")
	require.NotContains(t, w.effects(), "late")
}

// The budget of a handler is what is left of the whole job, and its retries end with it.
func TestRetriesEndWithTheJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	var runs atomic.Int32
	var longest atomic.Int64
	o := w.options(func(ctx context.Context, _ pgx.Tx, m message.Message) error {
		runs.Add(1)
		left, _ := resilience.Left(ctx)
		longest.Store(max(longest.Load(), int64(left)))
		require.False(t, m.ExpiresAt.IsZero())
		return consumer.RetryAfter(errors.New("not yet"), time.Millisecond)
	})
	o.MaxAttempts = 1000
	w.start(o)
	w.send(expiring("m", 2*time.Second, nil))
	dead := w.get("q.dlq")
	require.Equal(t, "expired", dead.Headers[message.HeaderErrorClass])
	require.Greater(t, runs.Load(), int32(1), "it was retried")
	require.LessOrEqual(t, time.Duration(longest.Load()), 2*time.Second, "with no more time than the job had, of a timeout of 10 s")
}

// A message that was handled in time and comes again after it has expired is a duplicate, and no dead letter.
func TestWhatWasHandledInTimeStaysHandled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.start(w.options(nil))
	w.publish("m")
	w.awaitEffects(1)
	w.send(expiring("m", -time.Second, nil))
	w.publish("next")
	w.awaitEffects(2)
	w.awaitEmpty("q", "q.dlq", "q.retry")
}

func TestAHostileExpiryIsNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.start(w.options(nil))
	for i, value := range []any{"soon", int64(-1), int64(0), int64(1) << 62, true, []byte("1"), 1e300} {
		w.send(amqp.Publishing{MessageId: string(rune('a' + i)), Type: "t", Headers: amqp.Table{message.HeaderExpiresAt: value}})
	}
	w.awaitEffects(7)
	testkit.Eventually(t, soon, "nothing dead", func() bool { return w.depth("q.dlq") == 0 })
}
