package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// Routed and unroutable messages in one stream, some with equal ids and no ids at all: each gets its own outcome.
func TestReturnsArePairedWithTheirMessages(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	q := queue(t, conn, quorum())
	p := publisher(t, conn, rabbit.PublisherOptions{Window: 500})
	const n = 3000
	routed := func(i int) bool { return i*7919%5 > 1 }
	results := map[any]rabbit.Result{}
	take := func() {
		for _, r := range p.Collect(nil) {
			require.NotContains(t, results, r.Token)
			results[r.Token] = r
		}
	}
	for i := range n {
		key, id := q, strconv.Itoa(i)
		if !routed(i) {
			key = "nowhere"
		}
		if i%10 == 0 {
			id = "" // and equal ids on both routes
		}
		msg := amqp.Publishing{MessageId: id, Body: fmt.Append(nil, i)}
		for errors.Is(p.TryPublish("", key, msg, i), rabbit.ErrWindowFull) {
			<-p.Ready()
			take()
		}
	}
	deadline := time.After(soon)
	for take(); len(results) < n; take() {
		select {
		case <-p.Ready():
		case <-deadline:
			require.Fail(t, "outcomes are missing", "%d", n-len(results))
		}
	}
	for i := range n {
		r := results[i]
		if routed(i) {
			require.Equal(t, rabbit.Confirmed, r.Outcome, "%d: %v", i, r.Err)
			require.NoError(t, r.Err)
			continue
		}
		var returned *rabbit.ReturnedError
		require.ErrorAs(t, r.Err, &returned)
		require.Equal(t, rabbit.Returned, r.Outcome, "%d", i)
		require.Equal(t, rabbit.ReturnedError{Code: 312, Text: "NO_ROUTE", RoutingKey: "nowhere"}, *returned)
	}
	messages, bytes := p.InFlight()
	require.Zero(t, messages+bytes)
	require.NoError(t, p.Close(t.Context()))
	ready, _, err := conn.Inspect(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, n*3/5, ready)
}

// A binding that comes and goes while equal messages fly: at least as many are in the queue as were reported confirmed.
func TestEqualMessagesAreNeverOverreported(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	q := queue(t, conn, quorum())
	p := publisher(t, conn, rabbit.PublisherOptions{Window: 300})
	const n = 3000
	stop := make(chan struct{})
	var flapping sync.WaitGroup
	other := dial(t, rabbit.Options{URL: broker.URL})
	flapping.Go(func() {
		channel, err := other.Channel(t.Context())
		if err != nil {
			return
		}
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = channel.Do(t.Context(), "bind", func(ch *amqp.Channel) error { return ch.QueueBind(q, "k", "amq.topic", false, nil) })
			_ = channel.Do(t.Context(), "unbind", func(ch *amqp.Channel) error { return ch.QueueUnbind(q, "k", "amq.topic", nil) })
		}
	})
	counts := map[rabbit.Outcome]int{}
	take := func() {
		for _, r := range p.Collect(nil) {
			counts[r.Outcome]++
		}
	}
	for i := range n {
		for errors.Is(p.TryPublish("amq.topic", "k", amqp.Publishing{MessageId: "same"}, i), rabbit.ErrWindowFull) {
			<-p.Ready()
			take()
		}
	}
	for take(); counts[rabbit.Confirmed]+counts[rabbit.Returned] < n; take() {
		<-p.Ready()
	}
	close(stop)
	flapping.Wait()
	require.NoError(t, p.Close(t.Context()))
	ready, _, err := conn.Inspect(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, counts[rabbit.Confirmed], ready)
	require.NotZero(t, counts[rabbit.Returned])
	require.NotZero(t, ready)
}

// One publish to a missing exchange kills the channel. The others are unknown, though they were stored; the reason is there.
func TestAMissingExchangeMakesItsNeighboursUnknown(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	q := queue(t, conn, quorum())
	p := publisher(t, conn, rabbit.PublisherOptions{})
	const n = 50
	for i := range n {
		if i == n/2 {
			require.NoError(t, p.Publish(t.Context(), "nosuch", q, amqp.Publishing{}, "bad"))
		}
		if err := p.Publish(t.Context(), "", q, amqp.Publishing{MessageId: strconv.Itoa(i)}, i); err != nil {
			require.Equal(t, amqp.NotFound, rabbit.Code(err), "%v", err)
			break
		}
	}
	await(t, "the publisher's end", p.Done(), soon)
	require.Equal(t, amqp.NotFound, rabbit.Code(p.Err()))
	confirmed := 0
	results := p.Collect(nil)
	for _, r := range results {
		require.NotEqual(t, rabbit.Returned, r.Outcome)
		if r.Outcome == rabbit.Confirmed {
			confirmed++
			continue
		}
		require.Equal(t, amqp.NotFound, rabbit.Code(r.Err), "%v", r.Err)
		require.NotErrorIs(t, r.Err, rabbit.ErrNacked)
	}
	require.GreaterOrEqual(t, len(results), n/2+1)
	err := p.Publish(t.Context(), "", q, amqp.Publishing{}, "late")
	require.Equal(t, amqp.NotFound, rabbit.Code(err), "nothing more is accepted")
	require.NoError(t, p.Close(t.Context()))
	require.NoError(t, conn.Err(), "the connection goes on")
	ready, _, err := conn.Inspect(t.Context(), q)
	require.NoError(t, err)
	require.GreaterOrEqual(t, ready, confirmed)
}

// The library makes all confirms false before it is seen that the channel is over; that never passes for a nack.
func TestTheEndOfAChannelIsNoNack(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	q := queue(t, conn, quorum())
	for range 60 {
		p := publisher(t, conn, rabbit.PublisherOptions{})
		for i := range 20 {
			require.NoError(t, p.Publish(t.Context(), "", q, amqp.Publishing{}, i))
		}
		require.NoError(t, p.Publish(t.Context(), "nosuch", q, amqp.Publishing{}, "bad"))
		await(t, "the publisher's end", p.Done(), soon)
		for _, r := range p.Collect(nil) {
			require.NotErrorIs(t, r.Err, rabbit.ErrNacked)
		}
	}
}

func TestANackIsUnknownAndSaysSo(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	full := queue(t, conn, amqp.Table{"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "reject-publish"})
	p := publisher(t, conn, rabbit.PublisherOptions{})
	require.NoError(t, p.PublishConfirmed(t.Context(), "", full, amqp.Publishing{}))
	require.NoError(t, p.Publish(t.Context(), "", full, amqp.Publishing{}, "m"))
	r := collect(t, p, 1)["m"]
	require.Equal(t, rabbit.Unknown, r.Outcome)
	require.ErrorIs(t, r.Err, rabbit.ErrNacked)
	require.ErrorIs(t, p.PublishConfirmed(t.Context(), "", full, amqp.Publishing{}), rabbit.ErrNacked)
	require.NoError(t, p.Close(t.Context()))
}

func TestTheWindowHoldsBack(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	q := queue(t, conn, quorum())
	p := publisher(t, conn, rabbit.PublisherOptions{Window: 3})
	for i := range 3 {
		require.NoError(t, p.TryPublish("", q, amqp.Publishing{Body: make([]byte, 10)}, i))
	}
	require.ErrorIs(t, p.TryPublish("", q, amqp.Publishing{}, 3), rabbit.ErrWindowFull)
	require.ErrorIs(t, p.Publish(short(t, 50*time.Millisecond), "", q, amqp.Publishing{}, 3), context.DeadlineExceeded)
	<-p.Ready()
	testkit.Eventually(t, soon, "all three outcomes", func() bool { _, bytes := p.InFlight(); return bytes == 0 })
	require.ErrorIs(t, p.TryPublish("", q, amqp.Publishing{}, 3), rabbit.ErrWindowFull, "a place is held until its outcome is collected")

	waiting := make(chan error, 1)
	go func() { waiting <- p.Publish(t.Context(), "", q, amqp.Publishing{}, 3) }()
	require.Len(t, p.Collect(nil), 3)
	require.NoError(t, <-waiting)
	collect(t, p, 1)

	require.NoError(t, p.Close(t.Context()))
}

// A queue that does not confirm stands at the head of the window; the outcomes of others come all the same.
func TestOneSilentQueueDoesNotHoldBackTheOthers(t *testing.T) {
	t.Parallel()
	broker := testkit.PrivateBroker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	silent, lively := queue(t, conn, quorum()), queue(t, conn, quorum())
	p := publisher(t, conn, rabbit.PublisherOptions{})
	require.NoError(t, p.PublishConfirmed(t.Context(), "", silent, amqp.Publishing{}))
	suspendQueue(t, broker, silent)
	require.NoError(t, p.Publish(t.Context(), "", silent, amqp.Publishing{}, "silent"))
	for i := range 200 {
		require.NoError(t, p.Publish(t.Context(), "", lively, amqp.Publishing{}, i))
	}
	for token, r := range collect(t, p, 200) {
		require.NotEqual(t, "silent", token)
		require.Equal(t, rabbit.Confirmed, r.Outcome)
	}
	messages, _ := p.InFlight()
	require.Equal(t, 1, messages)

	narrow := publisher(t, conn, rabbit.PublisherOptions{WindowBytes: 100})
	require.NoError(t, narrow.TryPublish("", silent, amqp.Publishing{Body: make([]byte, 1000)}, "larger than the window passes alone"))
	require.ErrorIs(t, narrow.TryPublish("", lively, amqp.Publishing{Body: make([]byte, 1)}, "next"), rabbit.ErrWindowFull)

	err := p.PublishConfirmed(short(t, 100*time.Millisecond), "", silent, amqp.Publishing{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "unknown")
	require.ErrorIs(t, p.Close(short(t, 100*time.Millisecond)), context.DeadlineExceeded)
	r := collect(t, p, 1)["silent"]
	require.Equal(t, rabbit.Unknown, r.Outcome)
	require.ErrorIs(t, r.Err, rabbit.ErrClosed)
}

// suspendQueue stops the queue's process inside the broker.
func suspendQueue(t *testing.T, broker *testkit.BrokerServer, name string) {
	t.Helper()
	broker.Ctl(t, "eval", fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)), `+
		`{Name, _} = amqqueue:get_pid(Q), sys:suspend(Name).`, name))
}

// Connections are killed at random moments under many publishers: one outcome for each accepted publish, and all that is confirmed is there.
func TestExactlyOneOutcomeWhateverHappens(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	admin := dial(t, rabbit.Options{URL: broker.URL})
	q := queue(t, admin, quorum())
	var confirmed atomic.Int64
	for round := range 6 {
		conn := dial(t, rabbit.Options{URL: broker.URL})
		p := publisher(t, conn, rabbit.PublisherOptions{Window: 100})
		end := make(chan struct{})
		time.AfterFunc(time.Duration(rand.IntN(60))*time.Millisecond, func() {
			defer close(end)
			if round%3 == 0 {
				_ = conn.Close()
			} else {
				conn.Abort(context.Canceled)
			}
		})
		var accepted, sync atomic.Int64
		var publishers errgroup.Group
		for g := range 4 {
			publishers.Go(func() error {
				for i := 0; ; i++ {
					if g == 0 {
						if err := p.PublishConfirmed(t.Context(), "", q, amqp.Publishing{}); err == nil {
							sync.Add(1)
						} else {
							return nil
						}
						continue
					}
					if err := p.Publish(t.Context(), "", q, amqp.Publishing{MessageId: "x"}, fmt.Sprintf("%d/%d", g, i)); err != nil {
						return nil //nolint:nilerr // over
					}
					accepted.Add(1)
				}
			})
		}
		results := map[any]bool{}
		take := func() {
			for _, r := range p.Collect(nil) {
				if results[r.Token] {
					t.Errorf("second outcome for %v", r.Token)
				}
				results[r.Token] = true
				if r.Outcome == rabbit.Confirmed {
					confirmed.Add(1)
				} else if errors.Is(r.Err, rabbit.ErrNacked) {
					t.Errorf("the end of the connection passed for a nack")
				}
			}
		}
	collecting:
		for {
			select {
			case <-p.Ready():
				take()
			case <-p.Done():
				break collecting
			}
		}
		require.NoError(t, publishers.Wait())
		take()
		<-end
		require.Len(t, results, int(accepted.Load()))
		require.Error(t, p.Err())
		confirmed.Add(sync.Load())
	}
	testkit.Eventually(t, soon, "all that is confirmed in the queue", func() bool {
		ready, _, err := admin.Inspect(t.Context(), q)
		return err == nil && int64(ready) >= confirmed.Load()
	})
}

func TestAClosedPublisherTakesNoMore(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	q := queue(t, conn, quorum())
	p := publisher(t, conn, rabbit.PublisherOptions{})
	for i := range 100 {
		require.NoError(t, p.Publish(t.Context(), "", q, amqp.Publishing{}, i))
	}
	require.NoError(t, p.Close(t.Context()), "waits for what is in flight")
	require.ErrorIs(t, p.Err(), rabbit.ErrClosed)
	for _, r := range collect(t, p, 100) {
		require.Equal(t, rabbit.Confirmed, r.Outcome)
	}
	require.ErrorIs(t, p.Publish(t.Context(), "", q, amqp.Publishing{}, 1), rabbit.ErrClosed)
	require.ErrorIs(t, p.TryPublish("", q, amqp.Publishing{}, 1), rabbit.ErrClosed)
	require.ErrorIs(t, p.PublishConfirmed(t.Context(), "", q, amqp.Publishing{}), rabbit.ErrClosed)
	require.NoError(t, p.Close(t.Context()), "twice")
	_, err := conn.Publisher(t.Context(), rabbit.PublisherOptions{Window: -1})
	require.Error(t, err)
}
