//go:build crash

package crash_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// TestWallClockSetUnderLoad sets the wall clocks of two processes of each role an hour apart from each other's: one ahead, one
// back, each in the middle of its work. Leases stay where they are, nothing is lost or out of order, and what was deferred
// comes when it was due.
func TestWallClockSetUnderLoad(t *testing.T) {
	broker := testkit.Broker(t)
	h := newHarnessOf(t, newSeed(t), testkit.Database(t), broker, broker.URL, clockBuilds(t))
	h.load.begin(t.Context(), 2)
	var set []*process
	for role, points := range map[string][2]string{
		"relay":    {"relay.after-publish:ahead@500", "relay.after-read:back@600"},
		"consumer": {"consumer.after-deliver:ahead@50", "consumer.after-deliver:back@50"},
		"echo":     {"consumer.before-commit:back@50", "consumer.after-commit:ahead@50"},
		"exec":     {"consumer.before-retry:ahead", "consumer.after-deliver:back@3"},
		"watchdog": {"watchdog.after-claim:ahead@3", "watchdog.before-commit:back@3"},
	} {
		for i, point := range points {
			p := h.processes[role][i]
			p.arm(point)
			if role != "exec" { // what makes one of its programs fail is not in the load
				set = append(set, p)
			}
		}
	}
	const held = `SELECT coalesce(string_agg(concat_ws('/', shard, owner, epoch), ' ' ORDER BY shard), '') FROM %s.outbox_leases
		HAVING count(DISTINCT owner) = 2 AND count(*) FILTER (WHERE expires_at > now()) = 8`
	leases := h.awaitLeases(t, held)
	require.NotContains(t, h.logOf(t, "relay-1")+h.logOf(t, "relay-2"), clockWasSet, "the leases are there before the clocks are set")
	for _, p := range set {
		h.awaitClock(t, p)
	}
	starts := h.starts()
	for range 20 {
		require.NoError(t, h.load.one(t.Context(), "later"))
		require.NoError(t, h.feed(t.Context()))
		h.flows(t)
	}
	pauseFor(t, 6*time.Second) // three leases
	require.Equal(t, leases, h.awaitLeases(t, held), "nobody lost a lease")
	require.Equal(t, starts, h.starts(), "no process ended")
	h.deadLetters(t, 20)
	out, err := h.command(t, "redrive.after-publish:ahead@2", append(h.commandOf("redrive."), "--rate", "20/s")...)
	require.NoError(t, err, out)
	require.Contains(t, out, clockWasSet)
	h.finish(t)
	var early, late int
	require.NoError(t, h.db.Pool.QueryRow(t.Context(), fmt.Sprintf(`SELECT count(*) FILTER (WHERE e.at < s.at + interval '2 s'), count(*) FILTER (WHERE e.at > s.at + interval '1 min')
		FROM %[1]s.crash_sent s JOIN %[1]s.crash_effects e USING (message_id) WHERE s.kind = 'later'`, h.db.Schema)).Scan(&early, &late))
	require.Equal(t, []int{0, 0}, []int{early, late}, "deferred messages that came too early, or too late")
}

// clockWasSet is what a process says when its clock is set.
const clockWasSet = "wall clock set"

// clockBuilds returns a way to build programs whose wall clock can be set: time.Now adds what was set to the time of day that the
// system says, and to nothing else. Everything in the program uses it, libraries too.
func clockBuilds(t *testing.T) func(t testing.TB, path string) string {
	t.Helper()
	dir := t.TempDir()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	require.NoError(t, err)
	std := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	source, err := os.ReadFile(filepath.Join(std, "time.go"))
	require.NoError(t, err)
	const now = "\tsec, nsec, mono := runtimeNow()\n"
	require.Contains(t, string(source), "func Now() Time {\n"+now, "this version of Go has another time.Now: adapt the test")
	module, err := filepath.Abs("../..")
	require.NoError(t, err)
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for at, text := range map[string]string{
		filepath.Join(std, "time.go"): strings.Replace(string(source), "func Now() Time {\n"+now, "func Now() Time {\n"+now+"\tsec += wallSet.Load()\n", 1),
		filepath.Join(std, "wallset.go"): `package time

import "sync/atomic"

var wallSet atomic.Int64

// SetWall sets the wall clock of this process ahead, or back.
func SetWall(by Duration) { wallSet.Add(int64(by / Second)) }
`,
		filepath.Join(module, "internal", "fault", "clock.go"): `package fault

import "time"

func setClock(by time.Duration) error {
	time.SetWall(by)
	println("` + clockWasSet + `", by.String())
	return nil
}
`,
	} {
		file := filepath.Join(dir, filepath.Base(at))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		overlay.Replace[at] = file
	}
	list, err := json.Marshal(overlay)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o600))
	return func(t testing.TB, path string) string {
		t.Helper()
		binary := filepath.Join(dir, filepath.Base(path))
		build := exec.CommandContext(t.Context(), "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, path)
		build.Dir = module
		out, err := build.CombinedOutput()
		require.NoError(t, err, "go build %s: %s", path, out)
		return binary
	}
}

// awaitLeases waits until both relays own shards, and returns who owns which in which epoch.
func (h *harness) awaitLeases(t *testing.T, query string) (leases string) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, "both relays to own shards", func() bool {
		return h.db.Pool.QueryRow(t.Context(), fmt.Sprintf(query, h.db.Schema)).Scan(&leases) == nil
	})
	return leases
}

// awaitClock waits until a process's clock has been set. The load leads there, but for the watchdog.
func (h *harness) awaitClock(t *testing.T, p *process) {
	t.Helper()
	testkit.Eventually(t, time.Minute, "the clock of "+p.name+" to be set", func() bool {
		require.NoError(t, h.load.stuck(t.Context()))
		return strings.Contains(h.logOf(t, p.name), clockWasSet)
	})
}

func (h *harness) logOf(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(h.dir, name+".log"))
	require.NoError(t, err)
	return string(text)
}

// starts is how often all processes have been started together.
func (h *harness) starts() (n int) {
	for _, pair := range h.processes {
		for _, p := range pair {
			p.mu.Lock()
			n += p.starts
			p.mu.Unlock()
		}
	}
	return n
}
