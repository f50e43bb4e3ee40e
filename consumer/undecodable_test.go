package consumer_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// The client library ends the connection at a message with headers nested more than 32 deep. The consumer says so, and
// lets the broker get over it soon: what comes behind is handled, nothing is lost.
func TestAMessageThatCannotBeReceivedHoldsItsQueueUpOnlyBriefly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	deep := amqp.Table{"x": "x"}
	for range 40 {
		deep = amqp.Table{"n": deep}
	}
	w.send(amqp.Publishing{MessageId: "deep", Type: "x", Headers: deep})
	w.publish("1", "2", "3")
	o := w.options(nil)
	ready := watchReady(&o)
	w.start(o)
	ready.await(t, "nested more than 32 deep")
	ready.await(t, "docs/runbooks/dlq.md")
	w.awaitEffects(3)
	ready.await(t, "")
	require.NotEmpty(t, w.logs.find("broker session failed, retrying"))
	require.Equal(t, 1, w.depth("q.dlq"))
	require.Len(t, w.effects(), 3)
}
