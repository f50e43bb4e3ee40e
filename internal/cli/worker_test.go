package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/internal/workercheck"
)

// workerCheck runs `surefoot worker check` and returns what it found by its name.
func workerCheck(t *testing.T, yaml string, args ...string) (result, map[string]workercheck.Result) {
	t.Helper()
	e := env(yaml)
	e.Environ = []string{"PATH=" + os.Getenv("PATH")}
	got := run(t, e, append([]string{"worker", "check", "-o", "json"}, args...)...)
	found := map[string]workercheck.Result{}
	if got.stdout != "" {
		var list []workercheck.Result
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &list), got.stdout)
		for _, one := range list {
			found[one.Check] = one
		}
	}
	return got, found
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

const sampleOrder = `{"orderId": "42"}`

func allOK(t *testing.T, got result, found map[string]workercheck.Result, checks int) {
	t.Helper()
	require.Zero(t, got.code, "%s%s", got.stdout, got.stderr)
	require.Len(t, found, checks)
	for name, one := range found {
		require.Equal(t, workercheck.OK, one.Outcome, "%s: %s", name, one.Detail)
	}
}

func TestTheExampleWorkerOverHTTPKeepsTheContract(t *testing.T) {
	t.Parallel()
	key := write(t, "key", "secret\n")
	url := testkit.PythonServer(t, []string{"WORKER_DB=" + filepath.Join(t.TempDir(), "db"), "WORKER_SIGNING_KEY_FILE=" + key}, "../../examples/workers/worker.py", "0")
	args := []string{"--url", url, "--type", "order.created", "--body", write(t, "body", sampleOrder)}
	got, found := workerCheck(t, "", append(args, "--signing-key-file", key)...)
	allOK(t, got, found, 11)
	require.Equal(t, "1 events", found["a repeat emits the same events"].Detail)

	got, found = workerCheck(t, "", append(args, "--signing-key-file", write(t, "key", "another"))...)
	require.Equal(t, cli.ExitDiffers, got.code)
	require.Contains(t, found["a message is done"].Detail, "http status 401")
	require.Equal(t, workercheck.Skipped, found["a repeat is done"].Outcome)
}

func TestTheExampleWorkerThatStaysKeepsTheContract(t *testing.T) {
	t.Parallel()
	python := testkit.Python(t)
	got, found := workerCheck(t, "", "--type", "order.created", "--body", write(t, "body", sampleOrder),
		"--", python, "../../examples/workers/lines.py", filepath.Join(t.TempDir(), "db"))
	allOK(t, got, found, 8)
	require.Equal(t, "1 events", found["a repeat emits the same events"].Detail)
}

func TestTheExampleWorkerInShellKeepsTheContract(t *testing.T) {
	t.Parallel()
	spool := t.TempDir()
	yaml := fmt.Sprintf("topology:\n  exchange: x\n  queues:\n    - {name: mail, target: {exec: [sh, ../../examples/workers/spool.sh, %q]}}\n", spool)
	got, found := workerCheck(t, yaml, "--queue", "mail", "--type", "order.created", "--body", write(t, "body", sampleOrder))
	allOK(t, got, found, 8)
	files, err := filepath.Glob(filepath.Join(spool, "*"))
	require.NoError(t, err)
	require.Len(t, files, 4, "one of each message that it took, and no draft: %v", files)
	text, err := os.ReadFile(files[0])
	require.NoError(t, err)
	require.NotEmpty(t, text)
}

func TestAWorkerThatBreaksTheContractIsFound(t *testing.T) {
	t.Parallel()
	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		switch {
		case r.Header.Get("Surefoot-Message-Type") == "surefoot.check.unknown":
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = fmt.Fprint(w, "no such \x1b[31mtype")
		case calls == 1:
			_, _ = fmt.Fprint(w, `{"events":[{"type":"mail.sent","payload":1}]}`)
		case calls > 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	got, found := workerCheck(t, "", "--url", server.URL, "--bearer-file", write(t, "token", "t"))
	require.Equal(t, cli.ExitDiffers, got.code)
	require.Contains(t, got.stderr, "7 of 9 checks failed")
	for check, want := range map[string]string{
		"a repeat emits the same events":  "0 events, but 1 at first",
		"another message is done":         "http status 503",
		"a broken body does no harm":      "transient: ",
		"an unknown type does no harm":    `no such \x1b[31mtype`,
		"without the token it is refused": "anybody could send messages",
		"an empty body does no harm":      "refuse it for good",
		"hostile metadata does no harm":   "transient",
	} {
		require.Equal(t, workercheck.Failed, found[check].Outcome, check)
		require.Contains(t, found[check].Detail, want, check)
	}
	require.Equal(t, workercheck.OK, found["a repeat is done"].Outcome)

	e := env("")
	table := run(t, e, "worker", "check", "--url", server.URL)
	require.Equal(t, cli.ExitDiffers, table.code)
	require.NotContains(t, table.stdout, "\x1b")
	require.True(t, strings.HasPrefix(table.stdout, "CHECK"))
}

func TestWorkerCheckUsage(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"needs one of --url, --queue and a program": {},
		"needs one of":              {"--url", "http://a/", "--", "true"},
		"must be a whole one":       {"--url", "mail.example.org"},
		"not shown":                 {"--url", "http://u:secret@a/"},
		"queue nope has no target":  {"--queue", "nope"},
		"read bearer token":         {"--url", "http://a/", "--bearer-file", "/nowhere"},
		"read the body":             {"--url", "http://a/", "--body", "/nowhere"},
		"Type is empty":             {"--url", "http://a/", "--type", ""},
		"executable file not found": {"--", "no-program-of-this-name"},
		"--timeout cannot be":       {"--url", "http://a/", "--timeout", "soon"},
	} {
		got, _ := workerCheck(t, "", args...)
		require.Equal(t, cli.ExitUsage, got.code, "%s: %s", want, got.stderr)
		require.Contains(t, got.stderr, want)
		require.NotContains(t, got.stderr, "secret")
	}
	for _, args := range [][]string{{"--url", "http://127.0.0.1:1/"}, {"--", "false"}} {
		got, _ := workerCheck(t, "", args...)
		require.Equal(t, cli.ExitUnreachable, got.code, got.stderr)
	}
}
