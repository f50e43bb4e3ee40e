//go:build crash

package crash_test

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// Each test hurts a server of its own while two of every role work under load, and then accounts for every
// message, as after a crash.

// TestBrokerRestartedUnderLoad stops and kills RabbitMQ, and starts it again.
func TestBrokerRestartedUnderLoad(t *testing.T) {
	t.Parallel()
	broker := testkit.PrivateBroker(t)
	h := newHarnessOn(t, newSeed(t), testkit.Database(t), broker.AMQP)
	h.load.begin(t.Context(), 2)
	h.flows(t)
	broker.Restart(t)
	h.flows(t)
	broker.Kill(t)
	broker.Start(t)
	h.flows(t)
	h.finish(t)
}

// TestMemoryAlarmUnderLoad lets the broker stop reading for longer than a write deadline.
func TestMemoryAlarmUnderLoad(t *testing.T) {
	t.Parallel()
	broker := testkit.PrivateBroker(t)
	h := newHarnessOn(t, newSeed(t), testkit.Database(t), broker.AMQP)
	h.load.begin(t.Context(), 2)
	h.flows(t)
	broker.MemoryAlarm(t, true)
	pauseFor(t, 12*time.Second)
	broker.MemoryAlarm(t, false)
	h.flows(t)
	h.finish(t)
}

// TestDatabaseRestartedUnderLoad stops and kills PostgreSQL, and starts it again. The writers are the users'
// programs: they lose their transactions and go on.
func TestDatabaseRestartedUnderLoad(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t)
	h := newHarnessOn(t, newSeed(t), server.Database(t), testkit.Broker(t))
	killed := func(t testing.TB) { t.Helper(); server.Kill(t); server.Start(t) }
	for _, hurt := range []func(testing.TB){server.Restart, killed} {
		h.load.begin(t.Context(), 2)
		h.flows(t)
		hurt(t)
		_ = h.load.end() // what was under way when the server went is the writers' to repeat
	}
	h.load.begin(t.Context(), 2)
	h.flows(t)
	h.finish(t)
}

// TestConnectionsClosedUnderLoad closes every connection from the management page, over and over.
func TestConnectionsClosedUnderLoad(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newSeed(t))
	h.load.begin(t.Context(), 2)
	for range 3 {
		h.flows(t)
		pauseFor(t, 6*time.Second) // the figures that name the connections are sampled every 5 s
		h.closeConnections(t)
	}
	h.finish(t)
}

// TestSlowAndHalfOpenNetwork puts a bad network between all processes and the broker.
func TestSlowAndHalfOpenNetwork(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	network := testkit.Proxy(t, broker.URL)
	through := broker
	through.URL = network.Through(t, broker.URL)
	h := newHarnessOn(t, newSeed(t), testkit.Database(t), through)
	h.load.begin(t.Context(), 2)
	h.flows(t)
	network.Latency(t, 50*time.Millisecond)
	h.flows(t)
	network.HalfOpen(t)
	pauseFor(t, 10*time.Second)
	network.Heal(t)
	h.flows(t)
	h.finish(t)
}

// TestQueueDeletedUnderTheConsumer takes the work queue away. What was in it is gone with it, by the operator's
// own act; everything that comes after it was declared again is handled.
func TestQueueDeletedUnderTheConsumer(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newSeed(t))
	h.load.begin(t.Context(), 1)
	h.flows(t)
	require.NoError(t, h.load.end())
	h.settled(t, time.Minute, func() string { return h.pendingBut(t) })
	h.broker.API(t, http.MethodDelete, "/api/queues/"+url.PathEscape(h.broker.Vhost)+"/crash.work", nil, nil)
	out, err := h.command(t, "", "topology", "apply", "--yes")
	require.NoError(t, err, out)
	h.load.begin(t.Context(), 1)
	h.flows(t)
	h.finish(t)
}

// flows waits until new messages written from now on have their effects.
func (h *harness) flows(t *testing.T) {
	t.Helper()
	const effects = `SELECT count(*) FROM %s.crash_effects`
	before := h.count(t.Context(), t, effects)
	testkit.Eventually(t, 2*time.Minute, "messages to flow", func() bool { return h.count(t.Context(), t, effects) >= before+100 })
}

func (h *harness) closeConnections(t *testing.T) {
	t.Helper()
	h.broker.CloseConnections(t, func(testkit.Connection) bool { return true })
}
