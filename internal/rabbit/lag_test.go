package rabbit_test

import (
	"bytes"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// Of a prefetch that is much larger than what anybody takes, not all is read into memory at once. What waits for an answer of the broker
// is not kept behind it, and nothing is lost.
func TestASlowReceiverSlowsReading(t *testing.T) {
	t.Parallel()
	const n = 8000
	broker := testkit.Broker(t)
	feed := dial(t, rabbit.Options{URL: broker.URL})
	q := queue(t, feed, amqp.Table{"x-queue-type": "classic"})
	p := publisher(t, feed, rabbit.PublisherOptions{Window: n})
	for i := range n {
		require.NoError(t, p.Publish(t.Context(), "", q, amqp.Publishing{Body: bytes.Repeat([]byte("x"), 1000)}, i))
	}
	require.NoError(t, p.Close(t.Context()))

	conn := dial(t, rabbit.Options{URL: broker.URL})
	sub := subscribe(t, conn, rabbit.ConsumeOptions{Queue: q, Prefetch: n})
	testkit.Eventually(t, soon, "what is read without delay", func() bool { return sub.Unsettled() > 2000 })
	began := time.Now()
	testkit.Eventually(t, 2*soon, "as much again as 37 reads bring, a tenth of a second apart", func() bool { return sub.Unsettled() > 3100 })
	require.Greater(t, time.Since(began), time.Second)

	within(t, 10*time.Second, func() { // megabytes of deliveries come before the answer
		_, _, err := conn.Inspect(t.Context(), q)
		require.NoError(t, err)
	})
	for range n {
		receive(t, sub)
	}
	require.NoError(t, conn.Err())
}

// A broker may, for a moment, deliver more than the prefetch. Here a second consumer on the channel brings that about.
func TestThereIsRoomForMoreThanThePrefetch(t *testing.T) {
	t.Parallel()
	const prefetch = 5
	_, conn, q := filled(t, 2*prefetch)
	channel, err := conn.Channel(t.Context())
	require.NoError(t, err)
	deliveries, err := channel.Consume(t.Context(), rabbit.ConsumeOptions{Queue: q, Tag: "one", Prefetch: prefetch})
	require.NoError(t, err)
	require.NoError(t, channel.Do(t.Context(), "consume twice", func(ch *amqp.Channel) error {
		_, err := ch.Consume(q, "two", false, false, false, false, nil)
		return err
	}))
	testkit.Eventually(t, soon, "all to have come, and nobody has taken any", func() bool { return len(deliveries) == 2*prefetch || conn.Err() != nil })
	require.NoError(t, conn.Err())
	for range 2 * prefetch {
		d := <-deliveries
		require.NoError(t, channel.Ack(d.DeliveryTag))
	}
}
