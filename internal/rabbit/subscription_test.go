package rabbit_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// filled is a connection and a queue with n messages, ids from 0.
func filled(t *testing.T, n int) (testkit.AMQP, *rabbit.Conn, string) {
	t.Helper()
	broker := testkit.Broker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	q := queue(t, conn, quorum())
	p := publisher(t, conn, rabbit.PublisherOptions{})
	for i := range n {
		require.NoError(t, p.Publish(t.Context(), "", q, amqp.Publishing{MessageId: strconv.Itoa(i)}, i))
	}
	require.NoError(t, p.Close(t.Context()))
	return broker, conn, q
}

func subscribe(t *testing.T, conn *rabbit.Conn, opts rabbit.ConsumeOptions) *rabbit.Subscription {
	t.Helper()
	sub, err := conn.Consume(t.Context(), opts)
	require.NoError(t, err)
	return sub
}

func (w ready) require(t *testing.T, n int) {
	t.Helper()
	testkit.Eventually(t, soon, fmt.Sprintf("%d messages in the queue", n), func() bool {
		ready, _, err := w.conn.Inspect(t.Context(), w.queue)
		return err == nil && ready == n
	})
}

type ready struct {
	conn  *rabbit.Conn
	queue string
}

func TestDeletingTheQueueEndsTheSubscriptionAlone(t *testing.T) {
	t.Parallel()
	_, conn, q := filled(t, 3)
	sub := subscribe(t, conn, rabbit.ConsumeOptions{Queue: q})
	d := receive(t, sub)
	do(t, conn, func(ch *amqp.Channel) error { _, err := ch.QueueDelete(q, false, false, false); return err })
	await(t, "the end", sub.Done(), soon)
	for range sub.Deliveries() {
		require.ErrorIs(t, sub.Err(), rabbit.ErrServerCancelled)
	}
	require.ErrorIs(t, sub.Err(), rabbit.ErrServerCancelled, "set when the deliveries are closed")
	require.ErrorIs(t, d.Ack(false), rabbit.ErrStale)
	require.NoError(t, conn.Err())
	require.NoError(t, sub.Close(t.Context()))
	_, err := conn.Consume(t.Context(), rabbit.ConsumeOptions{Queue: q})
	require.Equal(t, amqp.NotFound, rabbit.Code(err))
}

// Who sees the deliveries closed finds the reason, every time.
func TestTheReasonIsThereWhenTheDeliveriesClose(t *testing.T) {
	t.Parallel()
	_, conn, _ := filled(t, 0)
	for range 30 {
		q := queue(t, conn, amqp.Table{"x-queue-type": "classic"})
		sub := subscribe(t, conn, rabbit.ConsumeOptions{Queue: q})
		do(t, conn, func(ch *amqp.Channel) error { _, err := ch.QueueDelete(q, false, false, false); return err })
		_, open := <-sub.Deliveries()
		require.False(t, open)
		require.ErrorIs(t, sub.Err(), rabbit.ErrServerCancelled)
	}
}

// What has come belongs to the broker again when the connection ends: whoever received it then would work for nothing.
func TestWhatNobodyHasReceivedIsDroppedAtTheEnd(t *testing.T) {
	t.Parallel()
	broker, _, q := filled(t, 5)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	sub := subscribe(t, conn, rabbit.ConsumeOptions{Queue: q, Prefetch: 5})
	testkit.Eventually(t, soon, "all to have come", func() bool { return sub.Unsettled() == 5 })
	kill(t, broker, conn)
	await(t, "the end", sub.Done(), soon)
	testkit.Eventually(t, soon, "the deliveries to be closed", func() bool {
		select {
		case d, open := <-sub.Deliveries():
			require.False(t, open, "%v", d)
			return true
		default:
			return false
		}
	})
}

// An acknowledgement for a delivery of an ended generation hits nothing, though the new one has a delivery of the same tag.
func TestALateAckHitsNoOtherMessage(t *testing.T) {
	t.Parallel()
	broker, admin, q := filled(t, 2)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	first := subscribe(t, conn, rabbit.ConsumeOptions{Queue: q, Prefetch: 1})
	old := receive(t, first)
	require.Equal(t, uint64(1), old.DeliveryTag)
	kill(t, broker, conn)
	await(t, "the end of the first generation", first.Done(), soon)
	require.Equal(t, amqp.ConnectionForced, rabbit.Code(first.Err()))

	again := dial(t, rabbit.Options{URL: broker.URL})
	second := subscribe(t, again, rabbit.ConsumeOptions{Queue: q, Prefetch: 1})
	current := receive(t, second)
	require.Equal(t, uint64(1), current.DeliveryTag)
	require.ErrorIs(t, old.Ack(false), rabbit.ErrStale)
	require.ErrorIs(t, old.Nack(false, true), rabbit.ErrStale)
	require.ErrorIs(t, old.Reject(true), rabbit.ErrStale)
	require.Equal(t, 1, second.Unsettled())
	require.NoError(t, again.Close())
	ready{admin, q}.require(t, 2)
}

// What the broker would close the channel for is dropped here.
func TestATagIsSettledOnce(t *testing.T) {
	t.Parallel()
	_, conn, q := filled(t, 4)
	sub := subscribe(t, conn, rabbit.ConsumeOptions{Queue: q})
	var all []amqp.Delivery
	for range 4 {
		all = append(all, receive(t, sub))
	}
	require.NoError(t, all[1].Ack(false))
	require.ErrorIs(t, all[1].Ack(false), rabbit.ErrNotOutstanding, "twice")
	require.ErrorIs(t, sub.Ack(5, false), rabbit.ErrNotOutstanding, "never delivered")
	require.ErrorIs(t, sub.Ack(0, true), rabbit.ErrNotOutstanding, "zero means all to the broker")
	require.NoError(t, all[2].Ack(true), "the first three")
	require.ErrorIs(t, all[0].Nack(false, true), rabbit.ErrNotOutstanding)
	require.Equal(t, 1, sub.Unsettled())
	require.NoError(t, all[3].Reject(true))
	d := receive(t, sub)
	require.Equal(t, "3", d.MessageId)
	require.True(t, d.Redelivered)
	require.NoError(t, d.Ack(false))
	require.NoError(t, sub.Close(t.Context()))
	require.ErrorIs(t, sub.Err(), rabbit.ErrClosed)
	ready{conn, q}.require(t, 0)
}

func TestAfterCancelWhatWasDeliveredCanBeSettled(t *testing.T) {
	t.Parallel()
	_, conn, q := filled(t, 10)
	sub := subscribe(t, conn, rabbit.ConsumeOptions{Queue: q, Prefetch: 5})
	first := receive(t, sub)
	testkit.Eventually(t, soon, "five on their way", func() bool {
		left, _, err := conn.Inspect(t.Context(), q)
		return err == nil && left == 5
	})
	require.NoError(t, sub.Cancel(t.Context()))
	require.NoError(t, first.Ack(false))
	n := 1
	for d := range sub.Deliveries() {
		n++
		if n == 2 {
			require.NoError(t, d.Ack(false))
		}
	}
	require.Equal(t, 5, n)
	require.NoError(t, sub.Err(), "not ended yet")
	require.Equal(t, 3, sub.Unsettled())
	require.NoError(t, sub.Close(t.Context()))
	ready{conn, q}.require(t, 8)
	require.ErrorIs(t, sub.Cancel(t.Context()), rabbit.ErrClosed)
}

func TestClosingGivesEverythingBack(t *testing.T) {
	t.Parallel()
	_, conn, q := filled(t, 20)
	sub := subscribe(t, conn, rabbit.ConsumeOptions{Queue: q, Prefetch: 20})
	receive(t, sub)
	require.NoError(t, sub.Close(t.Context()))
	require.NoError(t, sub.Close(t.Context()), "twice")
	ready{conn, q}.require(t, 20)
}

func TestConsumeRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	_, conn, q := filled(t, 0)
	for _, opts := range []rabbit.ConsumeOptions{{}, {Queue: q, Prefetch: -1}, {Queue: q, Prefetch: 65536}} {
		_, err := conn.Consume(t.Context(), opts)
		require.Error(t, err)
	}
	sub := subscribe(t, conn, rabbit.ConsumeOptions{Queue: q})
	require.Equal(t, conn.Name(), sub.Tag())
	require.NoError(t, sub.Close(context.Background()))
}

// The model is a plain set of outstanding tags.
func TestOutstandingTags(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var o rabbit.Outstanding
		model := map[uint64]bool{}
		var high uint64
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "deliver") {
				high++
				model[high] = true
				o.Deliver(high)
				continue
			}
			tag := rapid.Uint64Range(0, high+2).Draw(t, "tag")
			multiple := rapid.Bool().Draw(t, "multiple")
			require.Equal(t, model[tag], o.Settle(tag, multiple), "settle %d multiple %t", tag, multiple)
			if !model[tag] {
				continue
			}
			delete(model, tag)
			for other := range model {
				if multiple && other < tag {
					delete(model, other)
				}
			}
			require.Equal(t, len(model), o.Count())
		}
	})
}
