package rabbit_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// states remembers what OnState was told, in order.
type states struct {
	mu  sync.Mutex
	all []string
}

func (s *states) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := "up"
	if err != nil {
		state = "down"
	}
	s.all = append(s.all, state)
}

func (s *states) list() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// The broker goes and comes back: the session is run anew each time, by itself, and the log tells it once.
func TestASessionOutlivesTheBrokersAbsence(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	network := testkit.Proxy(t, broker.URL)
	var log bytes.Buffer
	logger := zerolog.New(&log)
	var seen states
	sessions := make(chan *rabbit.Conn)
	ctx, cancel := context.WithCancel(t.Context())
	finished := make(chan error, 1)
	go func() {
		finished <- rabbit.Supervise(ctx, rabbit.SuperviseOptions{
			Options:    rabbit.Options{URL: network.Through(t, broker.URL), Role: "test", Logger: logger},
			BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond, OnState: seen.note,
		}, func(ctx context.Context, conn *rabbit.Conn) error {
			select {
			case sessions <- conn:
			case <-ctx.Done():
				return ctx.Err()
			}
			select {
			case <-conn.Done():
				return conn.Err()
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	first := <-sessions
	network.Cut()
	testkit.Eventually(t, soon, "many failed dials", func() bool { return len(seen.list()) > 5 })
	network.Heal(t)
	second := <-sessions
	require.NotSame(t, first, second, "a new connection")
	require.Error(t, first.Err())
	require.NoError(t, second.Err())
	cancel()
	require.NoError(t, <-finished)
	require.ErrorIs(t, second.Err(), rabbit.ErrClosed, "closed with the session")
	require.Equal(t, []string{"up", "down", "up"}, slices.Compact(seen.list()))
	require.LessOrEqual(t, bytes.Count(log.Bytes(), []byte("broker session failed")), 3, "lost, refused; never every retry: %s", log.String())
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte(`"level":"info"`)), "%s", log.String())
	require.NotContains(t, log.String(), password(t, broker.URL))
}

func password(t *testing.T, u string) string {
	t.Helper()
	uri, err := amqp.ParseURI(u)
	require.NoError(t, err)
	return uri.Password
}

func TestASessionThatFailsIsRunAgainWithGrowingWaits(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	failing := errors.New("fenced")
	runs := 0
	err := rabbit.Supervise(t.Context(), rabbit.SuperviseOptions{
		Options: rabbit.Options{URL: broker.URL, Role: "test"}, BackoffMin: time.Millisecond, BackoffMax: 10 * time.Millisecond,
	}, func(context.Context, *rabbit.Conn) error {
		if runs++; runs < 4 {
			return failing
		}
		return nil // done
	})
	require.NoError(t, err)
	require.Equal(t, 4, runs)
}

func TestSuperviseEndsWithCtxWhileTheBrokerIsAway(t *testing.T) {
	t.Parallel()
	within(t, 5*time.Second, func() {
		require.NoError(t, rabbit.Supervise(short(t, 200*time.Millisecond), rabbit.SuperviseOptions{
			Options: rabbit.Options{URL: "amqp://127.0.0.1:1", Role: "test"}, BackoffMin: time.Hour, BackoffMax: time.Hour,
		}, func(context.Context, *rabbit.Conn) error { return nil }))
	})
	require.Error(t, rabbit.Supervise(t.Context(), rabbit.SuperviseOptions{}, nil), "invalid options are no reason to try again")
}

func TestBackoffIsBoundedAndSpread(t *testing.T) {
	t.Parallel()
	for failures, bound := range map[int]time.Duration{1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 5: 1600 * time.Millisecond, 8: 10 * time.Second, 1000: 10 * time.Second} {
		lowest, highest := time.Hour, time.Duration(0)
		for range 2000 {
			d := rabbit.Backoff(failures)
			lowest, highest = min(lowest, d), max(highest, d)
		}
		require.LessOrEqual(t, highest, bound)
		require.Greater(t, highest, bound*8/10, "%d", failures)
		require.Less(t, lowest, bound/10, "full jitter")
	}
}
