package deadletter_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

func show(limit int) deadletter.ShowRequest {
	return deadletter.ShowRequest{Queue: work, Who: "ann", Limit: limit}
}

// lookOften looks in every way there is; whatever was there must be there afterwards, in its order.
func lookOften(t *testing.T, s *stage, looks int) {
	t.Helper()
	letters, ids := batch("m", 300, "order.paid")
	s.fill(dlq, letters...)
	for i := range looks {
		r := show([]int{1, 10, 50, 300}[i%4])
		if i%5 == 4 {
			r.Filter = deadletter.Filter{IDs: []string{"m00299"}}
		}
		got, err := s.letters.Show(t.Context(), r)
		require.NoError(t, err)
		require.Equal(t, 300, s.count(dlq), "all are back when the look is over")
		if i%5 == 4 {
			require.Equal(t, []any{1, 300}, []any{len(got), got[0].Position})
			continue
		}
		require.Len(t, got, r.Limit)
		for j, l := range got {
			require.Equal(t, ids[j], l.ID, "look %d", i)
		}
	}
	require.Equal(t, ids, s.ids(dlq))
}

func TestHundredLooksChangeNothing(t *testing.T) {
	t.Parallel()
	lookOften(t, newStage(t), 100)
}

// So small a window makes many generations of consumers, which the broker has to give back in order.
func TestLooksThatSearchDeepKeepTheOrder(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(o *deadletter.Options) { o.ReadAhead = 1 })
	letters, ids := batch("m", 3000, "order.paid")
	s.fill(dlq, letters...)
	for range 3 {
		r := show(1)
		r.Filter.IDs = []string{"m02999"}
		got, err := s.letters.Show(t.Context(), r)
		require.NoError(t, err)
		require.Equal(t, 3000, got[0].Position)
	}
	require.Equal(t, ids, s.ids(dlq))
}

func TestLooksExcludeEachOther(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, ids := batch("m", 20, "order.paid")
	s.fill(dlq, letters...)
	var inside error
	_, err := s.redrive(func(r *deadletter.RedriveRequest) {
		r.Max = 1
		r.Confirm = func(ctx context.Context, _ deadletter.Result) error {
			_, inside = s.letters.Show(ctx, show(1))
			depths, err := s.letters.List(ctx, deadletter.ListRequest{Who: "bob"})
			require.NoError(t, err)
			require.Contains(t, depths[0].Note, "in use by ann@test (dlq redrive since ")
			return errors.New("declined")
		}
	})
	require.EqualError(t, err, "declined")
	locked, ok := errors.AsType[*deadletter.LockedError](inside)
	require.True(t, ok, "%v", inside)
	require.Regexp(t, `^orders\.saga\.dlq is in use by ann@test`, inside.Error())
	require.Equal(t, []string{"ann@test", "dlq redrive"}, []string{locked.Holder.Who, locked.Holder.Action})
	require.Equal(t, ids, s.ids(dlq))
}

// What a redrive holds is not ready, and a queue that it works on is not empty.
func TestListSaysWhoHoldsTheLetters(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, ids := batch("m", 3, "order.paid")
	s.fill(dlq, letters...)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.letters.Redrive(ctx, deadletter.RedriveRequest{Common: deadletter.Common{Queue: work, Who: "ann@test", Rate: 0.01}})
		done <- err
	}()
	s.waitFor(work, 1)
	list := func(d *deadletter.DeadLetters) deadletter.Depth {
		depths, err := d.List(t.Context(), deadletter.ListRequest{Who: "bob"})
		require.NoError(t, err)
		require.Contains(t, depths[0].Note, "in use by ann@test (dlq redrive since ")
		return depths[0]
	}
	testkit.Eventually(t, 20*time.Second, "the held letters to be counted", func() bool { return list(s.letters).Letters == 2 })
	require.Equal(t, 2, list(s.letters).Held)
	blind := list(s.deadLetters(func(o *deadletter.Options) { o.ManagementURL = "" }))
	require.Contains(t, blind.Note, "not counted without the management URL")
	stop()
	require.ErrorIs(t, <-done, context.Canceled)
	after, err := s.letters.List(t.Context(), deadletter.ListRequest{Who: "bob"})
	require.NoError(t, err)
	require.Equal(t, []any{2, 0, ""}, []any{after[0].Letters, after[0].Held, after[0].Note})
	require.Equal(t, ids, append(s.ids(work), s.ids(dlq)...))
}

// A dead process's lock says nothing about the queue once it has expired.
func TestListIgnoresAnExpiredLock(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.fill(dlq, letter("m", "order.paid", "transient", "x"))
	_, err := s.redrive(func(r *deadletter.RedriveRequest) {
		r.Confirm = func(ctx context.Context, _ deadletter.Result) error {
			_, err := s.db.Pool.Exec(ctx, "UPDATE "+s.db.Schema+".dlq_lock SET expires_at = now() - interval '1 s'")
			require.NoError(t, err)
			depths, err := s.letters.List(ctx, deadletter.ListRequest{Who: "bob"})
			require.NoError(t, err)
			require.Empty(t, depths[0].Note)
			return errors.New("declined")
		}
	})
	require.Error(t, err)
}

// A lock that another operation took over ends the operation that had it, and what it held stays.
func TestLostLockStopsTheRun(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(o *deadletter.Options) { o.Lease = 3 * time.Second })
	letters, ids := batch("m", 100, "order.paid")
	s.fill(dlq, letters...)
	result, err := s.redrive(func(r *deadletter.RedriveRequest) {
		r.Rate = 10
		r.Confirm = func(ctx context.Context, _ deadletter.Result) error {
			_, err := s.db.Pool.Exec(ctx, "UPDATE "+s.db.Schema+".dlq_lock SET token = gen_random_uuid()")
			return err
		}
	})
	require.ErrorIs(t, err, deadletter.ErrLockLost)
	require.Less(t, result.Done, 100)
	require.Equal(t, ids, append(s.ids(work), s.ids(dlq)...))
}

func TestList(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.declare("other.dlq", amqp.Table{"x-delivery-limit": int32(1_000_000)})
	s.declare("risky.dlq", amqp.Table{})
	m := letter("old", "order.paid", "transient", "x")
	m.Headers[message.HeaderLastFailedAt] = time.Now().Add(-time.Hour).UTC().Format(time.RFC3339Nano)
	s.fill(dlq, m, letter("new", "order.paid", "transient", "x"))
	s.fill("risky.dlq", letter("r", "order.paid", "transient", "x"))

	depths, err := s.letters.List(t.Context(), deadletter.ListRequest{Who: "ann"})
	require.NoError(t, err)
	require.Len(t, depths, 1)
	require.Equal(t, []any{work, dlq, "team-orders", 2}, []any{depths[0].Queue, depths[0].DLQ, depths[0].Owner, depths[0].Letters})
	require.InDelta(t, 3600, depths[0].OldestSeconds, 30)

	depths, err = s.letters.List(t.Context(), deadletter.ListRequest{Who: "ann", All: true})
	require.NoError(t, err)
	require.Equal(t, []string{work, "other", "risky"}, []string{depths[0].Queue, depths[1].Queue, depths[2].Queue})
	require.Contains(t, depths[2].Note, "not be safe")

	_, err = s.redrive()
	require.NoError(t, err)
	depths, err = s.letters.List(t.Context(), deadletter.ListRequest{Who: "ann"})
	require.NoError(t, err)
	require.Zero(t, depths[0].OldestSeconds)
}

func TestUnsafeQueuesAreNotLookedAt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for name, args := range map[string]amqp.Table{"none.dlq": {}, "low.dlq": {"x-delivery-limit": int32(20)}} {
		s.declare(name, args)
		_, err := s.letters.Show(t.Context(), deadletter.ShowRequest{Queue: name, Who: "ann"})
		require.ErrorIs(t, err, deadletter.ErrUnsafe, name)
	}
	_, err := s.letters.Show(t.Context(), deadletter.ShowRequest{Queue: "nowhere", Who: "ann"})
	require.ErrorIs(t, err, deadletter.ErrNoDLQ)
}

func TestShowTellsEverything(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	m := letter("one", "order.paid", "transient", "provider said 503")
	m.CorrelationId = "corr"
	m.Body = []byte(strings.Repeat("ä", 400))
	binary := letter("two", "order.paid", "transient", "x")
	binary.Body = []byte{0xff, 0xfe, 0}
	s.fill(dlq, m, binary)
	r := show(2)
	r.Preview = 5
	got, err := s.letters.Show(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, "transient", got[0].Failure.Class)
	require.Equal(t, 5, got[0].Failure.Log[0].Number)
	require.Equal(t, 800, got[0].Size)
	text, err := json.Marshal(got)
	require.NoError(t, err)
	require.Contains(t, string(text), `{"text":"ää","truncated":true}`)
	require.Contains(t, string(text), `{"base64":"//4A","truncated":false}`)
	require.Contains(t, string(text), `"tenant":"acme"`)
}

// Texts made to break a terminal, a page, a database or a frame: they are shown, redriven and recorded like any other.
func TestHostileLetters(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	hostile := []string{
		"\x1b[2J\x1b]0;owned\x07", "<script>alert(1)</script>", "\u202egnp.exe", strings.Repeat("x", 255), "a\xff\xfe\x00b", "",
		"'; DROP TABLE audit; --",
	}
	for i, text := range hostile {
		m := letter(text, text, text, text+strings.Repeat("y", 300))
		m.Headers[message.HeaderKey] = text
		m.Headers["x\xff"+strconv.Itoa(i)] = amqp.Table{"deep": []any{amqp.Table{"\x1b": []byte(text)}}}
		m.Headers[message.HeaderRedriveCount] = []any{"not", "a", "number"}
		m.Headers["x-death"] = []any{"nonsense", amqp.Table{"queue": 7, "count": "x", "routing-keys": "no"}}
		m.Headers["big"] = strings.Repeat("z", 60_000)
		s.fill(dlq, m)
		s.waitFor(dlq, i+1)
	}
	got, err := s.letters.Show(t.Context(), show(100))
	require.NoError(t, err)
	require.Len(t, got, len(hostile))
	_, err = json.Marshal(got)
	require.NoError(t, err)
	result, err := s.redrive()
	require.NoError(t, err)
	require.Equal(t, len(hostile), result.Done, "%+v", result)
	require.Equal(t, hostile, s.ids(work))
}
