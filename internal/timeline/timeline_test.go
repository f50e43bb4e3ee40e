package timeline_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/internal/timeline"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type stage struct {
	testkit.DB
	t *testing.T
}

func newStage(t *testing.T) stage {
	t.Helper()
	t.Parallel()
	return stage{testkit.Database(t), t}
}

func (s stage) exec(sql string, args ...any) {
	s.t.Helper()
	_, err := s.Pool.Exec(s.t.Context(), strings.ReplaceAll(sql, "@.", s.Schema+"."), args...)
	require.NoError(s.t, err, sql)
}

func (s stage) of(id string) timeline.Timeline {
	s.t.Helper()
	got, err := timeline.Of(s.t.Context(), s.Pool, s.Schema, id)
	require.NoError(s.t, err)
	return got
}

// told are the steps in short: who knows it, and what happened.
func told(t timeline.Timeline) []string {
	steps := make([]string, len(t.Steps))
	for i, s := range t.Steps {
		steps[i] = fmt.Sprintf("%s: %s", s.Store, s.What)
	}
	return steps
}

func (s stage) enqueue(m message.Message) {
	s.t.Helper()
	box, err := outbox.New(outbox.Options{Schema: s.Schema})
	require.NoError(s.t, err)
	tx, err := s.Pool.Begin(s.t.Context())
	require.NoError(s.t, err)
	_, err = box.Enqueue(s.t.Context(), tx, m)
	require.NoError(s.t, err)
	require.NoError(s.t, tx.Commit(s.t.Context()))
}

func TestAMessageNobodyKnows(t *testing.T) {
	s := newStage(t)
	_, err := timeline.Of(t.Context(), s.Pool, s.Schema, "m-1")
	var unknown *timeline.UnknownError
	require.ErrorAs(t, err, &unknown)
	require.Contains(t, err.Error(), "published, or never enqueued")
	require.Contains(t, err.Error(), "no consumer has an inbox here")
	s.exec(`INSERT INTO @.inbox_consumers (name, queue, retention) VALUES ('orders', 'orders', '7 days')`)
	_, err = timeline.Of(t.Context(), s.Pool, s.Schema, message.NewID())
	require.ErrorContains(t, err, "within the last 7 days", "also of an id that says when it was made")
	for _, id := range []string{"", "a\x00b", strings.Repeat("x", 256)} {
		_, err = timeline.Of(t.Context(), s.Pool, s.Schema, id)
		require.ErrorIs(t, err, timeline.ErrBadID)
	}
}

func TestAMessageInTheOutbox(t *testing.T) {
	s := newStage(t)
	id := message.NewID()
	s.enqueue(message.Message{ID: id, Type: "order.created", Key: "o-1", CausationID: "cause", CorrelationID: "corr", Payload: []byte(`{"card":"4111"}`)})
	s.enqueue(message.Message{ID: "effect", Type: "order.paid", CausationID: id, Payload: []byte(`{}`)})
	got := s.of(id)
	require.Equal(t, []string{"id: id made", "outbox: enqueued"}, told(got))
	require.Equal(t, []string{"in the outbox, pending: no relay is running"}, got.Places)
	require.Equal(t, []timeline.Link{
		{Relation: "caused by", ID: "cause"}, {Relation: "caused", ID: "effect", Type: "order.paid", Place: "outbox, pending"},
	}, got.Links)
	require.Equal(t, []string{"order.created", "o-1", "corr"}, []string{got.Type, got.Key, got.CorrelationID})
	text, err := json.Marshal(got)
	require.NoError(t, err)
	require.NotContains(t, string(text), "4111", "no payload")

	s.exec(`INSERT INTO @.outbox_parked SELECT *, 'retry', 2, 'refused', 'no' || chr(27) || '[2J', now(), now(), now() + interval '1 min' FROM @.outbox WHERE message_id = $1`, id)
	s.exec(`DELETE FROM @.outbox WHERE message_id = $1`, id)
	s.exec(`INSERT INTO @.outbox_requests (operation, shard, row_id, message_id, action, who, reason) VALUES (gen_random_uuid(), 1, 1, $1, 'discard', 'ann', 'test')`, id)
	got = s.of(id)
	require.ElementsMatch(t, []string{"id: id made", "outbox: enqueued", "outbox: parked", "outbox: publish failed", "outbox: discard asked for"}, told(got))
	require.Contains(t, got.Places[0], "parked (retry): tried again at")

	s.exec(`DELETE FROM @.outbox_parked; DELETE FROM @.outbox_requests`)
	op := audit.NewOperation("ann", "outbox discard", "outbox shard 1 row 1", "test")
	require.NoError(t, audit.Write(t.Context(), s.Pool, s.Schema, op, audit.Entry{MessageID: id, Outcome: "discarded"}))
	got = s.of(id)
	require.Equal(t, []string{"discarded from the outbox"}, got.Places)
	require.NotContains(t, told(got), "outbox: published")
}

// What is behind the outbox says that a message was published, and nothing says when.
func TestTheWholeWayOfAMessage(t *testing.T) {
	s := newStage(t)
	id, run := "order-1", "0199c0de-0000-7000-8000-000000000001"
	ago := func(minutes int) time.Time {
		return time.Now().Add(-time.Duration(minutes) * time.Minute).Truncate(time.Microsecond)
	}
	s.exec(`INSERT INTO @.inbox_consumers (name, queue, retention) VALUES ('orders', 'orders', '7 days'), ('mail', 'mail', '3 days')`)
	s.exec(`INSERT INTO @.inbox (consumer, message, handled_at) SELECT id, @.inbox_key($1), $2 FROM @.inbox_consumers WHERE name = 'mail'`, id, ago(59))
	s.exec(`INSERT INTO @.outbox_once VALUES ($1, $2)`, id, ago(60))
	s.exec(`INSERT INTO @.dlq_queues (vhost, queue) VALUES ('/', 'orders')`)
	s.exec(`INSERT INTO @.dlq_groups (queue_id, type, class, fingerprint, error_type, error_message, version, first_seen, last_seen)
		SELECT q.id, 'order.created', c, c, '', 'provider said no', 'v1', now(), now() FROM @.dlq_queues q, unnest('{transient,permanent}'::text[]) c`)
	s.exec(`INSERT INTO @.dlq_letters (queue_id, key, group_id, message_id, copies, died_at, dated, version, redrives, redrive_run, previous_group, previous_died_at, previous_version)
		SELECT q.id, @.inbox_key($1), (SELECT id FROM @.dlq_groups WHERE class = 'permanent'), $1, 1, $2, true, 'v2', 1, $3,
		       (SELECT id FROM @.dlq_groups WHERE class = 'transient'), $4, 'v1' FROM @.dlq_queues q`, id, ago(20), run, ago(50))
	s.exec(`INSERT INTO @.dlq_runs (id, vhost, queue, state, created_at, started_at, who, reason, filter, rate, ramp, settle)
		VALUES ($1, '/', 'orders', 'stopped', $2, $3, 'ann', '', '{}', 0, '{}', '1 min')`, run, ago(31), ago(30))
	s.exec(`INSERT INTO @.dlq_run_letters (run, seq, key, message_id, type, class, fingerprint, copies, state, wave, reason)
		VALUES ($1, 1, @.inbox_key($2), $2, 'order.created', 'transient', 'f', 1, 'failed', 1, 'dead again: permanent')`, run, id)
	op := audit.NewOperation("ann", "dlq redrive", "orders.dlq", "provider is back")
	require.NoError(t, audit.Write(t.Context(), s.Pool, s.Schema, op, audit.Entry{MessageID: id, Outcome: "redriven"}))

	got := s.of(id)
	require.Equal(t, []string{
		"outbox: enqueued once", "outbox: published", "inbox: processed", "dlq index: died", "run: in a redrive", "dlq index: died", "audit: dlq redrive",
	}, told(got))
	require.Equal(t, []string{"processed by mail", "in orders.dlq"}, got.Places)
	require.Equal(t, []timeline.Letter{{VHost: "/", Queue: "orders", Depth: 1}}, got.Letters)
	require.Contains(t, got.Steps[4].Detail, "it belongs to the run")
	require.True(t, slices.ContainsFunc(got.Unknown, func(u string) bool { return strings.HasPrefix(u, "When it was published") }))
	require.True(t, slices.ContainsFunc(got.Unknown, func(u string) bool { return strings.Contains(u, "3 days at least") }))
	letter := timeline.Found{
		Key: "o-1", CausationID: "cause", TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		Attempts: []message.Attempt{{Number: 1, At: ago(55), Class: "transient", Message: "503"}, {Number: 2, At: ago(52)}},
	}
	got.AddLetter("orders", letter)
	steps := len(got.Steps)
	got.AddLetter("orders", letter)
	require.Len(t, got.Steps, steps, "a copy of it tells nothing new")
	require.Equal(t, []string{"message: attempt 1 failed", "message: attempt 2 failed"}, told(got)[3:5])
	require.Equal(t, []any{"o-1", "4bf92f3577b34da6a3ce929d0e0e4736", []timeline.Link{{Relation: "caused by", ID: "cause"}}}, []any{got.Key, got.TraceID, got.Links})

	envelope := fmt.Sprintf(`{"headers":[{"name":{"base64":"/w=="},"type":"string","value":"x"},{"name":"n","type":"int64","value":4},
		{"name":"sf-attempt-log","type":"list","value":[{"type":"void"},{"type":"table","value":[{"name":"n","type":"int64","value":1},
			{"name":"at","type":"string","value":%q},{"name":"class","type":"string","value":"permanent"}]}]}]}`, ago(21).UTC().Format(time.RFC3339Nano))
	s.exec(`INSERT INTO @.dlq_archive (operation, vhost, queue, key, message_id, type, at, who, reason, envelope, body)
		VALUES ($1, '/', 'orders', @.inbox_key($2), $2, 'order.created', $3, 'bob', 'twice', $4, 'secret')`, run, id, ago(10), []byte(envelope))
	s.exec(`UPDATE @.dlq_letters SET gone_at = $1, gone = 'edited'`, ago(10))
	s.exec(`INSERT INTO @.dlq_edits (operation, vhost, queue, old_id, new_id, at, who, reason, diff) VALUES ($1, '/', 'orders', $2, 'order-1b', $3, 'bob', 'wrong sku', '')`, run, id, ago(10))
	got = s.of(id)
	require.Contains(t, told(got), "message: attempt 1 failed")
	require.Contains(t, told(got), "archive: archived")
	require.Contains(t, got.Places, "replaced by order-1b")
	require.Empty(t, got.Letters)
	require.Equal(t, []timeline.Link{{Relation: "edited to", ID: "order-1b"}}, got.Links)
	require.Equal(t, []timeline.Link{{Relation: "edited from", ID: id}}, s.of("order-1b").Links)
}

// The outbox may be too large to be searched while somebody waits; the rest is told all the same.
func TestAnOutboxThatCannotBeSearched(t *testing.T) {
	s := newStage(t)
	s.exec(`INSERT INTO @.outbox_once VALUES ('m', now())`)
	tx, err := s.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(t.Context())) }()
	_, err = tx.Exec(t.Context(), "LOCK TABLE "+s.Schema+".outbox IN ACCESS EXCLUSIVE MODE") // stands for millions of rows
	require.NoError(t, err)
	got := s.of("m")
	require.Equal(t, []string{"outbox: enqueued once"}, told(got))
	require.Contains(t, got.Unknown[0], "could not be searched to its end")
}

// What became of a redriven message stands in the run only once somebody has looked; the inbox says it before.
func TestARedrivenMessageIsWhereItsConsumerSays(t *testing.T) {
	s := newStage(t)
	s.exec(`INSERT INTO @.dlq_runs (id, vhost, queue, state, who, reason, filter, rate, ramp, settle)
		VALUES (gen_random_uuid(), '/', 'orders', 'done', 'ann', '', '{}', 0, '{}', '1 min')`)
	s.exec(`INSERT INTO @.dlq_run_letters (run, seq, key, message_id, type, class, fingerprint, copies, state, wave)
		SELECT id, 1, @.inbox_key('m'), 'm', 't', 'c', 'f', 1, 'moved', 1 FROM @.dlq_runs`)
	require.Contains(t, s.of("m").Places[0], "sent to orders by run")
	s.exec(`INSERT INTO @.inbox_consumers (name, queue, retention) VALUES ('orders', 'orders', '7 days')`)
	s.exec(`INSERT INTO @.inbox (consumer, message) SELECT id, @.inbox_key('m') FROM @.inbox_consumers`)
	require.Equal(t, []string{"processed by orders"}, s.of("m").Places)
}
