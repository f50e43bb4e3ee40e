//go:build crash

package crash_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/outbox"
)

// config shortens lease, tiers and cycles, so that a round takes seconds.
const config = `
http: {listen: "127.0.0.1:0"}
log: {format: json, level: info}
topology:
  exchange: crash.events
  queues:
    - {name: crash.work, bindings: ["item.#"], retry: [300ms], max_attempts: 3}
    - {name: crash.echo, bindings: ["echo.#"], retry: [300ms], max_attempts: 3}
    - {name: crash.orders, bindings: ["order.#"], retry: [300ms], max_attempts: 3, target: {exec: [sh, -c, 'printf "%%s %%s\n" "$SUREFOOT_MESSAGE_ID" "$SUREFOOT_KEY" >>%[1]s']}}
relay: {lease: 2s, poll_max: 50ms}
watchdog:
  interval: 200ms
  rules:
    - name: WAITING_TOO_LONG
      table: %[2]s.crash_orders
      key: id
      status: status
      stuck: [WAITING]
      clock: since
      limit: 10m
      new_status: CANCELLED
      reason: WAITING_TOO_LONG
      event_type: order.cancelled
`

// harness is one environment: a schema, a vhost, the load, and two processes of each role.
type harness struct {
	db        testkit.DB
	broker    testkit.AMQP
	surefoot  string
	build     func(t testing.TB, path string) string
	dir       string
	cancelled string // where the external program writes
	load      *load
	processes map[string][]*process // by the first part of a fault point's name
	moved     *move                 // the database went back in time
	amqpURL   string                // of the processes
	patience  time.Duration         // for what is under way to come through when all is well again
}

func newHarness(t *testing.T, seed uint64) *harness {
	t.Helper()
	return newHarnessOn(t, seed, testkit.Database(t), testkit.Broker(t))
}

// newHarnessOn starts the environment on the services given; the processes reach them by the same URLs.
func newHarnessOn(t *testing.T, seed uint64, db testkit.DB, broker testkit.AMQP) *harness {
	t.Helper()
	return newHarnessBy(t, seed, db, broker, broker.URL)
}

// newHarnessBy gives the processes a URL of their own to the broker.
func newHarnessBy(t *testing.T, seed uint64, db testkit.DB, broker testkit.AMQP, amqpURL string) *harness {
	t.Helper()
	return newHarnessOf(t, seed, db, broker, amqpURL, testkit.Build)
}

// newHarnessOf builds the programs in another way.
func newHarnessOf(t *testing.T, seed uint64, db testkit.DB, broker testkit.AMQP, amqpURL string, build func(t testing.TB, path string) string) *harness {
	t.Helper()
	h := &harness{db: db, broker: broker, amqpURL: amqpURL, patience: 2 * time.Minute, build: build, surefoot: build(t, "./cmd/surefoot"), dir: t.TempDir()}
	h.cancelled = filepath.Join(h.dir, "cancelled.txt")
	require.NoError(t, os.WriteFile(h.cancelled, nil, 0o600))
	text := fmt.Sprintf(config, h.cancelled, h.db.Schema)
	require.NoError(t, os.WriteFile(filepath.Join(h.dir, "surefoot.yaml"), []byte(text), 0o600))
	_, err := h.db.Pool.Exec(t.Context(), fmt.Sprintf(tablesSQL, h.db.Schema, keys))
	require.NoError(t, err)
	out, err := h.command(t, "", "topology", "apply", "--yes")
	require.NoError(t, err, out)
	h.tap(t)
	box, err := outbox.New(outbox.Options{Schema: h.db.Schema, Source: "crash"})
	require.NoError(t, err)
	h.load = &load{pool: h.db.Pool, schema: h.db.Schema, outbox: box, seed: seed, pause: 40 * time.Millisecond}
	h.processes = h.fleet(t)
	t.Cleanup(func() {
		if t.Failed() {
			h.showLogs(t)
		}
	})
	return h
}

// tap binds a queue to everything; it is read only at the end.
func (h *harness) tap(t *testing.T) {
	t.Helper()
	conn, err := amqp.Dial(h.broker.URL)
	require.NoError(t, err)
	defer conn.Close()
	channel, err := conn.Channel()
	require.NoError(t, err)
	_, err = channel.QueueDeclare("crash.tap", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	require.NoError(t, channel.QueueBind("crash.tap", "#", "crash.events", false, nil))
}

func (h *harness) env() []string {
	return []string{
		"SUREFOOT_DATABASE_URL=" + h.db.URL, "SUREFOOT_AMQP_URL=" + h.amqpURL,
		"SUREFOOT_MANAGEMENT_URL=" + h.broker.ManagementURL, "SUREFOOT_SCHEMA=" + h.db.Schema,
	}
}

func (h *harness) fleet(t *testing.T) map[string][]*process {
	t.Helper()
	worker := h.build(t, "./internal/crash/worker")
	two := func(name, binary string, args ...string) []*process {
		pair := make([]*process, 2)
		for i := range pair {
			pair[i] = &process{name: fmt.Sprintf("%s-%d", name, i+1), binary: binary, args: args, env: h.env(), dir: h.dir}
			pair[i].begin(t)
			t.Cleanup(func() { pair[i].end(t) })
		}
		return pair
	}
	return map[string][]*process{
		"relay":    two("relay", h.surefoot, "relay", "run"),
		"consumer": two("worker", worker, "crash.work"),
		"echo":     two("echo", worker, "crash.echo"),
		"exec":     two("exec", h.surefoot, "consume", "run"),
		"watchdog": two("watchdog", h.surefoot, "watchdog", "run"),
	}
}

// killAt arms one of the role's processes, feeds what makes it reach the point, and waits for its death.
func (h *harness) killAt(t *testing.T, point string) {
	t.Helper()
	role, _, _ := strings.Cut(point, ".")
	begun := time.Now()
	killed := h.processes[role][0].arm(point + ":kill")
	deadline := time.After(time.Minute)
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		require.NoError(t, h.feed(t.Context()))
		select {
		case <-killed:
			t.Logf("%-28s after %s", point, time.Since(begun).Round(time.Millisecond))
			return
		case <-tick.C:
			h.provoke(t, point, n)
		case <-deadline:
			t.Fatalf("no process reached %s within a minute: is the point still on its way?", point)
		}
	}
}

// provoke does what leads to the points that load alone does not pass.
func (h *harness) provoke(t *testing.T, point string, n int) {
	t.Helper()
	switch point {
	case "consumer.after-mark": // for what another process held when it died
		h.processes["consumer"][1].signal(syscall.SIGKILL)
	case "relay.before-request", "relay.after-request": // for what an operator asks
		if out, err := h.command(t, "", "outbox", "discard", "--state", "dead", "--limit", "10000", "--reason", "unsendable on purpose", "--yes", "--wait", "0s"); err != nil && n%10 == 9 {
			t.Logf("outbox discard: %v: %s", err, out)
		}
	case "relay.before-release", "relay.after-release": // when a second relay comes back and gets its share
		if n%20 == 10 {
			h.processes["relay"][1].signal(syscall.SIGKILL)
		}
	}
}

// feed writes one of everything that is rare in the load.
func (h *harness) feed(ctx context.Context) error {
	for _, kind := range []string{"poison", "flaky"} {
		if err := h.load.one(ctx, kind); err != nil {
			return err
		}
	}
	if err := h.load.bad(ctx); err != nil {
		return err
	}
	return h.load.stuck(ctx)
}

func (h *harness) sequence(t *testing.T, d amqp.Delivery) int64 {
	t.Helper()
	var p struct {
		Seq int64 `json:"seq"`
	}
	require.NoError(t, json.Unmarshal(d.Body, &p))
	return p.Seq
}

// finish ends the load, mends what was broken, brings everything through and accounts for it.
func (h *harness) finish(t *testing.T) {
	t.Helper()
	require.NoError(t, h.load.end())
	h.settled(t, h.patience, func() string { return h.pendingBut(t, "poison", "lethal") })
	require.Zero(t, h.ready(t, "crash.echo.dlq"), "nothing of the echo fails by itself")
	h.accountPlaces(t)
	_, err := h.db.Pool.Exec(t.Context(), "INSERT INTO "+h.db.Schema+".crash_mended DEFAULT VALUES")
	require.NoError(t, err)
	h.resumeRuns(t)
	h.settled(t, 2*time.Minute, func() string {
		out, err := h.command(t, "", "dlq", "redrive", "--queue", "crash.work", "--include-repeaters", "--wait", "1m", "--yes")
		require.NoError(t, err, out)
		return h.pendingBut(t)
	})
	h.account(t)
}

// pendingBut says what has not had its effect yet, leaving out some kinds; "" when nothing is pending.
func (h *harness) pendingBut(t *testing.T, kinds ...string) string {
	t.Helper()
	h.discardDead(t)
	excluded := "'" + strings.Join(kinds, "','") + "'"
	for what, query := range map[string]string{
		"outbox rows": `SELECT count(*) FROM %s.outbox`,
		"parked rows": `SELECT count(*) FROM %s.outbox_parked`,
		"messages without effect": `SELECT count(*) FROM %[1]s.crash_sent s WHERE kind NOT IN (` + excluded + `)
			AND NOT EXISTS (SELECT FROM %[1]s.crash_effects e WHERE e.message_id = s.message_id)
			AND NOT EXISTS (SELECT FROM %[1]s.crash_taken t WHERE t.message_id = s.message_id)`,
		"events without effect": `SELECT count(*) FROM %[1]s.crash_emitted m
			WHERE NOT EXISTS (SELECT FROM %[1]s.crash_effects e WHERE e.message_id = m.message_id)
			AND NOT EXISTS (SELECT FROM %[1]s.crash_taken t WHERE t.message_id = m.message_id)`,
		"stuck orders": `SELECT count(*) FROM %s.crash_orders WHERE status = 'WAITING'`,
	} {
		if n := h.count(t.Context(), t, query); n != 0 {
			return fmt.Sprintf("%d %s", n, what)
		}
	}
	return ""
}

// discardDead discards dead outbox rows, as an operator would: those behind them then follow.
func (h *harness) discardDead(t *testing.T) {
	t.Helper()
	if h.count(t.Context(), t, `SELECT count(*) FROM %s.outbox_parked WHERE state = 'dead'`) == 0 {
		return
	}
	out, err := h.command(t, "", "outbox", "discard", "--state", "dead", "--limit", "10000", "--reason", "unsendable on purpose", "--yes")
	require.NoError(t, err, out)
}

func (h *harness) showLogs(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(h.dir, "*.log"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		t.Logf("%s, its end:\n%s", filepath.Base(file), text[max(0, len(text)-3000):])
	}
}
