package main_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const patience = 30 * time.Second

// process is the real binary at work.
type process struct {
	cmd    *exec.Cmd
	lines  chan string // of stderr, closed at its end
	stdout bytes.Buffer
	url    string
}

// surefoot starts the binary with an environment of nothing but vars.
func surefoot(t *testing.T, vars []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.CommandContext(t.Context(), testkit.Binary(t), args...), lines: make(chan string, 1000)}
	p.cmd.Dir, p.cmd.Env, p.cmd.Stdout = t.TempDir(), vars, &p.stdout
	stderr, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.lines)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			p.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() })
	return p
}

// until reads log lines until one has the message, and returns that one's fields.
func (p *process) until(t *testing.T, message string) map[string]any {
	t.Helper()
	var seen []string
	timeout := time.After(patience)
	for {
		select {
		case line, ok := <-p.lines:
			require.True(t, ok, "ended without %q: %s", message, strings.Join(seen, "\n"))
			seen = append(seen, line)
			var fields map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &fields), "a log line is not JSON: %s", line)
			if fields["message"] == message {
				return fields
			}
		case <-timeout:
			require.FailNow(t, "no such line", "%q in %s", message, strings.Join(seen, "\n"))
		}
	}
}

// running waits for the probes.
func (p *process) running(t *testing.T) {
	t.Helper()
	addr, ok := p.until(t, "probes are served")["addr"].(string)
	require.True(t, ok)
	p.url = "http://" + addr
}

func (p *process) status(t *testing.T, path string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	response, err := client.Get(p.url + path)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

// ended waits for the exit and returns its code.
func (p *process) ended(t *testing.T) int {
	t.Helper()
	timeout := time.After(patience)
	for open := true; open; {
		select {
		case line, more := <-p.lines:
			if open = more; more {
				t.Log(line)
			}
		case <-timeout:
			require.FailNow(t, "does not end")
		}
	}
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

func environment(db testkit.DB, more ...string) []string {
	return append([]string{
		"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema, "SUREFOOT_HTTP_LISTEN=127.0.0.1:0", "SUREFOOT_RELAY_EXCHANGE=shop.events",
	}, more...)
}

func TestRunStopsOnSIGTERM(t *testing.T) {
	t.Parallel()
	p := surefoot(t, environment(testkit.Database(t), "SUREFOOT_AMQP_URL="+testkit.Broker(t).URL), "run")
	p.running(t)
	testkit.Eventually(t, patience, "readiness", func() bool {
		code, _ := p.status(t, "/readyz")
		return code == http.StatusOK
	})
	began := time.Now()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.until(t, "stopping")
	p.until(t, "stopped")
	require.Zero(t, p.ended(t))
	require.Less(t, time.Since(began), 25*time.Second)
	require.Empty(t, p.stdout.String(), "stdout is for data")
}

func TestSecondSignalExitsAtOnce(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	network := testkit.Proxy(t, db.URL)
	vars := environment(testkit.DB{URL: network.Through(t, db.URL), Schema: db.Schema},
		"SUREFOOT_AMQP_URL="+testkit.Broker(t).URL)
	p := surefoot(t, vars, "run")
	p.running(t)
	testkit.Eventually(t, patience, "readiness", func() bool {
		code, _ := p.status(t, "/readyz")
		return code == http.StatusOK
	})
	network.HalfOpen(t) // the drain waits for a database that says nothing more
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	p.until(t, "stopping")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, 130, p.ended(t))
}

func TestServicesAwayAtStart(t *testing.T) {
	t.Parallel()
	p := surefoot(t, environment(testkit.DB{URL: "postgres://ann:hunter2@127.0.0.1:1/d", Schema: "surefoot"},
		"SUREFOOT_AMQP_URL=amqp://ann:hunter2@127.0.0.1:1/"), "run")
	p.running(t)
	warning := p.until(t, "waiting for the database")
	require.NotContains(t, warning["error"], "hunter2")
	code, body := p.status(t, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.NotContains(t, body, "hunter2")
	code, _ = p.status(t, "/livez")
	require.Equal(t, http.StatusOK, code)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(t, p.ended(t))
}

func TestBadConfigurationExitsAtOnce(t *testing.T) {
	t.Parallel()
	p := surefoot(t, []string{"SUREFOOT_RELAY_LEASE=10", "SUREFOOT_LOG_LEVEL=loud"}, "run")
	line := p.until(t, "the configuration is not usable")
	require.Equal(t, "fatal", line["level"])
	require.Len(t, line["faults"], 4)
	require.Equal(t, 2, p.ended(t))
}

func TestInterruptedCommand(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	p := surefoot(t, []string{"SUREFOOT_DATABASE_URL=postgres://ann@" + silent.Addr().String() + "/d"}, "migrate", "status")
	conn, err := silent.Accept() // by now the program listens to signals
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, 130, p.ended(t))
	require.Empty(t, p.stdout.String())
}
