package deadletter_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

func (s *stage) scan() deadletter.ScanResult {
	s.Helper()
	result, err := s.letters.Scan(s.Context(), deadletter.ScanRequest{Queue: work, Who: "test"})
	require.NoError(s, err)
	return result
}

// indexRow is a row of the index with its group.
type indexRow struct {
	ID, Class, Gone string
	Copies          int
}

func (s *stage) indexRows() []indexRow {
	s.Helper()
	rows, err := s.db.Pool.Query(s.Context(), `SELECT l.message_id, g.class, l.gone, l.copies FROM `+s.db.Schema+`.dlq_letters l
JOIN `+s.db.Schema+`.dlq_groups g ON g.id = l.group_id ORDER BY l.message_id, g.class`)
	require.NoError(s, err)
	var all []indexRow
	for rows.Next() {
		var r indexRow
		require.NoError(s, rows.Scan(&r.ID, &r.Class, &r.Gone, &r.Copies))
		all = append(all, r)
	}
	require.NoError(s, rows.Err())
	return all
}

// A scan finds what no consumer of ours has indexed, counts copies, marks what vanished, and changes nothing in the queue.
func TestAScanBringsTheIndexIntoLineAndChangesNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	foreign := amqp.Publishing{Type: "x", Body: []byte("no id"), DeliveryMode: amqp.Persistent}
	died := letter("broker", "order.paid", "", "")
	died.Headers = amqp.Table{"tenant": "acme"}
	s.fill(work, died)
	for range 3 { // the limit of 2 gives 3 deliveries
		require.NoError(t, s.get().Reject(true))
	}
	s.waitFor(dlq, 1)
	a, b := letter("a", "order.paid", "transient", "provider said 503"), letter("b", "order.paid", "permanent", "bad")
	s.fill(dlq, a, b, a, foreign, foreign)
	s.waitFor(dlq, 6)
	require.Equal(t, deadletter.ScanResult{Seen: 6}, s.scan())
	want := []indexRow{{"", "", "", 2}, {"a", "transient", "", 2}, {"b", "permanent", "", 1}, {"broker", "delivery_limit", "", 1}}
	require.Equal(t, want, s.indexRows())
	require.Equal(t, deadletter.ScanResult{Seen: 6}, s.scan(), "again: the same")
	require.Equal(t, want, s.indexRows())

	require.Equal(t, []string{"broker", "a", "b", "a", "", ""}, s.ids(dlq), "nothing has changed; and now all is taken")
	s.fill(dlq, b)
	require.Equal(t, deadletter.ScanResult{Seen: 1, Vanished: 3}, s.scan())
	require.Equal(t, []indexRow{{"", "", "vanished", 0}, {"a", "transient", "vanished", 0}, {"b", "permanent", "", 1}, {"broker", "delivery_limit", "vanished", 0}}, s.indexRows())
	s.fill(dlq, a)
	s.waitFor(dlq, 2)
	require.Equal(t, deadletter.ScanResult{Seen: 2}, s.scan())
	require.Equal(t, []indexRow{{"a", "transient", "", 1}, {"b", "permanent", "", 1}}, s.indexRows()[1:3], "back again")
}

// Letters without an id are told apart by what they are, not by where they stand; hostile ones are indexed like any other.
func TestHostileLettersAreIndexed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for i, text := range []string{"\x1b[2J", "a\xff\xfe\x00b", "", "'; DROP TABLE dlq_letters; --"} {
		m := letter(text, text, text, text)
		m.Headers[message.HeaderFingerprint] = "x\x00\xff"
		m.Headers[message.HeaderLastFailedAt] = "9999-12-31T23:59:59Z"
		m.Headers[message.HeaderRedriveCount] = "9223372036854775807"
		m.Headers[message.HeaderRedriveRun] = "no uuid"
		m.Headers[message.HeaderFailedVersion] = "\x00"
		s.fill(dlq, m)
		s.waitFor(dlq, i+1)
	}
	require.Equal(t, 4, s.scan().Seen)
	require.Equal(t, 4, s.scan().Seen)
	require.Len(t, s.indexRows(), 4)
}

// What we move is marked with the reason, and brought back when it has not left after all.
func TestOperationsTellTheIndex(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.fill(dlq, letter("a", "order.paid", "x", "x"), letter("b", "noise", "x", "x"), letter("b", "noise", "x", "x"), letter("c", "late", "x", "x"))
	s.scan()
	_, err := s.redrive(only(deadletter.Filter{Type: "order.paid"}))
	require.NoError(t, err)
	_, err = s.letters.Discard(t.Context(), deadletter.DiscardRequest{Common: deadletter.Common{
		Queue: work, Who: "ann", Reason: "test", Filter: deadletter.Filter{Type: "noise"}, Max: 1,
	}})
	require.NoError(t, err)
	require.Equal(t, []indexRow{{"a", "x", "redriven", 0}, {"b", "x", "", 1}, {"c", "x", "", 1}}, s.indexRows())
	require.Zero(t, s.scan().Vanished)
}

// Whoever waits for the queue gets it from a scan, which then has marked nothing.
func TestAScanMakesRoom(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, ids := batch("m", 3000, "order.paid")
	s.fill(dlq, letters...)
	s.scan()
	_, err := s.db.Pool.Exec(t.Context(), `CREATE FUNCTION `+s.db.Schema+`.slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END';
CREATE TRIGGER slow AFTER INSERT ON `+s.db.Schema+`.dlq_letters FOR EACH STATEMENT EXECUTE FUNCTION `+s.db.Schema+`.slow()`)
	require.NoError(t, err)
	scanned := make(chan error, 1)
	go func() {
		_, err := s.letters.Scan(context.WithoutCancel(t.Context()), deadletter.ScanRequest{Queue: work, Who: "keeper"})
		scanned <- err
	}()
	testkit.Eventually(t, 10*time.Second, "the scan", func() bool {
		var n int
		require.NoError(t, s.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+s.db.Schema+`.dlq_lock WHERE action = 'dlq scan'`).Scan(&n))
		return n == 1
	})
	got, err := s.letters.Show(t.Context(), show(1))
	require.NoError(t, err, "a look does not have to ask for a wait")
	require.Equal(t, ids[0], got[0].ID)
	require.ErrorIs(t, <-scanned, deadletter.ErrMadeRoom)
	require.Equal(t, ids, s.ids(dlq))
	require.False(t, slices.ContainsFunc(s.indexRows(), func(r indexRow) bool { return r.Gone != "" }))
}

// The keeper scans when the queue and the index differ, and not when they do not.
func TestTheKeeperKeepsTheIndexInLine(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	keeper, err := deadletter.NewKeeper(deadletter.KeeperOptions{DeadLetters: s.letters, Who: "keeper@test", Interval: 50 * time.Millisecond})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- keeper.Run(ctx) }()
	live := func(n int) {
		t.Helper()
		testkit.Eventually(t, 20*time.Second, fmt.Sprintf("%d in the index", n), func() bool {
			return len(slices.DeleteFunc(s.indexRows(), func(r indexRow) bool { return r.Gone != "" })) == n
		})
	}
	letters, _ := batch("m", 20, "order.paid")
	s.fill(dlq, letters...)
	live(20)
	require.Len(t, s.take(dlq), 20)
	live(0)
	var scans int
	require.NoError(t, s.db.Pool.QueryRow(t.Context(), `SELECT scan FROM `+s.db.Schema+`.dlq_queues`).Scan(&scans))
	require.LessOrEqual(t, scans, 4, "no scan without need")
	cancel()
	require.NoError(t, <-done)
}
