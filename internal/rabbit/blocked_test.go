package rabbit_test

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// A memory alarm: the broker reads nothing more from connections that publish. Nothing hangs, nothing is lost, and all goes on when it ends.
func TestAMemoryAlarmHangsNothing(t *testing.T) {
	t.Parallel()
	broker := testkit.PrivateBroker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	q := queue(t, conn, quorum())
	p := publisher(t, conn, rabbit.PublisherOptions{})
	require.NoError(t, p.PublishConfirmed(t.Context(), "", q, amqp.Publishing{}))
	stuck := dial(t, rabbit.Options{URL: broker.URL, WriteTimeout: time.Second, RPCTimeout: time.Second})
	raw, err := stuck.Channel(t.Context())
	require.NoError(t, err)

	broker.MemoryAlarm(t, true)
	require.NoError(t, p.Publish(t.Context(), "", q, amqp.Publishing{}, "m")) // the broker notices a publisher at its first publish
	testkit.Eventually(t, soon, "connection.blocked", func() bool { blocked, _ := conn.Blocked(); return blocked })
	_, reason := conn.Blocked()
	require.Contains(t, reason, "memory")
	require.ErrorIs(t, p.TryPublish("", q, amqp.Publishing{}, "no"), rabbit.ErrWindowFull)
	require.ErrorIs(t, conn.WaitUnblocked(short(t, 50*time.Millisecond)), context.DeadlineExceeded)
	err = p.Publish(short(t, 50*time.Millisecond), "", q, amqp.Publishing{}, "no")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "blocked by the broker")

	// Who does not look at Blocked, and writes until the socket takes no more, is freed by the write's deadline.
	within(t, 10*time.Second, func() {
		for err == nil || stuck.Err() == nil {
			err = raw.Do(t.Context(), "publish", func(ch *amqp.Channel) error {
				return ch.PublishWithContext(t.Context(), "", q, false, false, amqp.Publishing{Body: make([]byte, 1<<20)})
			})
			if err != nil {
				break
			}
		}
	})
	await(t, "the stuck connection's end", stuck.Done(), 5*time.Second)

	// Close ends in time though the broker does not read.
	closing := dial(t, rabbit.Options{URL: broker.URL})
	blocked := publisher(t, closing, rabbit.PublisherOptions{})
	require.NoError(t, blocked.Publish(t.Context(), "", q, amqp.Publishing{}, "m"))
	testkit.Eventually(t, soon, "connection.blocked", func() bool { b, _ := closing.Blocked(); return b })
	within(t, 6*time.Second, func() { _ = closing.Close() })
	collect(t, blocked, 1) // taken before the block, or unknown

	changed := conn.BlockedChanged()
	waiting := make(chan error, 1)
	go func() { waiting <- p.Publish(t.Context(), "", q, amqp.Publishing{}, "waited") }()
	broker.MemoryAlarm(t, false)
	await(t, "connection.unblocked", changed, soon)
	require.NoError(t, <-waiting)
	for token, r := range collect(t, p, 2) {
		require.Equal(t, rabbit.Confirmed, r.Outcome, token)
	}
	require.NoError(t, conn.Err())
}
