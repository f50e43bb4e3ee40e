package program_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer/program"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// loop is a shell script that gets ready and runs body for each message, with its line and id.
func loop(body string) string {
	return `echo '{"ready": true}'
while IFS= read -r line; do
  id=$(printf '%s' "$line" | sed 's/^{"id":"\([^"]*\)".*/\1/')
  ` + body + `
done`
}

const done = `printf '{"id": "%s", "result": "done"}\n' "$id"`

func kept(t *testing.T, script string, environ ...string) *program.Workers {
	t.Helper()
	w, err := program.NewWorkers(program.Options{Command: []string{"sh", "-c", script}, Queue: "orders.mail", Environ: append(environ, "PATH="+os.Getenv("PATH"))})
	require.NoError(t, err)
	t.Cleanup(w.Close)
	return w
}

func TestAProcessStaysAndItsEventsArrive(t *testing.T) {
	t.Parallel()
	w := kept(t, loop(`printf '{"id": "%s", "result": "done", "events": [{"type": "mail.sent", "key": "%s", "payload": {"pid": %s}}]}\n' "$id" "$SUREFOOT_QUEUE" $$`), "SUREFOOT_DATABASE_URL=secret")
	var pids []string
	for n := range 3 {
		events, err := w.Handle(t.Context(), message.Message{ID: "m" + strconv.Itoa(n), Type: "order.created"})
		require.NoError(t, err)
		require.Len(t, events, 1)
		require.Equal(t, "orders.mail", events[0].Key)
		pids = append(pids, string(events[0].Payload))
	}
	require.Equal(t, []string{pids[0], pids[0], pids[0]}, pids)
}

func TestEveryByteOfAMessageReachesTheProcess(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	w := kept(t, loop(`printf '%s\n' "$line" >`+out+`; `+done))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, body := range []string{"", "{\n \"a\": \"<é\u2028>\"}\n", "\xff\x00", strings.Repeat("x\n", 300_000)} {
		_, err := w.Handle(ctx, message.Message{
			ID: "m1", Type: "order.created", Key: "k\x00\n\"", Attempts: 2, ContentType: "text/plain", Source: "shop", CorrelationID: "c", RequestID: "r",
			OccurredAt: time.Unix(0, 0), Payload: []byte(body),
		})
		require.NoError(t, err)
		text, err := os.ReadFile(out)
		require.NoError(t, err)
		var got struct {
			ID, Type, Key, Queue string
			Attempt              int
			DeadlineMs           int64  `json:"deadline_ms"`
			OccurredAt           string `json:"occurred_at"`
			Body                 *string
			BodyBase64           []byte `json:"body_base64"`
		}
		require.NoError(t, json.Unmarshal(text, &got))
		require.Equal(t, []any{"m1", "order.created", "k\n\"", "orders.mail", 3, "1970-01-01T00:00:00Z"}, []any{got.ID, got.Type, got.Key, got.Queue, got.Attempt, got.OccurredAt})
		require.InDelta(t, 19_000, got.DeadlineMs, 1000)
		if got.Body != nil {
			require.Equal(t, body, *got.Body)
		} else {
			require.Equal(t, body, string(got.BodyBase64))
		}
	}
}

func TestWhatAnAnswerMeansForTheMessage(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]struct {
		class resilience.Class
		name  string
		after time.Duration
		stays bool
	}{
		`{"id": "m1", "result": "done"}`:                                            {stays: true},
		`{"id": "m1", "result": "retry", "error": "busy"}`:                          {resilience.ClassTransient, "retry", 0, true},
		`{"id": "m1", "result": "retry", "error": "busy", "retry_after_ms": 60000}`: {resilience.ClassTransient, "retry", time.Minute, true},
		`{"id": "m1", "result": "reject", "error": "busy", "events": [{}]}`:         {resilience.ClassPermanent, "reject", 0, true},
		`{"id": "m1", "result": "done", "events": [{}]}`:                            {resilience.ClassPermanent, "answer", 0, true},
		`{"id": "m2", "result": "done"}`:                                            {resilience.ClassUnknown, "answer", 0, false},
		`{"result": "done"}`:                                                        {resilience.ClassUnknown, "answer", 0, false},
		`{"id": "m1", "result": "fine"}`:                                            {resilience.ClassUnknown, "answer", 0, false},
		`{"id": "m1", "result": "done", "event": []}`:                               {resilience.ClassUnknown, "answer", 0, false},
		`{"id": "m1", "result": "done", "retry_after_ms": "1s"}`:                    {resilience.ClassUnknown, "answer", 0, false},
		`working on it`: {resilience.ClassUnknown, "answer", 0, false},
	} {
		w := kept(t, loop(`echo "of $$" >&2; printf '%s\n' '`+answer+`'`))
		_, err := w.Handle(t.Context(), message.Message{ID: "m1"})
		require.Equal(t, want.class, resilience.Classify(err), answer)
		after, _ := resilience.DelayOf(err)
		require.Equal(t, want.after, after, answer)
		if err == nil {
			continue
		}
		var failed *program.Error
		require.ErrorAs(t, err, &failed)
		require.Equal(t, want.name, failed.FailureType(), answer)
		require.NotContains(t, err.Error(), "busy", "what a program writes is not for logs")
		if strings.Contains(answer, "busy") {
			require.True(t, strings.HasPrefix(failed.FailureStack(), "busy\n"))
		}
		first := failed.FailureStack()
		_, err = w.Handle(t.Context(), message.Message{ID: "m1"})
		require.ErrorAs(t, err, &failed)
		if pid := failed.FailureStack(); strings.Contains(pid, "of ") && strings.Contains(first, "of ") {
			require.Equal(t, want.stays, pid == first, answer)
		}
	}
}

func TestAProcessThatDiesIsReplaced(t *testing.T) {
	t.Parallel()
	w := kept(t, loop(`case "$id" in die) echo oops >&2; exit 65;; killed) kill -9 $$;; long) head -c 2000000 /dev/zero | tr '\0' x; echo;; esac; `+done))
	for id, want := range map[string]string{"die": "exit 65", "killed": "signal", "long": "answer"} {
		_, err := w.Handle(t.Context(), message.Message{ID: id})
		require.Equal(t, resilience.ClassUnknown, resilience.Classify(err), "as a crash would be: %v", err)
		var failed *program.Error
		require.ErrorAs(t, err, &failed)
		require.Equal(t, want, failed.FailureType())
		if id == "die" {
			require.Equal(t, "oops\n", failed.FailureStack())
		}
		_, err = w.Handle(t.Context(), message.Message{ID: "good"})
		require.NoError(t, err)
	}
}

// Nobody is charged for a process that died while it had nothing to do.
func TestAnIdleProcessThatDiesIsReplaced(t *testing.T) {
	t.Parallel()
	w := kept(t, loop(`printf '{"id": "%s", "result": "done", "events": [{"type": "pid", "payload": %s}]}\n' "$id" $$`))
	events, err := w.Handle(t.Context(), message.Message{ID: "m1"})
	require.NoError(t, err)
	pid, err := strconv.Atoi(string(events[0].Payload))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	w.AwaitDeath()
	_, err = w.Handle(t.Context(), message.Message{ID: "m2"})
	require.NoError(t, err)
}

func TestProcessesAreAsManyAsMessagesAtATime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := kept(t, loop(`touch `+dir+`/$$; while [ $(ls `+dir+` | wc -l) -lt 3 ]; do sleep 0.02; done; `+done))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for n := range 3 {
		all.Go(func() {
			_, err := w.Handle(ctx, message.Message{ID: fmt.Sprint("m", n)})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func TestAProcessIsKilledAtTheDeadline(t *testing.T) {
	t.Parallel()
	pidFile := filepath.Join(t.TempDir(), "pid")
	w := kept(t, loop(`if [ "$id" = slow ]; then sleep 300 & echo $! >`+pidFile+`; wait; fi; `+done))
	_, err := w.Handle(t.Context(), message.Message{ID: "fast"})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err = w.Handle(ctx, message.Message{ID: "slow"})
	require.Equal(t, resilience.ClassTimeout, resilience.ClassifyIn(ctx, nil, err), "%v", err)
	text, err := os.ReadFile(pidFile)
	require.NoError(t, err)
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	testkit.Eventually(t, 10*time.Second, "the child to be dead", func() bool { return dead(child) })
	_, err = w.Handle(t.Context(), message.Message{ID: "good"})
	require.NoError(t, err)
}

func TestAProgramThatDoesNotGetReadyIsNoFaultOfTheMessage(t *testing.T) {
	t.Parallel()
	for _, script := range []string{`echo no such module >&2; exit 1`, `echo hello`, `echo '{"ready": false}'`, `exec sleep 300`} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, err := kept(t, script).Handle(ctx, message.Message{ID: "m1"})
		cancel()
		require.Equal(t, resilience.ClassUnavailable, resilience.ClassifyIn(ctx, nil, err), script)
	}
}

func TestAStopLetsProcessesEnd(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	w := kept(t, loop(done)+"\necho bye >"+out)
	stubborn := kept(t, loop(done)+"\nexec sleep 300")
	for range 2 {
		_, err := w.Handle(t.Context(), message.Message{ID: "m1"})
		require.NoError(t, err)
		_, err = stubborn.Handle(t.Context(), message.Message{ID: "m1"})
		require.NoError(t, err)
		w.Close()
		stubborn.Close()
		text, err := os.ReadFile(out)
		require.NoError(t, err)
		require.Equal(t, "bye\n", string(text))
	}
}
