package rabbit_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestAConnectionSaysWhyItEnded(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	t.Run("closed here", func(t *testing.T) {
		t.Parallel()
		conn := dial(t, rabbit.Options{URL: broker.URL})
		require.NoError(t, conn.Err())
		require.NoError(t, conn.Close())
		await(t, "the end", conn.Done(), soon)
		require.ErrorIs(t, conn.Err(), rabbit.ErrClosed)
		require.NoError(t, conn.Close(), "twice")
		_, err := conn.Channel(t.Context())
		require.ErrorIs(t, err, rabbit.ErrClosed)
	})
	t.Run("closed by the broker", func(t *testing.T) {
		t.Parallel()
		conn := dial(t, rabbit.Options{URL: broker.URL})
		kill(t, broker, conn)
		await(t, "the end", conn.Done(), soon)
		require.Equal(t, amqp.ConnectionForced, rabbit.Code(conn.Err()))
		_, err := conn.Channel(t.Context())
		require.Equal(t, amqp.ConnectionForced, rabbit.Code(err), "%v", err)
		require.NoError(t, conn.Close())
	})
	t.Run("lost", func(t *testing.T) {
		t.Parallel()
		network := testkit.Proxy(t, broker.URL)
		conn := dial(t, rabbit.Options{URL: network.Through(t, broker.URL)})
		network.Cut()
		await(t, "the end", conn.Done(), soon)
		require.ErrorIs(t, conn.Err(), rabbit.ErrLost)
	})
	t.Run("aborted", func(t *testing.T) {
		t.Parallel()
		conn := dial(t, rabbit.Options{URL: broker.URL})
		conn.Abort(context.DeadlineExceeded)
		await(t, "the end", conn.Done(), soon)
		require.ErrorIs(t, conn.Err(), context.DeadlineExceeded)
	})
}

func TestDialIsBoundedAndNamesTheReason(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	network := testkit.Proxy(t, broker.URL)
	network.HalfOpen(t)
	through := network.Through(t, broker.URL)
	within(t, 5*time.Second, func() {
		_, err := rabbit.Dial(t.Context(), rabbit.Options{URL: through, Role: "test", DialTimeout: 300 * time.Millisecond})
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	within(t, 5*time.Second, func() {
		_, err := rabbit.Dial(short(t, 300*time.Millisecond), rabbit.Options{URL: through, Role: "test"})
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	_, err := rabbit.Dial(t.Context(), rabbit.Options{URL: broker.URL + "nosuch", Role: "test"})
	require.Error(t, err)
	require.ErrorContains(t, err, "vhost")
}

// A URL with several hosts connects to any that lives: one refuses, one takes the connection and says nothing.
func TestDialFindsTheHostThatLives(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	silent, dead := testkit.Proxy(t, broker.URL), testkit.Proxy(t, broker.URL)
	silent.HalfOpen(t)
	dead.Cut()
	hostOf := func(raw string) string {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		return u.Host
	}
	u, err := url.Parse(broker.URL)
	require.NoError(t, err)
	live := u.Host
	bad := hostOf(silent.Through(t, broker.URL)) + "," + hostOf(dead.Through(t, broker.URL))
	for _, hosts := range []string{live + "," + bad, bad + "," + live} {
		u.Host = hosts
		for range 4 {
			conn, err := rabbit.Dial(t.Context(), rabbit.Options{URL: u.String(), Role: "test", DialTimeout: 3 * time.Second})
			require.NoError(t, err)
			require.Contains(t, conn.Address(), live)
			require.NoError(t, conn.Close())
		}
	}
	u.Host = bad
	_, err = rabbit.Dial(t.Context(), rabbit.Options{URL: u.String(), Role: "test", DialTimeout: time.Second})
	for host := range strings.SplitSeq(bad, ",") {
		require.ErrorContains(t, err, host)
	}
	u.Host = live + "," + live
	u.User = url.UserPassword(u.User.Username(), "wrong")
	_, err = rabbit.Dial(t.Context(), rabbit.Options{URL: u.String(), Role: "test"})
	require.Equal(t, 1, strings.Count(err.Error(), "connect to"), "a refused login is not tried elsewhere: %v", err)
}

// Silence of the peer is noticed by heartbeats, also while nothing is sent.
func TestAHalfOpenConnectionEnds(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	network := testkit.Proxy(t, broker.URL)
	conn := dial(t, rabbit.Options{URL: network.Through(t, broker.URL), Heartbeat: time.Second})
	p := publisher(t, conn, rabbit.PublisherOptions{})
	network.HalfOpen(t)
	require.NoError(t, p.Publish(t.Context(), "", "nowhere", amqp.Publishing{}, "m"))
	await(t, "the end", conn.Done(), 6*time.Second)
	require.ErrorIs(t, conn.Err(), rabbit.ErrLost)
	require.Equal(t, rabbit.Unknown, collect(t, p, 1)["m"].Outcome)
	within(t, 4*time.Second, func() { _ = conn.Close() })
}

// A request without an answer ends in time, and takes the connection with it, for the answer may still come.
func TestARequestWithoutAnAnswerEnds(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	network := testkit.Proxy(t, broker.URL)
	for name, c := range map[string]struct {
		timeout time.Duration
		ctx     time.Duration
		want    error
	}{
		"by its limit": {300 * time.Millisecond, time.Minute, rabbit.ErrRPCTimeout},
		"by ctx":       {time.Minute, 300 * time.Millisecond, context.DeadlineExceeded},
	} {
		conn := dial(t, rabbit.Options{URL: network.Through(t, broker.URL), RPCTimeout: c.timeout})
		channel, err := conn.Channel(t.Context())
		require.NoError(t, err)
		network.HalfOpenAnswers(t)
		within(t, 5*time.Second, func() {
			err = channel.Do(short(t, c.ctx), "declare", func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare("", false, true, true, false, nil)
				return err
			})
		})
		require.ErrorIs(t, err, c.want, name)
		await(t, "the connection's end", conn.Done(), soon)
		require.ErrorIs(t, conn.Err(), c.want, name)
		network.Heal(t)
	}
}

func TestRequestsOnOneChannelTakeTurns(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	channel, err := conn.Channel(t.Context())
	require.NoError(t, err)
	results := make(chan error, 64)
	for range cap(results) {
		go func() {
			name := testkit.Name("q")
			results <- channel.Do(t.Context(), "declare", func(ch *amqp.Channel) error {
				q, err := ch.QueueDeclare(name, false, true, true, false, nil)
				if err == nil && q.Name != name {
					t.Errorf("asked for %s, got the answer for %s", name, q.Name)
				}
				return err
			})
		}()
	}
	for range cap(results) {
		require.NoError(t, <-results)
	}

	held, release := make(chan struct{}), make(chan struct{})
	go func() {
		results <- channel.Do(t.Context(), "hold", func(*amqp.Channel) error { close(held); <-release; return nil })
	}()
	<-held
	require.ErrorIs(t, channel.Do(short(t, 50*time.Millisecond), "wait", func(*amqp.Channel) error { return nil }), context.DeadlineExceeded)
	close(release)
	require.NoError(t, <-results)
	require.NoError(t, conn.Err(), "waiting for a turn costs nothing")
}

func TestABrokersRefusalNamesTheRequestAndItsCode(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	_, _, err := conn.Inspect(t.Context(), "nosuch")
	require.Equal(t, amqp.NotFound, rabbit.Code(err))
	require.ErrorContains(t, err, `inspect queue "nosuch"`)
	require.NoError(t, conn.Err(), "only the channel is gone")
	q := queue(t, conn, quorum())
	ready, consumers, err := conn.Inspect(t.Context(), q)
	require.NoError(t, err)
	require.Zero(t, ready+consumers)
}

func TestTheConnectionsName(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	conn, err := rabbit.Dial(t.Context(), rabbit.Options{URL: broker.URL, Role: "relay", Host: "web-1", Version: "v1.2.3"})
	require.NoError(t, err)
	require.Equal(t, "surefoot relay web-1 v1.2.3", conn.Name())
	testkit.Eventually(t, soon, "its name on the management page", func() bool {
		var all []struct {
			Client map[string]any `json:"client_properties"`
		}
		broker.API(t, "GET", "/api/vhosts/"+broker.Vhost+"/connections", nil, &all)
		return len(all) == 1 && all[0].Client["connection_name"] == conn.Name()
	})
	require.True(t, conn.ServerVersion().Supported())
	require.Equal(t, 131072, conn.FrameMax())
	require.NoError(t, conn.Close())
}
