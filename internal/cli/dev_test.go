package cli_test

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// terminal is a directory with the real binary and an environment; what happens in it is read while it happens.
type terminal struct {
	t    *testing.T
	dir  string
	env  []string
	said testkit.Buffer // by what runs in the background
}

func newTerminal(t *testing.T, env ...string) *terminal {
	t.Helper()
	// Not PATH alone: what a worker needs to run is inherited by it.
	return &terminal{t: t, dir: t.TempDir(), env: append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, env...)}
}

// given are services by their URLs, a schema and a vhost of the test's own, and any free ports.
func given(t *testing.T) []string {
	t.Helper()
	db, broker := testkit.Database(t), testkit.Broker(t)
	return []string{
		"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema, "SUREFOOT_AMQP_URL=" + broker.URL,
		"SUREFOOT_MANAGEMENT_URL=" + broker.ManagementURL, "SUREFOOT_HTTP_LISTEN=127.0.0.1:0", "SUREFOOT_CONSOLE_LISTEN=127.0.0.1:0",
	}
}

// run runs a command to its end and returns its exit code and all that it printed.
func (term *terminal) run(stdin string, args ...string) (int, string) {
	term.t.Helper()
	cmd := exec.CommandContext(term.t.Context(), testkit.Binary(term.t), args...)
	cmd.Dir, cmd.Env, cmd.Stdin = term.dir, term.env, strings.NewReader(stdin)
	out, _ := cmd.CombinedOutput() // the exit code tells
	return cmd.ProcessState.ExitCode(), string(out)
}

// dev starts `surefoot dev`, waits until all is up, and returns what ends it as Ctrl-C would, with its exit code.
func (term *terminal) dev() (interrupt func() int) {
	term.t.Helper()
	cmd := exec.CommandContext(term.t.Context(), testkit.Binary(term.t), "dev")
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = term.dir, term.env, &term.said, &term.said
	require.NoError(term.t, cmd.Start())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	term.t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	term.says("Ctrl-C stops everything; data stay")
	return func() int {
		require.NoError(term.t, cmd.Process.Signal(syscall.SIGINT))
		select {
		case <-ended:
		case <-time.After(time.Minute):
			require.FailNow(term.t, "does not end", "%s", term.said.String())
		}
		return cmd.ProcessState.ExitCode()
	}
}

func (term *terminal) says(text string) {
	term.t.Helper()
	testkit.Eventually(term.t, time.Minute, text, func() bool { return strings.Contains(term.said.String(), text) })
}

// With the services given `surefoot dev` brings everything else: a message is handled, one fails on demand, a redrive brings it back when
// the cause is mended. At the end its data are there.
func TestDevWithGivenServices(t *testing.T) {
	t.Parallel()
	term := newTerminal(t, given(t)...)
	interrupt := term.dev()
	code, out := term.run(`{"type":"practice.order","payload":{}}`+"\n"+`{"type":"practice.order","payload":{"fail":"permanent"}}`, "outbox", "add", "-o", "name")
	require.Zero(t, code, out)
	ids := strings.Fields(out)
	require.Len(t, ids, 2)
	term.says("INF handled event_id=" + ids[0] + " queue=practice.mail")
	term.says("ERR poison message, sending to DLQ")
	require.NotContains(t, term.said.String(), "handled event_id="+ids[1])

	require.NoError(t, os.WriteFile(filepath.Join(term.dir, "practice.mended"), nil, 0o600))
	code, out = term.run("", "dlq", "redrive", "--queue", "practice.mail", "--yes")
	require.Zero(t, code, out)
	term.says("INF handled event_id=" + ids[1] + " queue=practice.mail")

	require.Zero(t, interrupt(), term.said.String())
	require.Contains(t, term.said.String(), "INF stopped\n")
	require.NotContains(t, term.said.String(), "shard taken")
	for _, entry := range term.env {
		if _, value, _ := strings.Cut(entry, "="); strings.Contains(value, "@") {
			u, err := url.Parse(value)
			require.NoError(t, err)
			password, _ := u.User.Password()
			require.NotContains(t, term.said.String(), password, "a password that is not known to be the local stack's")
		}
	}
	code, out = term.run("", "dlq", "runs", "ls", "-o", "name")
	require.Zero(t, code, out)
	require.Len(t, strings.Fields(out), 1, "data stay")
}

// A configuration's own queues are worked on, with nothing to practise with beside them.
func TestDevWithAConfiguration(t *testing.T) {
	t.Parallel()
	term := newTerminal(t, given(t)...)
	config := "topology: {exchange: x, queues: [{name: q, bindings: [a.b], target: {exec: [cat]}}]}\n"
	require.NoError(t, os.WriteFile(filepath.Join(term.dir, "surefoot.yaml"), []byte(config), 0o600))
	interrupt := term.dev()
	require.NotContains(t, term.said.String(), "practice")
	require.Contains(t, term.said.String(), `echo '{"type":"a.b","key":"1","payload":{}}' | `)
	require.Contains(t, term.said.String(), " outbox add   # to q\n")
	code, out := term.run(`{"type":"a.b","payload":{}}`, "outbox", "add")
	require.Zero(t, code, out)
	term.says(" queue=q\n")
	require.Zero(t, interrupt(), term.said.String())
}

// Two at a time share the local stack: the first to end leaves it to the other, which stops it, all of it in one go. The checkout's scripts stand in
// for the stack: they give the services of the test, and write down what is stopped.
func TestDevLeavesTheStackToAnother(t *testing.T) {
	t.Parallel()
	env, checkout := given(t), t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(checkout, "scripts"), 0o700))
	var exports []string
	env = slices.DeleteFunc(env, func(entry string) bool {
		isURL := strings.Contains(entry, "_URL=")
		if isURL {
			exports = append(exports, "'"+entry+"'")
		}
		return isURL
	})
	for name, text := range map[string]string{
		"with-stack": "exec env " + strings.Join(exports, " ") + ` "$@"`,
		"stack":      `case $1 in down) echo "$*" >> "${0%/*}/downs" ;; *) [ -e "${0%/*}/up" ] && echo "db up broker up" ;; esac`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(checkout, "scripts", name), []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	}
	downs := func() string {
		text, _ := os.ReadFile(filepath.Join(checkout, "scripts", "downs")) // not there: none
		return string(text)
	}
	first, second := newTerminal(t, env...), newTerminal(t, env...)
	first.dir, second.dir = checkout, checkout
	endFirst := first.dev()
	require.NoError(t, os.WriteFile(filepath.Join(checkout, "scripts", "up"), nil, 0o600))
	endSecond := second.dev()
	require.Zero(t, endFirst(), first.said.String())
	require.Contains(t, first.said.String(), "stays up for another")
	require.Empty(t, downs())
	require.Zero(t, endSecond(), second.said.String())
	require.Equal(t, "down\n", downs(), second.said.String())
	left, err := os.ReadDir(filepath.Join(checkout, ".stack"))
	require.NoError(t, err)
	require.Empty(t, left, "a stack that is still to be made wants an empty directory")
}

func TestDevSaysWhatItNeeds(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		env  []string
		args []string
		code int
		want []string
	}{
		"no services, no checkout": {
			nil, nil, 2, []string{"no checkout of Surefoot", "set SUREFOOT_DATABASE_URL and SUREFOOT_AMQP_URL", "docker compose -f deploy/compose.yaml up"},
		},
		"another machine's services": {
			[]string{"SUREFOOT_DATABASE_URL=postgres://ann:hunter2@db.example/d", "SUREFOOT_AMQP_URL=amqp://ann:hunter2@mq.example/"},
			nil, 2,
			[]string{"not asked, because there is no terminal: make schema surefoot and the topology of 1 queue on db.example, mq.example?", "--yes"},
		},
		"a reset of what is not its own": {
			[]string{"SUREFOOT_DATABASE_URL=postgres://ann@127.0.0.1:1/d", "SUREFOOT_AMQP_URL=amqp://ann@127.0.0.1:1/"},
			[]string{"--reset", "--yes"},
			2,
			[]string{"--reset is for the local stack"},
		},
		"nobody there": {
			[]string{"SUREFOOT_DATABASE_URL=postgres://ann:hunter2@127.0.0.1:1/d", "SUREFOOT_AMQP_URL=amqp://ann:hunter2@127.0.0.1:1/"},
			nil, 5,
			[]string{"start it, or correct its address"},
		},
		"a look": {
			[]string{"SUREFOOT_DATABASE_URL=postgres://ann:hunter2@127.0.0.1:1/d", "SUREFOOT_AMQP_URL=amqp://ann:hunter2@127.0.0.1:1/"},
			[]string{"--dry-run"},
			0,
			[]string{"would migrate schema surefoot, make the topology of 1 queue, and run all roles; nothing was changed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, out := newTerminal(t, tt.env...).run("", append([]string{"dev"}, tt.args...)...)
			require.Equal(t, tt.code, code, out)
			for _, want := range tt.want {
				require.Contains(t, out, want)
			}
			require.NotContains(t, out, "hunter2")
		})
	}
}

func TestThePracticeWorkerFailsOnDemand(t *testing.T) {
	t.Parallel()
	term := newTerminal(t)
	for payload, want := range map[string]int{
		`{"fail":"permanent"}`: 65, `{"fail":"transient"}`: 1, `{"fail":"Permanent","orderId":"1"}`: 65,
		`{}`: 0, `{"fail":"never"}`: 0, `{"fail":7}`: 0, `not json`: 0, ``: 0, `[]`: 0,
	} {
		code, out := term.run(payload, "worker", "practice", "--mended", filepath.Join(term.dir, "practice.mended"))
		require.Equal(t, want, code, "%s: %s", payload, out)
	}
	require.NoError(t, os.WriteFile(filepath.Join(term.dir, "practice.mended"), nil, 0o600))
	code, out := term.run(`{"fail":"permanent"}`, "worker", "practice", "--mended", filepath.Join(term.dir, "practice.mended"))
	require.Zero(t, code, out)
}
