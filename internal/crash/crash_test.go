//go:build crash

package crash_test

import (
	"context"
	"flag"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

var (
	rounds = flag.Int("rounds", 20, "random kills")
	only   = flag.String("only", "", "only points, or faults of the soak, whose name contains this")
	seed   = flag.Uint64("seed", 0, "seed of load and kills; 0: a new one")
)

func TestMain(m *testing.M) { testkit.Main(m) }

func newSeed(t *testing.T) uint64 {
	t.Helper()
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("repeat with: go test ./internal/crash -run '%s' -seed %d -rounds %d", t.Name(), s, *rounds)
	return s
}

// TestCrashAtEveryStep kills a process at each named step of relay, consumer and watchdog, under load.
func TestCrashAtEveryStep(t *testing.T) {
	h := newHarness(t, newSeed(t))
	h.load.begin(t.Context(), 3)
	for _, point := range fault.Points() {
		if isCommand(point) || killedElsewhere(point) || *only != "" && !strings.Contains(point, *only) {
			continue
		}
		h.killAt(t, point)
	}
	h.finish(t)
}

// TestCrashOfRedrive kills `dlq redrive` and `dlq discard` at each of their named steps and runs them again.
func TestCrashOfRedrive(t *testing.T) {
	h := newHarness(t, newSeed(t))
	h.load.begin(t.Context(), 1)
	for _, point := range fault.Points() {
		if !isCommand(point) || *only != "" && !strings.Contains(point, *only) {
			continue
		}
		h.deadLetters(t, 20)
		h.forgetDeadHolder(t)
		out, err := h.command(t, point+":kill", h.commandOf(point)...)
		require.True(t, selfKilled(err), "%s: %v\n%s", point, err, out)
		h.resumeRuns(t)
	}
	h.finish(t)
}

// TestCrashAtRandom kills, and now and then freezes for twice the lease, any process at any time.
func TestCrashAtRandom(t *testing.T) {
	s := newSeed(t)
	h := newHarness(t, s)
	h.load.begin(t.Context(), 3)
	random := rand.New(rand.NewPCG(s, 1))
	var all []*process
	for _, role := range []string{"relay", "consumer", "echo", "exec", "watchdog"} {
		all = append(all, h.processes[role]...)
	}
	require.NoError(t, h.load.one(t.Context(), "lethal"))
	for round := range *rounds {
		require.NoError(t, h.feed(t.Context()))
		pauseFor(t, time.Duration(random.IntN(1500))*time.Millisecond)
		victim := all[random.IntN(len(all))]
		if round%10 == 9 {
			victim.signal(syscall.SIGSTOP)
			pauseFor(t, 4*time.Second)
			victim.signal(syscall.SIGCONT)
			continue
		}
		victim.signal(syscall.SIGKILL)
		if round%5 == 4 {
			h.interruptedRedrive(t, random)
		}
	}
	h.finish(t)
}

// isCommand tells the steps of one-shot commands from those of long-running roles.
func isCommand(point string) bool {
	return strings.HasPrefix(point, "redrive.") || strings.HasPrefix(point, "discard.")
}

// killedElsewhere says that a role is killed at its steps by a test of its own package, which knows what it mends.
func killedElsewhere(point string) bool { return strings.HasPrefix(point, "reconcile.") }

// commandOf returns the command that passes a step.
func (h *harness) commandOf(point string) []string {
	if strings.HasPrefix(point, "discard.") {
		// Nothing matches this id, so that nothing that the account expects is thrown away, except where the
		// step needs a message: then a foreign one is discarded.
		return []string{"dlq", "discard", "--queue", "crash.work", "--type", "item.foreign", "--reason", "crash test", "--wait", "1m", "--yes"}
	}
	return []string{"dlq", "redrive", "--queue", "crash.work", "--include-repeaters", "--wait", "1m", "--yes"}
}

// deadLetters waits until the dead-letter queue holds some of the poison, and a foreign message to discard.
func (h *harness) deadLetters(t *testing.T, count int) {
	t.Helper()
	for range count {
		require.NoError(t, h.load.one(t.Context(), "poison"))
	}
	h.publish(t, "crash.work.dlq", amqp.Publishing{
		MessageId: message.NewID(), Type: "item.foreign", DeliveryMode: amqp.Persistent,
		Headers: amqp.Table{message.HeaderOriginQueue: "crash.work"},
	})
	testkit.Eventually(t, 30*time.Second, "dead letters", func() bool { return h.ready(t, "crash.work.dlq") >= count })
}

// forgetDeadHolder lets the minute pass for which the lock of a killed command holds.
func (h *harness) forgetDeadHolder(t *testing.T) {
	t.Helper()
	_, err := h.db.Pool.Exec(t.Context(), "UPDATE "+h.db.Schema+".dlq_lock SET expires_at = now()")
	require.NoError(t, err)
}

// resumeRuns goes on with redrives whose process was killed, as a replica of `surefoot run` would after half a minute.
func (h *harness) resumeRuns(t *testing.T) {
	t.Helper()
	h.forgetDeadHolder(t)
	_, err := h.db.Pool.Exec(t.Context(), "UPDATE "+h.db.Schema+".dlq_runs SET lease_until = now()")
	require.NoError(t, err)
	rows, err := h.db.Pool.Query(t.Context(), "SELECT id::text FROM "+h.db.Schema+".dlq_runs WHERE state IN ('running', 'paused')")
	require.NoError(t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	for _, id := range ids {
		out, err := h.command(t, "", "dlq", "runs", "resume", id, "--yes")
		require.NoError(t, err, out)
	}
}

// interruptedRedrive kills a redrive after a random while.
func (h *harness) interruptedRedrive(t *testing.T, random *rand.Rand) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(50+random.IntN(500))*time.Millisecond)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.surefoot, h.commandOf("redrive.")...)
	cmd.Env, cmd.Dir = append(os.Environ(), h.env()...), h.dir
	_ = cmd.Run() // killed, or done: both are fine here
}

func pauseFor(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}
