package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

func TestABacklogWithoutDeliveriesIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{singleActive: true})
	// Another consumer is the active one, takes one message and does nothing.
	require.NoError(t, w.ch.Qos(1, 0, false))
	_, err := w.ch.Consume("q", "idler", false, false, false, false, nil)
	require.NoError(t, err)
	o := w.options(nil)
	ready := watchReady(&o)
	w.startWith(o, func(c *consumer.Consumer) { consumer.SetBacklogInterval(c, 50*time.Millisecond) })
	ready.await(t, "")
	w.publish("m1", "m2", "m3")
	ready.await(t, "2 messages ready, but none arrives here")
	testkit.Eventually(t, soon, "a line in the log", func() bool { return len(w.logs.find("messages are ready, but none arrives here")) == 1 })
	require.NoError(t, w.ch.Cancel("idler", false))
	w.awaitEffects(2)
	ready.await(t, "")
}

// RabbitMQ 3.10 tells nothing to the consumers of a quorum queue that is deleted and declared again at once.
func TestAQueueThatWasReplacedIsConsumed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.startWith(w.options(nil), func(c *consumer.Consumer) { consumer.SetBacklogInterval(c, 50*time.Millisecond) })
	w.publish("m1")
	w.awaitEffects(1)
	for n := range 3 {
		w.vhost.API(t, http.MethodDelete, "/api/queues/"+url.PathEscape(w.vhost.Vhost)+"/q", nil, nil)
		w.declare(worldOptions{})
		w.publish(fmt.Sprint("n", n))
		w.awaitEffects(2 + n)
	}
}

func TestMetricsHaveBoundedLabels(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	registry := prometheus.NewRegistry()
	o := w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if m.Type == "bad" {
			return consumer.Permanent(errors.New("never"))
		}
		if m.Attempts == 0 && m.Type == "late" {
			return errors.New("not yet")
		}
		return w.effect(ctx, tx, m)
	})
	o.Metrics = registry
	_, err := consumer.New(o) // a second consumer of the process shares the registry
	require.NoError(t, err)
	w.start(o)
	w.publish("m1", "m1")
	w.send(amqp.Publishing{MessageId: "m2", Type: "late"})
	w.send(amqp.Publishing{MessageId: "m3", Type: "bad"})
	for i := range 60 {
		w.send(amqp.Publishing{MessageId: strconv.Itoa(i), Type: fmt.Sprintf("hostile-\xff-%d", i)})
	}
	w.awaitEffects(62)
	w.awaitEmpty("q.retry")
	values := map[string]float64{}
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			words := []string{family.GetName()}
			for _, label := range metric.GetLabel() {
				words = append(words, label.GetValue())
			}
			key := strings.Join(words, " ")
			values[key] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	require.InDelta(t, 1, values["surefoot_consumer_handled_total q done order.created"], 0)
	require.InDelta(t, 1, values["surefoot_consumer_handled_total q duplicate order.created"], 0)
	require.InDelta(t, 1, values["surefoot_consumer_retries_total unknown q"], 0)
	require.InDelta(t, 1, values["surefoot_consumer_dead_lettered_total permanent q"], 0)
	require.Positive(t, values["surefoot_consumer_handled_total q done other"])
	require.Contains(t, values, "surefoot_consumer_in_flight q")
	require.Zero(t, values["surefoot_consumer_in_flight q"])
	require.LessOrEqual(t, testutil.CollectAndCount(registry, "surefoot_consumer_handled_total"), 120)
}

func TestHandlersSeeTheMessageInTheirContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	seen := make(chan message.Message, 1)
	w.start(w.options(func(ctx context.Context, _ pgx.Tx, _ message.Message) error {
		m, _ := message.FromContext(ctx)
		_, limited := ctx.Deadline()
		require.True(t, limited)
		seen <- m
		return nil
	}))
	w.publish("m1")
	require.Equal(t, "m1", receive(t, seen, "the run").ID)
}

func TestAHandlerThatEndsItsGoroutineIsADeadLetter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.start(w.options(func(context.Context, pgx.Tx, message.Message) error { exitGoroutine(); return nil }))
	w.publish("m1", "m2")
	for range 2 {
		require.Contains(t, message.FailureOf(w.get("q.dlq").Headers).Message, "Goexit")
	}
	w.awaitEmpty("q.retry")
	testkit.Eventually(t, soon, "the connections to be free", func() bool { return w.db.Pool.Stat().AcquiredConns() == 0 })
}
