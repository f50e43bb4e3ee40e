package cli_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

// secretive is a set-up with something secret in each place that can hold it. Database and broker know a user of its own.
type secretive struct {
	t      *testing.T
	db     testkit.DB
	broker testkit.AMQP
	user   string // of both
	dir    string

	mu      sync.Mutex
	markers []string
}

func newSecretive(t *testing.T) *secretive {
	t.Helper()
	s := &secretive{t: t, db: testkit.Database(t), broker: testkit.Broker(t), user: testkit.Name("secretive"), dir: t.TempDir()}
	s.exec("CREATE ROLE %s LOGIN SUPERUSER", s.user)
	t.Cleanup(func() {
		_, _ = s.db.Pool.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+s.user+"; DROP ROLE "+s.user)
	})
	return s
}

func (s *secretive) exec(statement string, args ...any) {
	s.t.Helper()
	_, err := s.db.Pool.Exec(s.t.Context(), fmt.Sprintf(statement, args...))
	require.NoError(s.t, err)
}

// marker is a secret that is found again wherever it shows.
func (s *secretive) marker(of string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	marker := testkit.Name("hunter2-" + of)
	s.markers = append(s.markers, marker)
	return marker
}

// clean fails the test when a text shows something of a secret.
func (s *secretive) clean(what, text string) {
	s.t.Helper()
	for _, marker := range s.markers {
		if at := strings.Index(text, marker); at >= 0 {
			s.t.Errorf("%s shows %s: ...%s", what, marker, text[max(at-300, 0):min(at+len(marker)+50, len(text))])
		}
	}
}

// letIn gives the user a new password and returns both URLs with it.
func (s *secretive) letIn() (database, broker string) {
	s.t.Helper()
	password := s.marker("database")
	s.exec("ALTER ROLE %s PASSWORD '%s'", s.user, password)
	database = withUser(s.t, s.db.Direct, s.user, password)
	password = s.marker("broker")
	s.broker.API(s.t, "PUT", "/api/users/"+s.user, map[string]string{"password": password, "tags": "administrator"}, nil)
	all := map[string]string{"configure": ".*", "write": ".*", "read": ".*"}
	s.broker.API(s.t, "PUT", "/api/permissions/"+s.broker.Vhost+"/"+s.user, all, nil)
	return database, withUser(s.t, s.broker.URL, s.user, password)
}

// forget removes the broker's user; the role goes with the test.
func (s *secretive) forget() { s.broker.API(s.t, "DELETE", "/api/users/"+s.user, nil, nil) }

func withUser(t *testing.T, raw, user, password string) string {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	u.User = url.UserPassword(user, password)
	return u.String()
}

// file writes a file of the set-up and returns its path.
func (s *secretive) file(name, content string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	require.NoError(s.t, os.WriteFile(path, []byte(content+"\n"), 0o600))
	return path
}

// commands are all of the program that do something, as words.
func commands(t *testing.T, words ...string) (all [][]string) {
	t.Helper()
	help := run(t, env(""), append(slices.Clone(words), "--help")...)
	require.Zero(t, help.code, help.stderr)
	_, list, several := strings.Cut(help.stdout, "Available Commands:\n")
	if !several {
		return [][]string{words}
	}
	if len(words) > 0 && strings.Contains(help.stdout, " [flags]\n") {
		all = append(all, words)
	}
	list, _, _ = strings.Cut(list, "\n\n")
	for line := range strings.SplitSeq(strings.TrimSuffix(list, "\n"), "\n") {
		if name := strings.Fields(line)[0]; name != "help" && name != "completion" {
			all = append(all, commands(t, append(slices.Clone(words), name)...)...)
		}
	}
	return all
}

// Every command, against services that let it in, that refuse it and that are away, and with URLs that nobody can read: nothing it says shows
// a secret.
func TestNoCommandShowsASecret(t *testing.T) {
	t.Parallel()
	s := newSecretive(t)
	database, broker := s.letIn()
	defer s.forget()
	yaml := fmt.Sprintf(`
topology:
  exchange: events
  queues:
    - name: q
      bindings: [q.#]
      target: {http: {url: "http://127.0.0.1:1/", bearer_file: %s, signing_key_file: %s}}
watchdog: {rules: [{name: r, table: %[3]s.outbox, key: message_id, status: type, stuck: [a], clock: occurred_at, limit: 1h, new_status: b, reason: R, event_type: e}]}
`, s.file("bearer", s.marker("bearer")), s.file("key", s.marker("signing-key")), s.db.Schema)
	environ := func(database, broker, management string) []string {
		return []string{
			"SUREFOOT_DATABASE_URL=" + database, "SUREFOOT_AMQP_URL=" + broker, "SUREFOOT_MANAGEMENT_URL=" + management, "SUREFOOT_RELAY_LISTEN_URL=" + database,
			"SUREFOOT_SCHEMA=" + s.db.Schema, "SUREFOOT_HTTP_LISTEN=127.0.0.1:0", "SUREFOOT_LOG_LEVEL=trace", "SUREFOOT_CONSOLE_LISTEN=127.0.0.1:0",
			"SUREFOOT_DATABASE_CONNECT_TIMEOUT=1s", "SUREFOOT_SHUTDOWN_TIMEOUT=2s",
		}
	}
	management := strings.Replace(s.broker.ManagementURL, "://", "://"+s.user+":"+mustPassword(t, broker)+"@", 1)
	wrong := s.marker("wrong")
	nowhere := "ann:" + wrong + "@127.0.0.1:1"
	kinds := map[string][]string{
		"working": environ(database, broker, management),
		"refused": environ(withUser(t, database, s.user, wrong), withUser(t, broker, s.user, wrong), withUser(t, management, s.user, wrong)),
		"away":    environ("postgres://"+nowhere+"/d?sslmode=disable", "amqp://"+nowhere+"/", "http://"+nowhere),
		"dsn":     environ("host=127.0.0.1 port=1 user=ann password="+wrong, "amqps://"+nowhere+"/?password="+wrong, "https://"+nowhere),
		"unread":  environ("postgres://ann:"+wrong+"#x@h:p/d", "amqp://ann:"+wrong+"%zz@h", "http://"+wrong+":"+wrong+"@h:x/"),
	}
	all := commands(t)
	require.Greater(t, len(all), 60)
	for kind, environ := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			for _, words := range all {
				if slow := slices.Contains([]string{"bench", "demo", "dev", "drill"}, words[0]); slow && kind == "working" {
					continue // they do more than ask, and have tests of their own
				}
				if kind != "working" && kind != "refused" && !slices.Contains([]string{"doctor", "run", "topology plan", "migrate up", "outbox ls", "dlq ls", "console", "demo", "consume ls"}, strings.Join(words, " ")) {
					continue
				}
				e := env(yaml)
				read := e.ReadFile
				e.Environ = environ
				e.ReadFile = func(path string) ([]byte, error) {
					if path == "surefoot.yaml" {
						return read(path)
					}
					return os.ReadFile(path)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				for _, more := range [][]string{nil, {"--queue", "q", "--yes"}} {
					if more != nil && (kind != "working" || words[0] != "dlq") {
						continue
					}
					if words[0] == "init" {
						more = []string{"--output", filepath.Join(t.TempDir(), "surefoot.yaml")}
					}
					got := runIn(ctx, t, e, append(slices.Clone(words), more...)...)
					s.clean(fmt.Sprintf("%s: %s", kind, words), got.stdout+got.stderr)
				}
				cancel()
			}
		})
	}
}

func mustPassword(t *testing.T, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	password, _ := u.User.Password()
	return password
}

// endpoint counts what reaches it with the right secrets.
type endpointWithSecrets struct {
	mu     sync.Mutex
	bearer string
	done   map[string]bool
}

func (e *endpointWithSecrets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer "+e.bearer {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	e.done[r.Header.Get("Surefoot-Message-Id")] = true
}

func (e *endpointWithSecrets) handled(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.done[id]
}

// All roles, while every secret they use is rotated under them: what is enqueued afterwards is handled, without a restart, and no secret shows
// in their logs, their metrics, the process list or the environment of the programs that they start.
func TestRotatedSecretsNeedNoRestartAndShowNowhere(t *testing.T) {
	t.Parallel()
	s := newSecretive(t)
	database, broker := s.letIn()
	defer s.forget()
	target := &endpointWithSecrets{bearer: s.marker("bearer"), done: map[string]bool{}}
	server := httptest.NewServer(target)
	defer server.Close()
	databaseFile, brokerFile, bearerFile := s.file("database", database), s.file("broker", broker), s.file("bearer", target.bearer)
	seen := filepath.Join(s.dir, "environment")
	s.file("surefoot.yaml", fmt.Sprintf(`
topology:
  exchange: events
  queues:
    - name: posted
      bindings: [posted.#]
      retry: [1s]
      target: {http: {url: %q, bearer_file: %s, signing_key_file: %s}}
    - name: run
      bindings: [run.#]
      target: {exec: [sh, -c, "env > %s.new && tr '\\0' ' ' </proc/$PPID/cmdline >> %[4]s.new && mv %[4]s.new %[4]s"]}
dependencies: {posted: {breaker: {open: 100ms}}}
`, server.URL, bearerFile, s.file("key", s.marker("signing-key")), seen))
	address := freeAddress(t)
	var log testkit.Buffer
	cmd := exec.CommandContext(t.Context(), testkit.Binary(t), "run")
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, &log, &log
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "SUREFOOT_DATABASE_URL_FILE=" + databaseFile, "SUREFOOT_RELAY_LISTEN_URL_FILE=" + databaseFile,
		"SUREFOOT_AMQP_URL_FILE=" + brokerFile, "SUREFOOT_MANAGEMENT_URL=" + s.broker.ManagementURL, "SUREFOOT_SCHEMA=" + s.db.Schema,
		"SUREFOOT_HTTP_LISTEN=" + address, "SUREFOOT_LOG_LEVEL=trace", "SUREFOOT_LOG_FORMAT=json",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://ann:" + s.marker("collector") + "@127.0.0.1:1", "OTEL_EXPORTER_OTLP_HEADERS=api-key=" + s.marker("api-key"),
	}
	apply := exec.CommandContext(t.Context(), testkit.Binary(t), "topology", "apply", "--yes")
	apply.Dir, apply.Env = s.dir, cmd.Env
	out, err := apply.CombinedOutput()
	require.NoError(t, err, "%s", out)
	s.clean("topology apply", string(out))
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	defer func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Log(log.String())
		}
	}()

	payload := s.marker("payload")
	enqueue := func(kind string) string {
		tx, err := s.db.Pool.Begin(t.Context())
		require.NoError(t, err)
		id := testkit.Name("m")
		err = outbox.Enqueue(outbox.WithSchema(t.Context(), s.db.Schema), tx, message.Message{ID: id, Type: kind, Payload: []byte(`"` + payload + `"`)})
		require.NoError(t, err)
		require.NoError(t, tx.Commit(t.Context()))
		return id
	}
	first := enqueue("posted.first")
	testkit.Eventually(t, time.Minute, "the first message", func() bool { return target.handled(first) })
	enqueue("run.first")
	testkit.Eventually(t, time.Minute, "the program", func() bool { _, err := os.Stat(seen); return err == nil })

	// The services have new secrets, and nobody is connected with the old ones any more.
	database, broker = s.letIn()
	target.mu.Lock()
	target.bearer = s.marker("bearer")
	target.mu.Unlock()
	s.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '%s'", s.user)
	s.disconnect()
	testkit.Eventually(t, time.Minute, "readiness to say so", func() bool {
		status, text := get(t, "http://"+address+"/readyz")
		s.clean("/readyz", text)
		return status == http.StatusServiceUnavailable
	})
	second := enqueue("posted.second")
	s.file("database", database)
	s.file("broker", broker)
	s.file("bearer", target.bearer)
	testkit.Eventually(t, time.Minute, "the second message", func() bool { return target.handled(second) })
	testkit.Eventually(t, time.Minute, "readiness", func() bool {
		status, _ := get(t, "http://"+address+"/readyz")
		return status == http.StatusOK
	})

	for _, path := range []string{"/metrics", "/readyz", "/livez"} {
		_, text := get(t, "http://"+address+path)
		s.clean(path, text)
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid))
	require.NoError(t, err)
	s.clean("the process list", string(line))
	environment, err := os.ReadFile(seen)
	require.NoError(t, err)
	require.Contains(t, string(environment), "SUREFOOT_TYPE=run.first")
	require.NotContains(t, string(environment), "SUREFOOT_DATABASE_URL")
	s.markers = slices.DeleteFunc(s.markers, func(m string) bool { return strings.Contains(m, "collector") || strings.Contains(m, "api-key") }) // not Surefoot's variables: inherited
	s.clean("the environment of a program", string(environment))
	s.markers = append(s.markers, "hunter2-")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	<-ended
	require.Zero(t, cmd.ProcessState.ExitCode(), log.String())
	s.clean("the log", log.String())
}

// disconnect has the broker close all connections of the user.
func (s *secretive) disconnect() {
	s.t.Helper()
	s.broker.CloseConnections(s.t, func(c testkit.Connection) bool { return c.User == s.user })
}

// freeAddress is one where nothing listens at the moment.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

func get(t *testing.T, u string) (status int, text string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, u, http.NoBody)
	require.NoError(t, err)
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}
