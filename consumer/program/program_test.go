package program_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/consumer/program"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

func TestMain(m *testing.M) {
	if script := os.Getenv("PROGRAM_TEST_SCRIPT"); script != "" { // the consumer that is killed
		h, err := program.New(program.Options{Command: []string{"sh", "-c", script}, Queue: "q"})
		if err == nil {
			err = h(context.Background(), message.Message{ID: "m1"})
		}
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// A message whose consumer was killed comes again: its program must not be at work still.
func TestProgramsDieWithTheirConsumer(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux can do that")
	}
	out := filepath.Join(t.TempDir(), "pid")
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), "PROGRAM_TEST_SCRIPT=echo $$ >"+out+".new && mv "+out+".new "+out+" && exec sleep 600")
	require.NoError(t, parent.Start())
	var stat string
	testkit.Eventually(t, 20*time.Second, "the program to run", func() bool {
		pid, err := os.ReadFile(out)
		stat = "/proc/" + strings.TrimSpace(string(pid)) + "/stat"
		return err == nil
	})
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait()
	testkit.Eventually(t, 20*time.Second, "the program to die", func() bool {
		state, err := os.ReadFile(stat)
		return err != nil || strings.Contains(string(state), ") Z ")
	})
}

func shell(t *testing.T, script string, environ ...string) consumer.PlainHandler {
	t.Helper()
	h, err := program.New(program.Options{Command: []string{"sh", "-c", script}, Queue: "orders.mail", Environ: append(environ, "PATH="+os.Getenv("PATH"))})
	require.NoError(t, err)
	return h
}

func TestBodyAndMetadataReachTheProgram(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	h := shell(t, `{ cat; printf '|%s|%s|%s|%s|%s|%s|%s' "$SUREFOOT_MESSAGE_ID" "$SUREFOOT_TYPE" "$SUREFOOT_KEY" "$SUREFOOT_ATTEMPT" "$SUREFOOT_QUEUE" "$SUREFOOT_DATABASE_URL" "$HOME"; } >`+out,
		"SUREFOOT_DATABASE_URL=secret", "HOME=/home/ann")
	body := strings.Repeat("x", 300_000)
	require.NoError(t, h(t.Context(), message.Message{ID: "m\x001", Type: "order.created", Key: "$(touch /tmp/owned)", Attempts: 2, Payload: []byte(body)}))
	got, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, body+"|m1|order.created|$(touch /tmp/owned)|3|orders.mail||/home/ann", string(got))
}

func TestExitCodesAndTheEndOfStandardError(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]struct {
		class resilience.Class
		name  string
	}{
		`echo too bad >&2; exit 65`: {resilience.ClassPermanent, "exit 65"},
		`echo too bad >&2; exit 1`:  {resilience.ClassUnknown, "exit 1"},
		`echo too bad >&2; kill $$`: {resilience.ClassUnknown, "signal"},
	} {
		err := shell(t, script)(t.Context(), message.Message{ID: "m1"})
		require.Equal(t, want.class, resilience.Classify(err), script)
		var failed *program.Error
		require.ErrorAs(t, err, &failed)
		require.Equal(t, want.name, failed.FailureType())
		require.Equal(t, "too bad\n", failed.FailureStack())
		require.NotContains(t, err.Error(), "too bad", "what a program writes is not for logs")
	}
	err := shell(t, `yes 0123456789 | head -c 1000000 >&2; echo the end >&2; exit 1`)(t.Context(), message.Message{ID: "m1"})
	var failed *program.Error
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed.FailureStack(), message.MaxErrorStack)
	require.True(t, strings.HasSuffix(failed.FailureStack(), "the end\n"))
}

func TestTheWholeProcessGroupIsKilledAtTheDeadline(t *testing.T) {
	t.Parallel()
	pidFile := filepath.Join(t.TempDir(), "pid")
	h := shell(t, `sleep 300 & echo $! >`+pidFile+`; wait`)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	err := h(ctx, message.Message{ID: "m1"})
	require.Equal(t, resilience.ClassTimeout, resilience.ClassifyIn(ctx, nil, err))
	require.Less(t, time.Since(began), 10*time.Second)
	text, err := os.ReadFile(pidFile)
	require.NoError(t, err)
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	testkit.Eventually(t, 10*time.Second, "the child to be dead", func() bool { return dead(child) })
}

// dead counts a zombie as dead: whoever adopted it may reap it late.
func dead(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func TestAMissingProgramIsFoundAtTheStart(t *testing.T) {
	t.Parallel()
	plain := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, nil, 0o600))
	for command, want := range map[string]string{
		"": "is empty", "/nowhere/at/all": "no such file", "no-program-of-this-name": "not found", plain: "permission denied",
	} {
		_, err := program.New(program.Options{Command: []string{command}})
		require.ErrorContains(t, err, want, command)
	}
}

func TestAProgramThatGoesAwayIsNoFaultOfTheMessage(t *testing.T) {
	t.Parallel()
	gone := filepath.Join(t.TempDir(), "gone")
	require.NoError(t, os.WriteFile(gone, []byte("#!/bin/sh\n"), 0o700))
	h, err := program.New(program.Options{Command: []string{gone}})
	require.NoError(t, err)
	require.NoError(t, os.Remove(gone))
	require.Equal(t, resilience.ClassUnavailable, resilience.Classify(h(t.Context(), message.Message{})))
}
