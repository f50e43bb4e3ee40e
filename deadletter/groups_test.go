package deadletter_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

func (s *stage) groups() []deadletter.FailureGroup {
	s.Helper()
	groups, _, err := s.letters.Groups(s.Context(), deadletter.GroupsRequest{Queue: work})
	require.NoError(s, err)
	return groups
}

func TestGroupsByCause(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	now := time.Now()
	for i, text := range []string{"order 17 not found", "order 18 not found", "order 19 not found", "no route"} {
		m := letter(string(rune('a'+i)), "order.paid", "transient", text)
		m.Headers[message.HeaderLastFailedAt] = now.Add(-time.Duration(i) * 40 * time.Minute).UTC().Format(time.RFC3339Nano)
		m.Headers[message.HeaderFailedVersion] = "v" + string(rune('9'-i))
		s.fill(dlq, m)
		s.waitFor(dlq, i+1)
	}
	_, scanned, err := s.letters.Groups(t.Context(), deadletter.GroupsRequest{})
	require.NoError(t, err)
	require.Empty(t, scanned)
	s.scan()
	groups := s.groups()
	require.Len(t, groups, 2)
	g := groups[0]
	require.Equal(t, []any{3, 3, 2, 1, "v9", "transient", "order.paid"}, []any{g.Messages, g.Copies, g.LastHour, g.HourBefore, g.Version, g.ErrorClass, g.Type})
	require.WithinDuration(t, now, g.LastDead, time.Second)
	require.WithinDuration(t, now.Add(-80*time.Minute), g.FirstDead, time.Second)

	note := deadletter.NoteRequest{Group: g.ID, Text: "ticket 4711, ann looks", Who: "ann@test"}
	require.NoError(t, s.letters.Note(t.Context(), note))
	require.Equal(t, []string{note.Text, "ann@test"}, []string{s.groups()[0].Note, s.groups()[0].NotedBy})
	require.Equal(t, auditRow{"dlq note", "ann@test", "", "noted", note.Text}, s.audit()[0])
	s.take(dlq)
	s.scan()
	require.Empty(t, s.groups())
	s.fill(dlq, letter("z", "order.paid", "transient", "order 20 not found"))
	s.scan()
	require.Equal(t, note.Text, s.groups()[0].Note, "it stays with the cause")
	note.Text = ""
	require.NoError(t, s.letters.Note(t.Context(), note))
	require.Nil(t, s.groups()[0].NotedAt)
	note.Group = 1 << 40
	require.ErrorIs(t, s.letters.Note(t.Context(), note), deadletter.ErrNoGroup)
	note.Text = "a\nb"
	require.ErrorIs(t, s.letters.Note(t.Context(), note), deadletter.ErrBadRequest)
}

// What died again after a redrive shows what was before: the same failure, or another.
func TestShowComparesWithTheLastRedrive(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.fill(dlq, letter("same", "order.paid", "transient", "order 1 not found"), letter("other", "order.paid", "transient", "order 2 not found"))
	s.scan()
	_, err := s.redrive()
	require.NoError(t, err)
	for i, d := range s.take(work) {
		p := message.Republishing(&d)
		message.Failure{Class: []string{"transient", "permanent"}[i], Type: "*errors.errorString", Message: "order 3 not found", Version: "v2"}.Write(p.Headers, 1)
		s.fill(dlq, p)
		s.waitFor(dlq, i+1)
	}
	s.scan()
	letters, err := s.letters.Show(t.Context(), show(2))
	require.NoError(t, err)
	require.True(t, letters[0].Earlier.Same)
	require.False(t, letters[1].Earlier.Same)
	require.Equal(t, []any{"transient", "order 2 not found", letters[0].Fingerprint},
		[]any{letters[1].Earlier.ErrorClass, letters[1].Earlier.ErrorMessage, letters[1].Earlier.Fingerprint})
}

// One million rows in two hundred groups. Not a test: go test ./deadletter -run XXX -bench MillionDeadLetters -benchtime 3x.
func BenchmarkGroupsOfAMillionDeadLetters(b *testing.B) {
	db := testkit.Database(b)
	_, err := db.Pool.Exec(b.Context(), `SET statement_timeout = 0; INSERT INTO `+db.Schema+`.dlq_queues (vhost, queue) SELECT '/', 'orders.' || g FROM generate_series(1, 4) g;
INSERT INTO `+db.Schema+`.dlq_groups (queue_id, type, class, fingerprint, error_type, error_message, version, first_seen, last_seen)
SELECT 1 + g % 4, 'order.' || g, 'transient', lpad(to_hex(g), 16, '0'), '*http.Error', repeat('provider said 503 ', 15), 'v1', now(), now() FROM generate_series(1, 200) g;
INSERT INTO `+db.Schema+`.dlq_letters (queue_id, key, group_id, message_id, copies, died_at, dated, version, redrives)
SELECT 1 + g % 4, gen_random_uuid(), 1 + g % 200, gen_random_uuid()::text, 1, now() - g * interval '0.1 second', true, 'v1.2.3', 0 FROM generate_series(1, 1000000) g;
ANALYZE `+db.Schema+`.dlq_letters`)
	require.NoError(b, err)
	letters, err := deadletter.New(deadletter.Options{Pool: db.Pool, Schema: db.Schema, AMQPURL: "amqp://127.0.0.1:1/"})
	require.NoError(b, err)
	for b.Loop() {
		groups, _, err := letters.Groups(b.Context(), deadletter.GroupsRequest{Limit: 1000})
		require.NoError(b, err)
		require.Len(b, groups, 200)
	}
}
