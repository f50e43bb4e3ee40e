package app_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/topology"
)

// calls are the times of the requests for each message.
type calls struct {
	mu sync.Mutex
	at map[string][]time.Time
}

func (c *calls) add(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at[id] = append(c.at[id], time.Now())
	return len(c.at[id])
}

func (c *calls) of(id string) []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at[id]
}

// consuming runs the consume role on the queue mail with a target, its topology in place.
type consuming struct {
	*process
	t  *testing.T
	db testkit.DB
	ch *amqp.Channel
}

func consume(t *testing.T, target *topology.Target, dependencies map[string]resilience.Settings) *consuming {
	t.Helper()
	db, vhost := testkit.Database(t), testkit.Broker(t)
	c := settings(db)
	c.Dependencies = dependencies
	c.AMQP.URL, c.AMQP.ManagementURL = config.URL(vhost.URL), config.URL(vhost.ManagementURL)
	c.Topology = topology.Spec{Exchange: "shop.events", Queues: []topology.Queue{{
		Name: "mail", Bindings: []string{"order.#"}, Retry: []time.Duration{100 * time.Millisecond, 2 * time.Second}, MaxAttempts: 4, Target: target,
	}}}
	top, err := topology.New(topology.Options{Spec: c.Topology, URL: vhost.URL, ManagementURL: vhost.ManagementURL})
	require.NoError(t, err)
	_, err = top.Apply(t.Context(), topology.ApplyOptions{})
	require.NoError(t, err)
	conn, err := amqp.Dial(vhost.URL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	s := &consuming{t: t, db: db}
	s.ch, err = conn.Channel()
	require.NoError(t, err)
	for _, role := range app.Roles() {
		if role.Name == "consume" {
			s.process = start(t, c, role)
		}
	}
	return s
}

func (s *consuming) publish(ids ...string) {
	s.t.Helper()
	for _, id := range ids {
		require.NoError(s.t, s.ch.PublishWithContext(s.t.Context(), "shop.events", "order.created", true, false,
			amqp.Publishing{MessageId: id, Type: "order.created", Body: []byte("for " + id), DeliveryMode: amqp.Persistent}))
	}
}

// dead takes n letters, by their ids.
func (s *consuming) dead(n int) map[string]amqp.Delivery {
	s.t.Helper()
	letters := map[string]amqp.Delivery{}
	testkit.Eventually(s.t, patience, "the dead letters", func() bool {
		d, ok, err := s.ch.Get("mail.dlq", true)
		require.NoError(s.t, err)
		if ok {
			letters[d.MessageId] = d
		}
		return len(letters) == n
	})
	return letters
}

// outbox are the events that were emitted: type, cause and payload.
func (s *consuming) outbox() (events []string) {
	s.t.Helper()
	rows, err := s.db.Pool.Query(s.t.Context(), `SELECT type || ' ' || causation_id || ' ' || convert_from(payload, 'UTF8') FROM `+s.db.Schema+`.outbox ORDER BY id`)
	require.NoError(s.t, err)
	events, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(s.t, err)
	return events
}

func (s *consuming) handled(n int) {
	s.t.Helper()
	testkit.Eventually(s.t, patience, "the record of what is done", func() bool {
		var done int
		require.NoError(s.t, s.db.Pool.QueryRow(s.t.Context(), `SELECT count(*) FROM `+s.db.Schema+`.inbox`).Scan(&done))
		return done == n
	})
}

// The role from its configuration to outbox and dead-letter queue, over HTTP.
func TestConsumeHandsMessagesToAnEndpoint(t *testing.T) {
	t.Parallel()
	seen := &calls{at: map[string][]time.Time{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("Surefoot-Message-Id")
		body, _ := io.ReadAll(r.Body)
		n := seen.add(id)
		switch {
		case string(body) != "for "+id:
			w.WriteHeader(http.StatusTeapot)
		case id == "new", id == "later" && n == 2:
			_, _ = io.WriteString(w, `{"events":[{"type":"mail.sent","payload":{"for": "`+id+`"}}]}`)
		case id == "known":
			w.WriteHeader(http.StatusConflict)
		case id == "later": // waits for longer than the first delay
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
		case id == "crash":
			w.WriteHeader(http.StatusInternalServerError)
		case id == "half": // says done, and emits nothing of an answer that is wrong
			_, _ = io.WriteString(w, `{"events":[{"type":"mail.sent","payload":1},{"type":"mail.sent"}]}`)
		default:
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = io.WriteString(w, "no such \x1bcustomer")
		}
	}))
	t.Cleanup(server.Close)
	s := consume(t, &topology.Target{HTTP: &topology.HTTPTarget{URL: server.URL}}, nil)
	s.publish("new", "known", "later", "crash", "half", "bad")
	letters := s.dead(3)
	s.handled(3)
	for id, times := range map[string]int{"new": 1, "known": 1, "later": 2, "crash": 2, "half": 1, "bad": 1} {
		require.Len(t, seen.of(id), times, id)
	}
	require.GreaterOrEqual(t, seen.of("later")[1].Sub(seen.of("later")[0]), time.Second)
	require.ElementsMatch(t, []string{`mail.sent new {"for": "new"}`, `mail.sent later {"for": "later"}`}, s.outbox())
	bad := message.FailureOf(letters["bad"].Headers)
	require.Equal(t, []string{"permanent", "http 422", `no such \x1bcustomer`}, []string{bad.Class, bad.Type, bad.Stack})
	require.Equal(t, "http 500", message.FailureOf(letters["crash"].Headers).Type)
	require.Contains(t, message.FailureOf(letters["half"].Headers).Message, "events[1] needs one of payload")
	require.Contains(t, s.get(t, "/metrics").body, `circuit_breaker_state{dependency="mail"} 0`)
	require.NoError(t, s.end(t))
}

// An open circuit pauses the queue: nothing is lost, nothing is counted.
func TestAnOpenCircuitPausesTheQueueOfAnEndpoint(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	up, attempts := false, map[string]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		attempts[r.Header.Get("Surefoot-Message-Id")] = r.Header.Get("Surefoot-Attempt")
		if !up {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	s := consume(t, &topology.Target{HTTP: &topology.HTTPTarget{URL: server.URL, Dependency: "mailer"}}, map[string]resilience.Settings{
		"mailer": {Breaker: resilience.Breaker{Failures: 1, Open: 300 * time.Millisecond}},
	})
	s.publish("m0")
	testkit.Eventually(t, patience, "the pause", func() bool { return strings.Contains(s.get(t, "/readyz").Reasons["consume"], "a dependency is away") })
	s.publish("m1", "m2", "m3")
	testkit.Eventually(t, patience, "probes", func() bool { // each is a failure that would be the message's
		var probes float64
		for line := range strings.Lines(s.get(t, "/metrics").body) {
			if rest, found := strings.CutPrefix(line, `surefoot_call_attempts_total{class="transient",dependency="mailer"} `); found {
				require.NoError(t, json.Unmarshal([]byte(strings.TrimSpace(rest)), &probes))
			}
		}
		return probes > 5
	})
	mu.Lock()
	up = true
	mu.Unlock()
	s.handled(4)
	require.NoError(t, s.end(t))
	mu.Lock()
	defer mu.Unlock()
	for id, attempt := range attempts {
		require.Contains(t, []string{"1", "2"}, attempt, "%s: only what opened the circuit counts", id)
	}
}

// The role with processes that stay: events, a message that kills its process, and one that never will be handled.
func TestConsumeHandsMessagesToProcessesThatStay(t *testing.T) {
	t.Parallel()
	s := consume(t, &topology.Target{KeepAlive: true, Exec: []string{"sh", "-c", `echo '{"ready": true}'
while IFS= read -r line; do
  id=$(printf '%s' "$line" | sed 's/^{"id":"\([^"]*\)".*/\1/')
  case "$line" in
    *'"id":"crash"'*'"attempt":1,'*) kill -9 $$;;
    *'"id":"bad"'*) printf '{"id": "bad", "result": "reject", "error": "no such customer"}\n'; continue;;
  esac
  printf '{"id": "%s", "result": "done", "events": [{"type": "mail.sent", "payload": "%s"}]}\n' "$id" "$id"
done`}}, nil)
	s.publish("good", "crash", "bad")
	letters := s.dead(1)
	s.handled(2)
	require.ElementsMatch(t, []string{`mail.sent good "good"`, `mail.sent crash "crash"`}, s.outbox())
	bad := message.FailureOf(letters["bad"].Headers)
	require.Equal(t, []string{"permanent", "reject", "no such customer\n"}, []string{bad.Class, bad.Type, bad.Stack})
	require.NoError(t, s.end(t))
}

// The example over HTTP, with a real queue, signed.
func TestConsumeHandsMessagesToTheExampleInPython(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(key, []byte("secret"), 0o600))
	url := testkit.PythonServer(t, []string{"WORKER_DB=" + filepath.Join(dir, "db"), "WORKER_SIGNING_KEY_FILE=" + key}, "../../examples/workers/worker.py", "0")
	s := consume(t, &topology.Target{HTTP: &topology.HTTPTarget{URL: url, SigningKeyFile: key}}, nil)
	for id, body := range map[string]string{"m1": `{"orderId": "a"}`, "m2": `{"orderId": "b"}`, "m3": `{}`} {
		require.NoError(t, s.ch.PublishWithContext(t.Context(), "shop.events", "order.created", true, false,
			amqp.Publishing{MessageId: id, Type: "order.created", Body: []byte(body), DeliveryMode: amqp.Persistent}))
	}
	letters := s.dead(1)
	s.handled(2)
	require.ElementsMatch(t, []string{`mail.queued m1 {"orderId": "a"}`, `mail.queued m2 {"orderId": "b"}`}, s.outbox())
	require.Contains(t, message.FailureOf(letters["m3"].Headers).Stack, "no JSON object with orderId")
	require.NoError(t, s.end(t))
}
