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

// soon bounds whatever should happen without a timeout of its own.
const soon = 20 * time.Second

func dial(t testing.TB, opts rabbit.Options) *rabbit.Conn {
	t.Helper()
	opts.Role = "test"
	opts.Host = testkit.Name("host") // tells the connection from others on the management page
	conn, err := rabbit.Dial(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func do(t testing.TB, conn *rabbit.Conn, request func(*amqp.Channel) error) {
	t.Helper()
	channel, err := conn.Channel(t.Context())
	require.NoError(t, err)
	require.NoError(t, channel.Do(t.Context(), "prepare the test", request))
	require.NoError(t, channel.Close(t.Context()))
}

// queue declares a durable queue of the given arguments and returns its name.
func queue(t testing.TB, conn *rabbit.Conn, arguments amqp.Table) string {
	t.Helper()
	name := testkit.Name("q")
	do(t, conn, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, arguments)
		return err
	})
	return name
}

func quorum() amqp.Table { return amqp.Table{"x-queue-type": "quorum"} }

func publisher(t testing.TB, conn *rabbit.Conn, opts rabbit.PublisherOptions) *rabbit.Publisher {
	t.Helper()
	p, err := conn.Publisher(t.Context(), opts)
	require.NoError(t, err)
	return p
}

// collect waits for n results and fails on a token that comes twice.
func collect(t testing.TB, p *rabbit.Publisher, n int) map[any]rabbit.Result {
	t.Helper()
	results := map[any]rabbit.Result{}
	deadline := time.After(soon)
	for {
		for _, r := range p.Collect(nil) {
			require.NotContains(t, results, r.Token, "a second outcome")
			results[r.Token] = r
		}
		if len(results) >= n {
			require.Len(t, results, n)
			return results
		}
		select {
		case <-p.Ready():
		case <-deadline:
			require.Fail(t, "outcomes are missing", "%d of %d", len(results), n)
		}
	}
}

func await(t testing.TB, what string, done <-chan struct{}, limit time.Duration) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(limit):
		require.Fail(t, "waited too long", "%s: %s", limit, what)
	}
}

// kill closes a connection from the broker's side, as an operator does.
func kill(t testing.TB, broker testkit.AMQP, conn *rabbit.Conn) {
	t.Helper()
	broker.CloseConnections(t, func(c testkit.Connection) bool { return c.Client.Name == conn.Name() })
}

// within fails when work takes longer than limit.
func within(t testing.TB, limit time.Duration, work func()) {
	t.Helper()
	begun := time.Now()
	work()
	require.Less(t, time.Since(begun), limit)
}

func short(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func receive(t testing.TB, sub *rabbit.Subscription) amqp.Delivery {
	t.Helper()
	select {
	case d, open := <-sub.Deliveries():
		require.True(t, open, "subscription ended: %v", sub.Err())
		return *d
	case <-time.After(soon):
		require.Fail(t, "nothing was delivered")
		return amqp.Delivery{}
	}
}
