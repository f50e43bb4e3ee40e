package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

func TestEveryErrorHasItsFate(t *testing.T) {
	t.Parallel()
	stopped, stop := context.WithCancelCause(context.Background())
	stop(resilience.ErrShutdown)
	late, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	live := context.Background()
	broken := fmt.Errorf("read: %w", io.ErrUnexpectedEOF)
	for _, c := range []struct {
		name     string
		ctx      context.Context
		err      error
		attempts int
		action   action
		class    resilience.Class
		counted  int
		poison   bool
	}{
		{"unknown error", live, errors.New("x"), 0, actRetry, resilience.ClassUnknown, 1, false},
		{"last attempt", live, errors.New("x"), 4, actDead, resilience.ClassUnknown, 5, false},
		{"more attempts than allowed", live, errors.New("x"), 1000, actDead, resilience.ClassUnknown, 1001, false},
		{"permanent", live, fmt.Errorf("wrapped: %w", Permanent(errors.New("x"))), 0, actDead, resilience.ClassPermanent, 1, true},
		{"malformed", live, &MalformedError{errors.New("x")}, 2, actDead, ClassMalformed, 3, true},
		{"unknown type", live, &UnknownTypeError{"x"}, 0, actDead, ClassUnknownType, 1, true},
		{"panic", live, &PanicError{Value: "x"}, 0, actDead, ClassPanic, 1, true},
		{"crash", live, &crashError{3}, 5, actDead, ClassCrash, 5, false},
		{"deadline", late, context.DeadlineExceeded, 0, actRetry, resilience.ClassTimeout, 1, false},
		{"unavailable", live, Unavailable(errors.New("x")), 0, actHold, resilience.ClassUnavailable, 0, false},
		{"stopped", stopped, fmt.Errorf("call: %w", context.Canceled), 0, actReturn, resilience.ClassShutdown, 0, false},
		{"stopped, told as something else", stopped, errors.New("signal: killed"), 4, actReturn, resilience.ClassShutdown, 4, false},
		{"stopped, but permanent all the same", stopped, Permanent(errors.New("x")), 0, actDead, resilience.ClassPermanent, 1, true},
		{"no connection", live, &databaseError{"acquire", errors.New("refused"), true}, 0, actHold, resilience.ClassUnavailable, 0, false},
		{"no connection in time", late, &databaseError{"acquire", context.DeadlineExceeded, true}, 0, actHold, resilience.ClassUnavailable, 0, false},
		{"connection lost under the handler", live, &databaseError{"handler", broken, false}, 0, actHold, resilience.ClassUnavailable, 0, false},
		{"handler's own deadline closed the connection", late, &databaseError{"commit", context.DeadlineExceeded, false}, 0, actRetry, resilience.ClassTimeout, 1, false},
		{"data that the database refuses", live, &databaseError{"mark", &pgconn.PgError{Code: "22021"}, true}, 0, actRetry, resilience.ClassUnknown, 1, false},
		{"server going down", live, &databaseError{"commit", &pgconn.PgError{Code: "57P01"}, false}, 0, actHold, resilience.ClassUnavailable, 0, false},
		{"deadlock at commit", live, &databaseError{"commit", &pgconn.PgError{Code: "40001"}, false}, 0, actRetry, resilience.ClassDatabaseRetry, 1, false},
		{"the same lost connection, but the handler's own", live, broken, 0, actRetry, resilience.ClassTransient, 1, false},
	} {
		class := Options{}.classOf(c.ctx, c.err)
		require.Equal(t, c.class, class, c.name)
		v := judge(class, c.err, c.attempts, 5)
		require.Equal(t, c.action, v.action, c.name)
		require.Equal(t, c.counted, v.attempts, c.name)
		require.Equal(t, c.poison, v.poison, c.name)
	}
}

func TestNoSettingEvadesTheAbsenceOfTheDatabase(t *testing.T) {
	t.Parallel()
	circuit := Unavailable(errors.New("circuit open"))
	require.False(t, Options{Absence: AbsenceHold}.evades(circuit))
	require.True(t, Options{Absence: AbsenceRetry}.evades(circuit))
	require.False(t, Options{Absence: AbsenceRetry}.evades(&databaseError{"acquire", errors.New("refused"), true}))
}

func TestTheLadderAndWhatRetryAfterAsksFor(t *testing.T) {
	t.Parallel()
	ladder := []Tier{{Queue: "s", Delay: 10 * time.Second}, {Queue: "m", Delay: time.Minute}, {Queue: "l", Delay: 10 * time.Minute}}
	for _, c := range []struct {
		attempts int
		delay    time.Duration
		queue    string
		late     bool
	}{
		{1, 0, "s", false},
		{2, 0, "m", false},
		{3, 0, "l", false},
		{9, 0, "l", false},
		{0, 0, "s", false},
		{1, time.Second, "s", false},
		{3, 10 * time.Second, "s", false},
		{1, 10*time.Second + 1, "m", false},
		{1, 10 * time.Minute, "l", false},
		{1, time.Hour, "l", true},
	} {
		tier, late := tierFor(ladder, c.attempts, c.delay)
		require.Equal(t, c.queue, tier.Queue, c)
		require.Equal(t, c.late, late, c)
	}
	v := judge(resilience.ClassTransient, RetryAfter(errors.New("x"), 48*time.Hour), 0, 5)
	require.Equal(t, 24*time.Hour, v.delay, "a day at most")
}

func TestFailuresAreNamedByWhatSaysSomething(t *testing.T) {
	t.Parallel()
	require.Equal(t, "pgconn.PgError", typeOf(&databaseError{"commit", fmt.Errorf("x: %w", &pgconn.PgError{Code: "23505"}), false}))
	require.Equal(t, "errors.errorString", typeOf(Permanent(fmt.Errorf("x: %w", errors.New("y")))))
	require.Equal(t, "consumer.PanicError", typeOf(&PanicError{}))
}

func TestGuardKeepsThePanicsStack(t *testing.T) {
	t.Parallel()
	err := Options{}.guard(t.Context(), func() error { panic("boom\x00") })
	var panicked *PanicError
	require.ErrorAs(t, err, &panicked)
	require.Contains(t, panicked.Stack, "decide_test.go")
	f := failureOf(err, ClassPanic, Options{})
	require.Equal(t, "panic: boom", f.Message, "no NUL bytes")
}

func TestKeysOfMessages(t *testing.T) {
	t.Parallel()
	id := message.NewID()
	require.Equal(t, id, pg.InboxKey(id).String())
	require.NotEqual(t, pg.InboxKey("a"), pg.InboxKey("b"))
	require.NotEqual(t, id, pg.InboxKey("{"+id+"}").String(), "only the canonical form stands for itself")
}

func TestSoloExcludes(t *testing.T) {
	t.Parallel()
	s := NewSolo()
	first, err := s.enter(t.Context(), false)
	require.NoError(t, err)
	second, err := s.enter(t.Context(), false)
	require.NoError(t, err)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = s.enter(short, true)
	require.ErrorIs(t, err, context.DeadlineExceeded, "others run")
	third, err := s.enter(t.Context(), false)
	require.NoError(t, err, "who gave up holds nobody back")
	third()

	alone := make(chan func())
	go func() {
		leave, _ := s.enter(context.WithoutCancel(t.Context()), true)
		alone <- leave
	}()
	first()
	first() // a second call does nothing
	second()
	leave := <-alone
	short, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = s.enter(short, false)
	require.ErrorIs(t, err, context.DeadlineExceeded, "one runs alone")
	leave()
	fourth, err := s.enter(t.Context(), false)
	require.NoError(t, err)
	fourth()
}
