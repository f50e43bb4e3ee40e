//go:build crash

package crash_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

// The queries return what must not be; the first column says what it is.
var violations = map[string]string{
	"lost": `SELECT s.message_id, s.key || '/' || s.seq || ' ' || s.kind FROM %[1]s.crash_sent s
		WHERE NOT EXISTS (SELECT FROM %[1]s.crash_effects e WHERE e.message_id = s.message_id)
		AND NOT EXISTS (SELECT FROM %[1]s.crash_taken t WHERE t.message_id = s.message_id)`,
	"emitted event lost": `SELECT m.message_id, m.cause FROM %[1]s.crash_emitted m
		WHERE NOT EXISTS (SELECT FROM %[1]s.crash_effects e WHERE e.message_id = m.message_id)
		AND NOT EXISTS (SELECT FROM %[1]s.crash_taken t WHERE t.message_id = m.message_id)`,
	"effects twice": `SELECT message_id, count(*)::text FROM %[1]s.crash_effects GROUP BY 1 HAVING count(*) > 1`,
	"effects of a transaction that was rolled back": `SELECT e.message_id, e.key FROM %[1]s.crash_effects e WHERE e.type NOT LIKE 'order.%%'
		AND NOT EXISTS (SELECT FROM %[1]s.crash_sent s WHERE s.message_id = e.message_id)
		AND NOT EXISTS (SELECT FROM %[1]s.crash_emitted m WHERE m.message_id = e.message_id)
		AND NOT EXISTS (SELECT FROM %[1]s.crash_ghosts g WHERE g.message_id = e.message_id)`,
	"emitted event missing or twice": `SELECT e.message_id, count(m.message_id)::text FROM %[1]s.crash_effects e
		LEFT JOIN %[1]s.crash_emitted m ON m.cause = e.message_id WHERE e.type LIKE 'item.%%' GROUP BY 1 HAVING count(m.message_id) <> 1`,
	"stuck order not cancelled": `SELECT id, status FROM %[1]s.crash_orders WHERE status <> 'CANCELLED'`,
}

func (h *harness) violations(ctx context.Context, t *testing.T, what string) []string {
	t.Helper()
	rows, err := h.db.Pool.Query(ctx, fmt.Sprintf(violations[what], h.db.Schema))
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var id, detail string
		err := row.Scan(&id, &detail)
		return what + ": " + id + " " + detail, err
	})
	require.NoError(t, err)
	return found
}

func (h *harness) count(ctx context.Context, t *testing.T, query string) int {
	t.Helper()
	var n int
	testkit.EventuallyNil(t, time.Minute, "the database to answer", func() error {
		return h.db.Pool.QueryRow(ctx, fmt.Sprintf(query, h.db.Schema)).Scan(&n)
	})
	return n
}

// account checks everything; see the package comment.
func (h *harness) account(t *testing.T) {
	t.Helper()
	for what := range violations {
		found := h.violations(t.Context(), t, what)
		require.Empty(t, found[:min(len(found), 10)], "%d of them", len(found))
	}
	h.accountOrder(t)
	h.accountCancellations(t)
}

// accountOrder reads the queue that saw every publish: the first one of each message must follow seq, none may be of a message that was
// never committed, and none that was committed may be missing.
func (h *harness) accountOrder(t *testing.T) {
	t.Helper()
	committed := h.idsOf(t, h.db.Pool, "crash_sent", "crash_emitted")
	ghosts := h.idsOf(t, h.db.Pool, "crash_ghosts")
	last, seen := map[string]int64{}, map[string]bool{}
	repeated := map[string]bool{}
	for _, d := range h.drain(t, "crash.tap", true) {
		if seen[d.MessageId] {
			repeated[d.MessageId] = true
			continue
		}
		seen[d.MessageId] = true
		if strings.HasPrefix(d.Type, "order.") || ghosts[d.MessageId] {
			continue
		}
		require.True(t, committed[d.MessageId], "%s %s was published and never committed", d.Type, d.MessageId)
		if !strings.HasPrefix(d.Type, "item.") {
			continue
		}
		key, seq := message.Text(d.Headers, message.HeaderKey), h.sequence(t, d)
		require.Greater(t, seq, last[key], "key %s: message %s overtook", key, d.MessageId)
		last[key] = seq
	}
	for id := range committed {
		require.True(t, seen[id], "message %s was committed and never published", id)
	}
	if h.moved != nil {
		h.moved.account(t, seen, repeated)
	}
	t.Logf("published %d messages, %d of them more than once", len(seen), len(repeated))
}

// idsOf returns the message ids in tables of the harness.
func (h *harness) idsOf(t *testing.T, pool *pgxpool.Pool, tables ...string) map[string]bool {
	t.Helper()
	ids := map[string]bool{}
	for _, table := range tables {
		rows, err := pool.Query(t.Context(), "SELECT message_id FROM "+h.db.Schema+"."+table)
		require.NoError(t, err)
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		for _, id := range found {
			ids[id] = true
		}
	}
	return ids
}

// accountCancellations: one event per order, in at least one run of the external program.
func (h *harness) accountCancellations(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(h.cancelled)
	require.NoError(t, err)
	orders := map[string]string{}
	for line := range strings.Lines(string(text)) {
		id, key, ok := strings.Cut(strings.TrimSpace(line), " ")
		require.True(t, ok, "the program's line %q", line)
		if other, twice := orders[key]; twice && (h.moved == nil || !h.moved.waiting[key]) {
			require.Equal(t, other, id, "order %s was cancelled by two events", key)
		}
		orders[key] = id
	}
	require.Len(t, orders, h.count(t.Context(), t, `SELECT count(*) FROM %s.crash_orders`), "orders cancelled, as the program saw them")
}

// accountPlaces requires, once the load has ended and before what was broken is mended, that every message that was committed has had its
// effect or is a dead letter, and none both. Other places are empty then: settled = processed + retrying + dead + discarded.
func (h *harness) accountPlaces(t *testing.T) {
	t.Helper()
	var processed, dead map[string]bool
	committed, taken := h.idsOf(t, h.db.Pool, "crash_sent", "crash_emitted"), h.idsOf(t, h.db.Pool, "crash_taken")
	h.settled(t, 2*time.Minute, func() string {
		processed, dead = h.idsOf(t, h.db.Pool, "crash_effects"), h.accountInnocents(t, "crash.work.dlq")
		missing := 0
		for id := range committed {
			if !processed[id] && !dead[id] && !taken[id] {
				missing++
			}
		}
		if missing > 0 {
			return fmt.Sprintf("%d messages that are neither processed nor dead", missing)
		}
		return ""
	})
	counts := map[string]int{}
	for id := range committed {
		require.False(t, processed[id] && dead[id], "message %s is processed and dead", id)
		switch {
		case processed[id]:
			counts["processed"]++
		case dead[id]:
			counts["dead"]++
		}
	}
	retrying := h.ready(t, "crash.work.retry") + h.ready(t, "crash.echo.retry")
	require.Zero(t, retrying, "messages in retry queues")
	discarded := h.count(t.Context(), t, `SELECT count(DISTINCT message_id) FROM %s.audit WHERE action = 'outbox discard' AND message_id <> ''`)
	t.Logf("settled %d messages = processed %d + retrying %d + dead %d + discarded %d + taken back %d", len(committed)+discarded,
		counts["processed"], retrying, counts["dead"], discarded, len(committed)-counts["processed"]-counts["dead"])
}

// accountInnocents looks at a dead-letter queue and returns the ids in it: only messages that fail by themselves may be there.
func (h *harness) accountInnocents(t *testing.T, queue string) map[string]bool {
	t.Helper()
	ids := map[string]bool{}
	for _, d := range h.drain(t, queue, false) {
		ids[d.MessageId] = true
		require.Contains(t, []string{"item.poison", "item.lethal", "item.foreign"}, d.Type,
			"an innocent neighbour was dead-lettered: %s, %s", d.MessageId, message.Text(d.Headers, message.HeaderErrorMessage))
	}
	return ids
}

// drain reads everything that is in a queue. With take it is gone then; else closing the connection puts it back in order.
func (h *harness) drain(t *testing.T, queue string, take bool) []amqp.Delivery {
	t.Helper()
	conn, err := amqp.Dial(h.broker.URL)
	require.NoError(t, err)
	defer conn.Close()
	channel, err := conn.Channel()
	require.NoError(t, err)
	all := make([]amqp.Delivery, h.ready(t, queue))
	deliveries, err := channel.Consume(queue, "", take, false, false, false, nil)
	require.NoError(t, err)
	for i := range all {
		d, open := <-deliveries
		require.True(t, open, "%s: the channel ended after %d of %d messages", queue, i, len(all))
		all[i] = d
	}
	return all
}

// ready counts messages that no consumer holds.
func (h *harness) ready(t *testing.T, queue string) int {
	t.Helper()
	conn, err := amqp.Dial(h.broker.URL)
	require.NoError(t, err)
	defer conn.Close()
	channel, err := conn.Channel()
	require.NoError(t, err)
	q, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(t, err)
	return q.Messages
}

// afterLostLeader is how long a message can be on its way when the leader of the queue that it is dead-lettered to, as at the end of a
// retry's delay, is lost without a word or elected later than that of its own queue: after dead_letter_worker_publisher_confirm_timeout,
// 3 minutes, RabbitMQ publishes it again. Until then it is in no queue's count but that of dead-lettering.
const afterLostLeader = 6 * time.Minute

// settled waits until nothing moves any more: every message that can have its effect has it.
func (h *harness) settled(t *testing.T, limit time.Duration, done func() string) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		missing := done()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			h.showQueues(t)
			h.showMissing(t)
			require.FailNow(t, "not settled", "still waiting for: %s", missing)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

// showQueues tells where messages are that are waited for.
func (h *harness) showQueues(t *testing.T) {
	t.Helper()
	var queues []map[string]any
	h.broker.API(t, http.MethodGet, "/api/queues/"+url.PathEscape(h.broker.Vhost), nil, &queues)
	for _, q := range queues {
		t.Log(q["name"], "ready", q["messages_ready"], "unacknowledged", q["messages_unacknowledged"], "dead-lettering", q["messages_dlx"], "consumers", q["consumers"], "leader", q["leader"], "online", q["online"])
	}
}

// showMissing tells of messages without effect what became of them: whether they were published, why they died, and what was logged.
func (h *harness) showMissing(t *testing.T) {
	t.Helper()
	published := map[string]int{}
	for _, d := range h.drain(t, "crash.tap", true) { // the test has failed; a quorum queue gives out no more than 2000 at a time
		published[d.MessageId]++
	}
	dead := map[string]string{}
	for _, d := range slices.Concat(h.drain(t, "crash.work.dlq", false), h.drain(t, "crash.echo.dlq", false)) {
		dead[d.MessageId] = fmt.Sprint(message.FailureOf(d.Headers))
	}
	for _, what := range slices.Concat(h.violations(t.Context(), t, "lost"), h.violations(t.Context(), t, "emitted event lost")) {
		if strings.HasSuffix(what, " poison") || strings.HasSuffix(what, " lethal") {
			continue
		}
		_, of, _ := strings.Cut(what, ": ")
		id, _, _ := strings.Cut(of, " ")
		t.Logf("%s: published %d times, dead %q\n%s", what, published[id], dead[id], h.logged(t, id))
	}
}

// logged is what the processes logged about a message.
func (h *harness) logged(t *testing.T, id string) string {
	t.Helper()
	var found []string
	files, err := filepath.Glob(filepath.Join(h.dir, "*.log"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, id) {
				found = append(found, filepath.Base(file)+" "+message.Clip(line, 600))
			}
		}
	}
	return strings.Join(found, "\n")
}

// publish puts a message into a queue, as somebody else's program would.
func (h *harness) publish(t *testing.T, queue string, p amqp.Publishing) {
	t.Helper()
	conn, err := amqp.Dial(h.broker.URL)
	require.NoError(t, err)
	defer conn.Close()
	channel, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, channel.Confirm(false))
	confirm, err := channel.PublishWithDeferredConfirm("", queue, true, false, p)
	require.NoError(t, err)
	require.True(t, confirm.Wait())
}
