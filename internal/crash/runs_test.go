//go:build crash

package crash_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

const runsConfig = `
http: {listen: "127.0.0.1:0"}
log: {format: json, level: info}
topology:
  exchange: crash.events
  queues:
    - {name: crash.work, bindings: ["item.#"], retry: [300ms], max_attempts: 3}
`

// letters of one round, and how many of them are not chosen.
const (
	runLetters = 140
	runOthers  = runLetters / 5
	runKeys    = 7
)

// redrives is a broker with one queue and what is needed to redrive its dead letters.
type redrives struct {
	*harness
	conn *amqp.Connection
	ch   *amqp.Channel
}

func newRedrives(t *testing.T) *redrives {
	t.Helper()
	db, broker := testkit.Database(t), testkit.Broker(t)
	r := &redrives{harness: &harness{
		db: db, broker: broker, amqpURL: broker.URL, build: testkit.Build, surefoot: testkit.Build(t, "./cmd/surefoot"), dir: t.TempDir(),
	}}
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "surefoot.yaml"), []byte(runsConfig), 0o600))
	_, err := db.Pool.Exec(t.Context(), fmt.Sprintf(tablesSQL, db.Schema, keys))
	require.NoError(t, err)
	out, err := r.command(t, "", "topology", "apply", "--yes")
	require.NoError(t, err, out)
	r.conn, err = amqp.Dial(broker.URL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.conn.Close() })
	r.ch, err = r.conn.Channel()
	require.NoError(t, err)
	require.NoError(t, r.ch.Confirm(false))
	t.Cleanup(func() {
		if t.Failed() {
			r.showLogs(t)
		}
	})
	return r
}

// die fills the dead-letter queue: every fifth message is of another type, and a seventh of the rest shares a key each. The ids are in the
// order of the queue.
func (r *redrives) die(t *testing.T, prefix string) (chosen, others []string) {
	t.Helper()
	for i := range runLetters {
		id, typ := fmt.Sprintf("%s-%05d", prefix, i), "item.chosen"
		if i%5 == 4 {
			typ = "item.other"
			others = append(others, id)
		} else {
			chosen = append(chosen, id)
		}
		key := fmt.Sprintf("key-%d", i%runKeys)
		h := amqp.Table{message.HeaderKey: key}
		message.SetOrigin(h, message.Origin{Exchange: "crash.events", RoutingKey: typ, Queue: "crash.work"})
		message.Failure{Class: "permanent", Type: "error", Message: "not yet", LastFailedAt: time.Now()}.Write(h, 1)
		body, err := json.Marshal(map[string]any{"key": key, "seq": i, "kind": "ok"})
		require.NoError(t, err)
		confirm, err := r.ch.PublishWithDeferredConfirm("", "crash.work.dlq", true, false, amqp.Publishing{
			MessageId: id, Type: typ, Headers: h, Body: body, DeliveryMode: amqp.Persistent,
		})
		require.NoError(t, err)
		require.True(t, confirm.Wait())
	}
	r.holdsAll(t, 0)
	return chosen, others
}

// holdsAll waits until both queues have everything that was not processed, what a killed process held included.
func (r *redrives) holdsAll(t *testing.T, processed int) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, "every letter in its queue", func() bool {
		return r.ready(t, "crash.work.dlq")+r.ready(t, "crash.work") >= runLetters-processed
	})
}

// lapse lets the time pass for which the lock and the lease of a killed process hold.
func (r *redrives) lapse(t *testing.T) {
	t.Helper()
	r.forgetDeadHolder(t)
	_, err := r.db.Pool.Exec(t.Context(), "UPDATE "+r.db.Schema+".dlq_runs SET lease_until = now() WHERE state = 'running'")
	require.NoError(t, err)
}

func (r *redrives) run(t *testing.T) (id, state string) {
	t.Helper()
	err := r.db.Pool.QueryRow(t.Context(), "SELECT id::text, state FROM "+r.db.Schema+".dlq_runs WHERE state <> 'planned' ORDER BY created_at DESC LIMIT 1").Scan(&id, &state)
	require.NoError(t, err)
	return id, state
}

// replica runs `surefoot run` with a fault until it has killed itself, or the run has ended; it says which.
func (r *redrives) replica(t *testing.T, armed string) (killed bool) {
	t.Helper()
	cmd := exec.Command(r.surefoot, "run")
	cmd.Env = append(append(os.Environ(), r.env()...), "SUREFOOT_FAULT="+armed)
	cmd.Dir = r.dir
	log, err := os.OpenFile(filepath.Join(r.dir, "replica.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick, limit := time.NewTicker(100*time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			require.True(t, selfKilled(err), "the replica ended: %v", err)
			return true
		case <-tick.C:
			if _, state := r.run(t); state != "running" {
				require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
				require.NoError(t, <-ended, "SIGTERM")
				return false
			}
		case <-limit:
			require.NoError(t, cmd.Process.Kill())
			t.Fatal("the run does not end")
		}
	}
}

// leftToTheRun tells what two more operators get to hear while the run has no process: its messages are its own.
func (r *redrives) leftToTheRun(t *testing.T, run string) {
	t.Helper()
	there := r.ready(t, "crash.work.dlq")
	for _, verb := range []string{"discard", "redrive"} {
		out, err := r.command(t, "", "dlq", verb, "--queue", "crash.work", "--type", "item.chosen", "--reason", "crash test", "--wait", "1m", "--yes")
		if there > runOthers+r.copies(t) { // else nothing of the run is there any more
			require.Error(t, err, out)
			require.Contains(t, out, "surefoot dlq runs cancel "+run)
		}
		require.Equal(t, there, r.ready(t, "crash.work.dlq"), "nothing was moved or discarded: %s", out)
	}
}

// copies is how many letters are there that were moved already.
func (r *redrives) copies(t *testing.T) int {
	t.Helper()
	return max(r.ready(t, "crash.work.dlq")+r.ready(t, "crash.work")-runLetters, 0)
}

func redrivePoints() []string {
	return slices.DeleteFunc(fault.Points(), func(point string) bool {
		return !strings.HasPrefix(point, "redrive.") || *only != "" && !strings.Contains(point, *only)
	})
}

// pass is when a fault acts: at steps of single letters in the middle of them.
func pass(point string, n int) string {
	for _, once := range []string{"start", "wave", "record", "close"} {
		if strings.HasSuffix(point, once) {
			return point + ":kill"
		}
	}
	return fmt.Sprintf("%s:kill@%d", point, n)
}

// TestCrashOfRuns kills the tool at each step of a redrive, then the replica that goes on with it at the same step, and lets another one
// end it. Only what was chosen is moved, under one run, no message more often than it was interrupted, and each key in its order.
func TestCrashOfRuns(t *testing.T) {
	r := newRedrives(t)
	for _, point := range redrivePoints() {
		t.Run(point, func(t *testing.T) {
			chosen, others := r.die(t, strings.ReplaceAll(point, ".", "-"))
			out, err := r.command(t, pass(point, 40), "dlq", "redrive", "--queue", "crash.work", "--type", "item.chosen", "--wait", "1m", "--yes")
			require.True(t, selfKilled(err), "%v\n%s", err, out)
			r.holdsAll(t, 0)
			run, state := r.run(t)
			require.Equal(t, "running", state)
			r.forgetDeadHolder(t) // not the run: it has a minute's grace, and then another process
			r.leftToTheRun(t, run)
			kills := 1
			for armed := pass(point, 20); ; armed = "" {
				r.lapse(t)
				if !r.replica(t, armed) {
					break
				}
				kills++
				require.LessOrEqual(t, kills, 2)
				r.holdsAll(t, 0)
			}
			if _, state = r.run(t); state != "done" {
				out, _ := r.command(t, "", "dlq", "runs", "show", run)
				t.Fatalf("the run is %s\n%s", state, out)
			}
			require.ElementsMatch(t, others, ids(r.drain(t, "crash.work.dlq", true)), "what was not chosen is there, and nothing else")
			r.moved(t, chosen, run, kills)
		})
	}
}

// moved accounts for the work queue.
func (r *redrives) moved(t *testing.T, chosen []string, run string, kills int) {
	t.Helper()
	times, last := map[string]int{}, map[string]string{}
	for _, d := range r.drain(t, "crash.work", true) {
		key := message.Text(d.Headers, message.HeaderKey)
		require.Equal(t, run, d.Headers[message.HeaderRedriveRun])
		require.True(t, times[d.MessageId] > 0 || last[key] < d.MessageId, "%s of %s comes after %s", d.MessageId, key, last[key])
		times[d.MessageId]++
		last[key] = max(last[key], d.MessageId)
	}
	require.ElementsMatch(t, chosen, slices.Collect(maps.Keys(times)))
	twice := 0
	for id, n := range times {
		require.LessOrEqual(t, n, 1+kills, id)
		twice += n - 1
	}
	t.Logf("%d killed, %d of %d moved again", kills, twice, len(chosen))
}

func ids(deliveries []amqp.Delivery) []string {
	all := make([]string, len(deliveries))
	for i, d := range deliveries {
		all[i] = d.MessageId
	}
	return all
}

// TestCrashOfRamps does the same to a ramp, with consumers that have an inbox: each chosen message has its effect once, and the run says so.
func TestCrashOfRamps(t *testing.T) {
	r := newRedrives(t)
	for n := range 2 {
		p := &process{name: fmt.Sprintf("worker-%d", n+1), binary: r.build(t, "./internal/crash/worker"), args: []string{"crash.work"}, env: r.env(), dir: r.dir}
		p.begin(t)
		t.Cleanup(func() { p.end(t) })
	}
	testkit.Eventually(t, 30*time.Second, "the inbox", func() bool { return r.count(t.Context(), t, `SELECT count(*) FROM %s.inbox_consumers`) == 1 })
	for _, point := range redrivePoints() {
		t.Run(point, func(t *testing.T) {
			chosen, others := r.die(t, strings.ReplaceAll(point, ".", "-"))
			at := pass(point, 4) // in the second wave
			if strings.HasSuffix(at, ":kill") {
				at += "@2"
			}
			if point == "redrive.after-start" || point == "redrive.before-close" {
				at = point + ":kill@3"
			}
			out, err := r.command(t, at, "dlq", "redrive", "--queue", "crash.work", "--type", "item.chosen", "--ramp", "1,5,20", "--wait", "1m", "--yes")
			require.True(t, selfKilled(err), "%v\n%s", err, out)
			run, state := r.run(t)
			require.Equal(t, "running", state)
			for kills, armed := 1, pass(point, 10); ; armed = "" {
				r.lapse(t)
				if !r.replica(t, armed) {
					break
				}
				kills++
				require.LessOrEqual(t, kills, 2)
			}
			testkit.Eventually(t, 30*time.Second, "all processed", func() bool {
				return r.effects(t, chosen) == len(chosen)
			})
			out, err = r.command(t, "", "dlq", "runs", "show", run, "-o", "json")
			require.NoError(t, err, out)
			var shown struct {
				State                           string
				Moved, Processed, Failed, Holds int
			}
			require.NoError(t, json.Unmarshal([]byte(out), &shown), out)
			require.Equal(t, []any{"done", len(chosen), len(chosen), 0, 0}, []any{shown.State, shown.Moved, shown.Processed, shown.Failed, shown.Holds}, out)
			require.Zero(t, r.effects(t, others))
			require.ElementsMatch(t, others, ids(r.drain(t, "crash.work.dlq", true)))
		})
	}
}

// effects counts those of some messages; none may have two.
func (r *redrives) effects(t *testing.T, of []string) (n int) {
	t.Helper()
	var most int
	err := r.db.Pool.QueryRow(t.Context(), "SELECT count(*), coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM "+r.db.Schema+
		".crash_effects WHERE message_id = ANY($1) GROUP BY message_id) e", of).Scan(&n, &most)
	require.NoError(t, err)
	require.LessOrEqual(t, most, 1, "an effect that is there twice")
	return n
}
