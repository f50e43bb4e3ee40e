package consumer

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// brokerModel settles tags as a broker's channel would.
type brokerModel struct {
	t        *rapid.T
	open     map[uint64]bool // delivered, not settled
	done     map[uint64]bool // what may be acknowledged
	requests int
}

func (b *brokerModel) Ack(tag uint64, multiple bool) error {
	b.requests++
	require.True(b.t, b.open[tag], "an acknowledgement of a tag that is not outstanding closes the channel: %d", tag)
	for open := range b.open {
		if open == tag || multiple && open < tag {
			require.True(b.t, b.done[open], "tag %d is acknowledged and was not done", open)
			delete(b.open, open)
		}
	}
	return nil
}

func (b *brokerModel) Nack(tag uint64, _, _ bool) error {
	require.True(b.t, b.open[tag])
	delete(b.open, tag)
	return nil
}

func (b *brokerModel) Reject(tag uint64, _ bool) error { return b.Nack(tag, false, false) }

func TestAcksSettleWhatIsDoneAndNothingElse(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		broker := &brokerModel{t: t, open: map[uint64]bool{}, done: map[uint64]bool{}}
		prefetch := rapid.IntRange(1, 12).Draw(t, "prefetch")
		a := newAcks(broker, prefetch)
		running := []uint64{}
		tag := uint64(0)
		take := func() uint64 {
			i := rapid.IntRange(0, len(running)-1).Draw(t, "which")
			picked := running[i]
			running = append(running[:i], running[i+1:]...)
			return picked
		}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			switch op := rapid.IntRange(0, 5).Draw(t, "op"); {
			case op <= 1 && len(broker.open) < prefetch:
				tag++
				broker.open[tag] = true
				running = append(running, tag)
				a.received(&amqp.Delivery{DeliveryTag: tag})
			case op == 2 && len(running) > 0:
				done := take()
				broker.done[done] = true
				a.finish(done, time.Now())
			case op == 3 && len(running) > 0:
				a.giveBack(take())
			case op == 4:
				a.flush()
			case op == 5:
				a.flushPrefix()
			}
			require.Equal(t, len(broker.open), a.outstanding())
		}
		for len(running) > 0 {
			done := take()
			broker.done[done] = true
			a.finish(done, time.Now())
		}
		a.flush()
		require.Empty(t, broker.open, "everything is settled in the end")
		require.Zero(t, a.outstanding())
		require.Empty(t, a.settled, "nothing is remembered for ever")
	})
}

func TestAContiguousPrefixIsOneAcknowledgement(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		broker := &brokerModel{t: t, open: map[uint64]bool{}, done: map[uint64]bool{}}
		a := newAcks(broker, 10)
		n := rapid.IntRange(1, 10).Draw(t, "n")
		for tag := range uint64(n) {
			broker.open[tag+1], broker.done[tag+1] = true, true
			a.received(&amqp.Delivery{DeliveryTag: tag + 1})
			a.finish(tag+1, time.Now())
		}
		a.flush()
		require.Equal(t, 1, broker.requests)
	})
}

func TestAcksWaitAtMostForHalfThePrefetchOrFiveMilliseconds(t *testing.T) {
	t.Parallel()
	a := newAcks(&brokerModel{}, 10)
	_, some := a.due()
	require.False(t, some)
	now := time.Now()
	for tag := range uint64(5) {
		a.received(&amqp.Delivery{DeliveryTag: tag + 1})
		a.finish(tag+1, now.Add(time.Duration(tag)))
		at, some := a.due()
		require.True(t, some)
		if tag < 4 {
			require.Equal(t, now.Add(ackDelay), at)
		} else {
			require.Equal(t, now, at)
		}
	}
}
