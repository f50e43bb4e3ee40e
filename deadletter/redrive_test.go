package deadletter_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/message"
)

func TestRedriveMovesAllInOrderAndRecordsIt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, ids := batch("m", 300, "order.paid")
	s.fill(dlq, letters...)
	result, err := s.redrive()
	require.NoError(t, err)
	require.Equal(t, 300, result.Found)
	require.Equal(t, 300, result.Done)
	require.Zero(t, result.Left)
	require.Equal(t, []deadletter.Group{{Type: "order.paid", ErrorClass: "transient", Count: 300}}, result.Groups)
	require.Equal(t, ids, s.ids(work))
	require.Zero(t, s.count(dlq))

	rows := s.audit()
	require.Len(t, rows, 302)
	require.Equal(t, auditRow{"dlq redrive", "ann@test", "", "started", ""}, rows[0])
	require.Equal(t, auditRow{"dlq redrive", "ann@test", "m00000", "redriven", ""}, rows[1])
	require.Equal(t, "finished", rows[301].Outcome)
}

func TestRedriveHeaders(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	m := letter("one", "order.paid", "transient", "boom")
	m.Headers[message.HeaderRedriveCount] = int64(1)
	m.Headers[message.HeaderTraceParent] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	m.Headers["x-opt-thing"], m.Headers["CC"], m.Headers["x-delivery-count"] = "x", []any{}, int64(3)
	m.Headers["x-death"] = []any{amqp.Table{"queue": work, "reason": "expired", "count": int64(1)}}
	m.Priority, m.CorrelationId, m.AppId, m.ReplyTo = 3, "corr", "shop", "answers"
	m.Timestamp = time.Unix(1_700_000_000, 0)
	s.fill(dlq, m)
	result, err := s.redrive()
	require.NoError(t, err)
	got := s.take(work)[0]
	require.Equal(t, m.Body, got.Body)
	require.Equal(t, []any{m.MessageId, m.Type, m.CorrelationId, m.AppId, m.ReplyTo, m.Priority, m.ContentType, m.Timestamp.Unix()},
		[]any{got.MessageId, got.Type, got.CorrelationId, got.AppId, got.ReplyTo, got.Priority, got.ContentType, got.Timestamp.Unix()})
	want := message.Clean(m.Headers)
	message.ClearFailure(want)
	want[message.HeaderRedriveCount] = int64(2)
	want[message.HeaderRedriveRun] = result.Run.String()
	want[message.HeaderReprocess] = got.Headers[message.HeaderReprocess]
	delete(got.Headers, "x-delivery-count")
	require.Equal(t, want, got.Headers)
	require.WithinDuration(t, time.Now(), message.Time(got.Headers, message.HeaderReprocess), time.Minute)
	require.Zero(t, message.Attempts(got.Headers))
}

func TestRedriveFilters(t *testing.T) {
	t.Parallel()
	now := time.Now()
	old := letter("old", "order.paid", "transient", "x")
	old.Headers[message.HeaderLastFailedAt] = now.Add(-time.Hour).UTC().Format(time.RFC3339Nano)
	for name, c := range map[string]struct {
		filter deadletter.Filter
		max    int
		want   []string
	}{
		"all":            {want: []string{"old", "a", "b", "c"}},
		"max":            {max: 2, want: []string{"old", "a"}},
		"type":           {filter: deadletter.Filter{Type: "order.cancelled"}, want: []string{"b"}},
		"type and max":   {filter: deadletter.Filter{Type: "order.paid"}, max: 2, want: []string{"old", "a"}},
		"class":          {filter: deadletter.Filter{ErrorClass: "permanent"}, want: []string{"c"}},
		"error contains": {filter: deadletter.Filter{ErrorContains: "PROVIDER SAID"}, want: []string{"a"}},
		"ids":            {filter: deadletter.Filter{IDs: []string{"c", "a", "none"}}, want: []string{"a", "c"}},
		"since":          {filter: deadletter.Filter{Since: now.Add(-time.Minute)}, want: []string{"a", "b", "c"}},
		"nothing":        {filter: deadletter.Filter{Type: "nothing"}, want: []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.fill(dlq, old, letter("a", "order.paid", "transient", "provider said 503"),
				letter("b", "order.cancelled", "transient", "other"), letter("c", "order.paid", "permanent", "bad"))
			choose := func(r *deadletter.RedriveRequest) { r.Filter, r.Max = c.filter, c.max }
			plan, err := s.redrive(choose, func(r *deadletter.RedriveRequest) { r.DryRun = true })
			require.NoError(t, err)
			require.Equal(t, 4, s.count(dlq))
			require.Empty(t, s.audit(), "a dry run changes nothing")
			result, err := s.redrive(choose)
			require.NoError(t, err)
			require.Equal(t, c.want, s.ids(work))
			require.Equal(t, []any{len(c.want), plan.Groups, plan.Left}, []any{plan.Done, result.Groups, result.Left})
			rest := slices.DeleteFunc([]string{"old", "a", "b", "c"}, func(id string) bool { return slices.Contains(c.want, id) })
			require.Equal(t, rest, s.ids(dlq))
		})
	}
}

// One in a hundred matches, and the rest is a hundred times the window: what does not match must be passed over, and stay in order.
func TestRedrivePassesOverManyTimesTheWindow(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(o *deadletter.Options) { o.Window = 20 })
	letters, ids := batch("x", 2000, "noise")
	var wanted []string
	for i := 99; i < 2000; i += 100 {
		letters[i].Type = "order.paid"
		wanted = append(wanted, ids[i])
	}
	rest := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(wanted, id) })
	s.fill(dlq, letters...)
	result, err := s.redrive(only(deadletter.Filter{Type: "order.paid"}))
	require.NoError(t, err)
	require.Equal(t, 20, result.Done)
	require.Equal(t, deadletter.Left{NotMatching: 1980}, result.Left)
	require.Equal(t, wanted, s.ids(work))
	require.Equal(t, rest, s.ids(dlq))
}

func TestRedriveHoldsRepeatersBack(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for i := range 5 {
		m := letter(strconv.Itoa(i), "order.paid", "transient", "x")
		m.Headers[message.HeaderRedriveCount] = strconv.Itoa(i) // other tools write text
		s.fill(dlq, m)
		s.waitFor(dlq, i+1)
	}
	result, err := s.redrive()
	require.NoError(t, err)
	require.Equal(t, 3, result.Done)
	require.Equal(t, deadletter.Left{Repeaters: 2}, result.Left)
	require.Equal(t, []string{"0", "1", "2"}, s.ids(work))
	result, err = s.redrive(func(r *deadletter.RedriveRequest) { r.IncludeRepeaters = true })
	require.NoError(t, err)
	require.Equal(t, 2, result.Done)
	require.Equal(t, int64(4), s.take(work)[0].Headers[message.HeaderRedriveCount])
}

// A handler that still fails puts letters back while the redrive runs: each is moved once. Also when somebody else takes letters, so
// that those that died again come before the count of the start is reached.
func TestRedriveDoesNotMoveWhatDiesAgain(t *testing.T) {
	t.Parallel()
	for _, taken := range []int{0, 50} {
		t.Run(fmt.Sprintf("taken %d", taken), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			letters, _ := batch("m", 200, "order.paid")
			s.fill(dlq, letters...)
			failed := s.failAgain(200 - taken)
			result, err := s.redrive(func(r *deadletter.RedriveRequest) {
				r.Rate = 400
				r.Confirm = func(context.Context, deadletter.Result) error {
					for range taken {
						_, ok, err := s.ch.Get(dlq, true)
						require.True(t, ok && err == nil, "%v", err)
					}
					return nil
				}
			})
			require.NoError(t, err)
			require.Equal(t, 200-taken, result.Done)
			require.NoError(t, <-failed)
			s.waitFor(dlq, 200-taken)
			for _, d := range s.take(dlq) {
				require.Equal(t, int64(1), d.Headers[message.HeaderRedriveCount])
			}
		})
	}
}

// failAgain consumes n messages and puts each into the dead-letter queue.
func (s *stage) failAgain(n int) <-chan error {
	s.Helper()
	ch, err := s.conn.Channel()
	require.NoError(s, err)
	deliveries, err := ch.Consume(work, "", true, false, false, false, nil)
	require.NoError(s, err)
	done := make(chan error, 1)
	go func() {
		for range n {
			d, ok := <-deliveries
			if !ok {
				done <- amqp.ErrClosed
				return
			}
			if err := ch.PublishWithContext(s.Context(), "", dlq, true, false, message.Republishing(&d)); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	return done
}

func TestRedriveRefusesAnotherQueuesLetter(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	stray := letter("stray", "order.paid", "transient", "x")
	stray.Headers[message.HeaderOriginQueue] = "billing"
	s.fill(dlq, stray, letter("own", "order.paid", "transient", "x"))
	result, err := s.redrive()
	require.NoError(t, err)
	require.Equal(t, deadletter.Left{OtherOrigin: 1}, result.Left)
	require.Equal(t, "stray", result.Problems[0].ID)
	require.Equal(t, []string{"own"}, s.ids(work))
	require.Equal(t, []string{"stray"}, s.ids(dlq))
}

func TestRedriveKeepsTheLetterWhenTheTargetIsMissing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, ids := batch("m", 50, "order.paid")
	s.fill(dlq, letters...)
	_, err := s.ch.QueueDelete(work, false, false, false)
	require.NoError(t, err)
	_, err = s.redrive()
	require.ErrorIs(t, err, deadletter.ErrNoQueue)
	require.Equal(t, ids, s.ids(dlq))
}

// The target vanishes in the middle: the broker returns the message, and the letter stays.
func TestRedriveKeepsTheLetterWhenTheTargetVanishes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, ids := batch("m", 50, "order.paid")
	s.fill(dlq, letters...)
	result, err := s.redrive(func(r *deadletter.RedriveRequest) {
		r.Confirm = func(_ context.Context, _ deadletter.Result) error {
			_, err := s.ch.QueueDelete(work, false, false, false)
			return err
		}
	})
	require.ErrorIs(t, err, deadletter.ErrNoQueue)
	require.Zero(t, result.Done)
	require.Positive(t, result.Left.Undelivered)
	require.Equal(t, ids, s.ids(dlq))
}

func TestRedriveStopsAtAFullTarget(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, err := s.ch.QueueDelete(work, false, false, false)
	require.NoError(t, err)
	s.declare(work, amqp.Table{"x-max-length": int32(5), "x-overflow": "reject-publish"})
	letters, ids := batch("m", 60, "order.paid")
	s.fill(dlq, letters...)
	result, err := s.redrive(func(r *deadletter.RedriveRequest) { r.Rate = 100 })
	require.ErrorIs(t, err, deadletter.ErrRefusedByQueue)
	require.Positive(t, result.Done)
	require.Less(t, result.Done, 60)
	all := append(s.ids(work), s.ids(dlq)...)
	slices.Sort(all)
	require.Equal(t, ids, slices.Compact(all), "none is lost")
}

// The broker's own dead letter, redriven, fails once more and takes the retry tier: with a copied x-death it would
// vanish there on RabbitMQ 3.10.
func TestRedrivenBrokerLetterSurvivesTheRetryTier(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	m := letter("m", "order.paid", "", "")
	m.Headers = amqp.Table{"tenant": "acme"}
	s.fill(work, m)
	for range 3 { // the limit of 2 gives 3 deliveries
		require.NoError(t, s.get().Reject(true))
	}
	s.waitFor(dlq, 1)
	letters, err := s.letters.Show(t.Context(), deadletter.ShowRequest{Queue: work, Who: "ann"})
	require.NoError(t, err)
	require.Nil(t, letters[0].Failure)
	require.Equal(t, "delivery_limit", letters[0].Death.Reason)
	require.Equal(t, "delivery_limit", letters[0].ErrorClass)
	require.WithinDuration(t, time.Now(), letters[0].DiedAt.Time, time.Minute)

	result, err := s.redrive(only(deadletter.Filter{ErrorClass: "delivery_limit", Since: time.Now().Add(-time.Hour)}))
	require.NoError(t, err)
	require.Equal(t, 1, result.Done)
	d := s.get()
	s.fill(work+".retry", message.Republishing(&d))
	require.NoError(t, d.Ack(false))
	s.waitFor(work, 1)
	require.Equal(t, []string{"m"}, s.ids(work))
	require.NotContains(t, d.Headers, "x-death")
	require.Equal(t, message.Origin{RoutingKey: work, Queue: work}, message.OriginOf(d.Headers))
}

func (s *stage) get() amqp.Delivery {
	s.Helper()
	s.waitFor(work, 1)
	d, ok, err := s.ch.Get(work, false)
	require.NoError(s, err)
	require.True(s, ok)
	return d
}

func TestRedriveRateAndSessions(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(o *deadletter.Options) { o.SessionLimit = 300 * time.Millisecond })
	letters, ids := batch("m", 40, "order.paid")
	for i := range letters {
		if i%2 == 1 {
			letters[i].Type = "noise"
		}
	}
	s.fill(dlq, letters...)
	began := time.Now()
	result, err := s.redrive(only(deadletter.Filter{Type: "order.paid"}), func(r *deadletter.RedriveRequest) { r.Rate = 15 })
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(began), 19*time.Second/15)
	require.Equal(t, 20, result.Done)
	require.Equal(t, deadletter.Left{NotMatching: 20}, result.Left)
	var even, odd []string
	for i, id := range ids {
		if i%2 == 0 {
			even = append(even, id)
		} else {
			odd = append(odd, id)
		}
	}
	require.Equal(t, even, s.ids(work))
	rest := s.take(dlq)
	require.Equal(t, odd, idsOf(rest))
	returned, _ := message.Integer(rest[0].Headers["x-delivery-count"])
	require.GreaterOrEqual(t, returned, int64(4), "held letters were given back now and then")
}

// What dies while the redrive runs was not there at the start.
func TestRedriveLeavesWhatComesLater(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	before, old := batch("a", 60, "order.paid")
	after, later := batch("b", 60, "order.paid")
	s.fill(dlq, before...)
	result, err := s.redrive(func(r *deadletter.RedriveRequest) {
		r.Confirm = func(_ context.Context, plan deadletter.Result) error {
			require.Equal(t, 60, plan.Done)
			s.fill(dlq, after...)
			return nil
		}
	})
	require.NoError(t, err)
	require.Equal(t, []int{60, 60}, []int{result.Found, result.Done})
	require.Equal(t, old, s.ids(work))
	require.Equal(t, later, s.ids(dlq))
}
