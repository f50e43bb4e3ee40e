package console_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/console"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/watchdog"
)

func (s *stage) exec(sql string, args ...any) {
	s.Helper()
	_, err := s.db.Pool.Exec(s.Context(), sql, args...)
	require.NoError(s, err)
}

func (s *stage) enqueue(m message.Message) {
	s.Helper()
	ctx := outbox.WithSchema(s.Context(), s.db.Schema)
	tx, err := s.db.Pool.Begin(ctx)
	require.NoError(s, err)
	require.NoError(s, outbox.Enqueue(ctx, tx, m))
	require.NoError(s, tx.Commit(ctx))
}

// park makes a row that no relay can publish.
func (s *stage) park(id, reason, text string) {
	s.Helper()
	s.enqueue(message.Message{ID: id, Type: "order.created", Key: "order-1", Payload: []byte("{}")})
	s.exec(`WITH gone AS (DELETE FROM `+s.db.Schema+`.outbox WHERE message_id = $1 RETURNING *)
		INSERT INTO `+s.db.Schema+`.outbox_parked (shard, id, xid, created_at, occurred_at, hash, message_id, type, key, exchange, routing_key, source, correlation_id, causation_id, request_id,
			content_type, payload, traceparent, tracestate, state, attempts, reason, error)
		SELECT shard, id, xid, created_at, occurred_at, hash, message_id, type, key, exchange, routing_key, source, correlation_id, causation_id, request_id,
			content_type, payload, traceparent, tracestate, 'dead', 3, $2, $3 FROM gone`, id, reason, text)
}

func TestTheOutboxSaysWhatItIsStuckOn(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.enqueue(message.Message{ID: "waits", Type: "order.created", Payload: []byte("{}")})
	s.park("stuck", "unpublishable", "header <b>x</b> is too long")
	s.see("/", "1 message waits in the outbox, and no relay is running", "1 row could not be published")
	s.exec(`INSERT INTO ` + s.db.Schema + `.outbox_members (id, name, ttl, expires_at, able_since) VALUES (gen_random_uuid(), 'relay-7', '10 min', now() + interval '10 min', NULL)`)
	s.see("/", "1 relay cannot publish", "relay-7 (cannot publish)")
	s.exec(`DELETE FROM ` + s.db.Schema + `.outbox_members`)
	s.see("/", "no relay is running")
	page := s.page("/outbox")
	require.Contains(t, page, "header &lt;b&gt;x&lt;/b&gt; is too long")
	require.NotContains(t, page, `value="waits"`)
	require.Contains(t, s.page("/outbox?state=pending"), "waits")
	require.Equal(t, http.StatusBadRequest, s.get("/outbox?state=nope").status)
	require.Equal(t, http.StatusBadRequest, s.post("/outbox/discard", "id", "stuck").status, "without a reason")
	require.Equal(t, http.StatusBadRequest, s.post("/outbox/discard", "reason", "r").status, "without rows")
	require.Equal(t, http.StatusConflict, s.post("/outbox/retry", "id", "nope", "reason", "r").status)
	a := s.post("/outbox/discard", "id", "stuck", "reason", "test data")
	require.Equal(t, http.StatusSeeOther, a.status, a.body)
	require.Contains(t, s.do(s.request(http.MethodGet, a.head.Get("Location"), nil, a.cookies)).body, "a relay will do it")
	require.Contains(t, s.page("/message?id=stuck"), "test data")
}

func TestOneMessagesWay(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.consume(func(string) error { return errors.New("bad address") })
	s.send("m1")
	s.see("/dead", "1 message with 1 cause")
	page := s.page("/message?id=m1")
	for _, text := range []string{"orders.saga.dlq", "bad address", "What is not known"} {
		require.Contains(t, page, text)
	}
	require.Contains(t, s.page("/message?id=nope"), "nope")
	require.Contains(t, s.page("/message"), "Message id")
	require.Equal(t, http.StatusBadRequest, s.get("/message?id=a%00b").status)
}

func TestSagasAreHeldAndEnded(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(o *console.Options) {
		table := o.Schema + ".sagas"
		_, err := o.Pool.Exec(t.Context(), `CREATE TABLE `+table+` (id text PRIMARY KEY, status text NOT NULL, since timestamptz NOT NULL)`)
		require.NoError(t, err)
		_, err = o.Pool.Exec(t.Context(), `INSERT INTO `+table+` VALUES ('o-1', 'PAYING', now() - interval '1 h'), ('o-2', 'PAYING', now() - interval '1 h'), ('<b>3', 'PAYING', now() - interval '1 h'), ('new', 'PAYING', now())`)
		require.NoError(t, err)
		o.Sagas, err = watchdog.New(watchdog.Options{Pool: o.Pool, Schema: o.Schema, Rules: []watchdog.Rule{{
			Name: "paying", Table: table, Key: "id", Status: "status", Stuck: []string{"PAYING"}, Clock: "since", Limit: 10 * time.Minute, NewStatus: "GIVEN_UP", Reason: "TOO_LONG", EventType: "order.cancelled",
		}}})
		require.NoError(t, err)
	})
	s.see("/", "3 sagas are over the limit of paying")
	page := s.page("/sagas")
	require.Contains(t, page, "o-1")
	require.Contains(t, page, "&lt;b&gt;3")
	require.Equal(t, http.StatusBadRequest, s.post("/sagas/act", "rule", "paying", "key", "o-1", "do", "skip").status, "without a reason")
	require.Equal(t, http.StatusBadRequest, s.post("/sagas/act", "rule", "paying", "do", "skip", "reason", "r").status, "without sagas")
	require.Equal(t, http.StatusBadRequest, s.post("/sagas/act", "rule", "paying", "key", "o-1", "do", "extend", "by", "soon", "reason", "r").status)
	s.follow("/sagas/act", "rule", "paying", "key", "o-1", "do", "extend", "by", "45m", "reason", "provider is slow")
	require.Contains(t, s.page("/sagas?state=held"), "provider is slow")
	s.follow("/sagas/act", "rule", "paying", "key", "o-2", "do", "cancel", "reason", "customer called")
	require.NotContains(t, s.page("/sagas"), "o-2")
	require.Equal(t, http.StatusConflict, s.post("/sagas/act", "rule", "paying", "key", "o-2", "do", "cancel", "reason", "again").status)
	require.Contains(t, s.page("/audit?action=watchdog&messages=1"), "customer called")
	require.Equal(t, http.StatusNotFound, s.get("/sagas?rule=nope").status)
}

func TestNothingIsConfigured(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(o *console.Options) { o.Topology.Queues = nil })
	s.see("/", "Nothing needs attention")
	require.Contains(t, s.page("/queues"), "names no queues")
	require.Contains(t, s.page("/sagas"), "no watchdog rules")
	require.Contains(t, s.page("/reconcile"), "no rules for reconciliation")
	require.Contains(t, s.page("/runs"), "No redrives")
	require.Contains(t, s.page("/audit"), "No entry matches")
	require.Contains(t, s.page("/dead"), "No dead letters are indexed")
	require.Contains(t, s.page("/dead/letters"), "names no queues")
}
