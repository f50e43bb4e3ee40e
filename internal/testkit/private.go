package testkit

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// startTimeout covers a private server's start on a loaded machine, and its stop.
const startTimeout = 3 * time.Minute

// Server is a server of the test's own. It keeps its port and data when it is stopped, killed and started.
type Server struct {
	component string // of scripts/stack: "db" or "broker"
	script    string
	dir       string
}

// BrokerServer is a RabbitMQ server of the test's own.
type BrokerServer struct {
	Server
	// AMQP is the default vhost "/"; more come from Vhost.
	AMQP
}

// PostgresServer is a PostgreSQL server of the test's own.
type PostgresServer struct {
	Server
	// URL of an empty database.
	URL string
}

// PrivateBroker starts a RabbitMQ server, which takes some seconds, and removes it when the test ends.
func PrivateBroker(t testing.TB) *BrokerServer {
	t.Helper()
	server, env := startServer(t, "broker")
	return &BrokerServer{server, AMQP{URL: env["SUREFOOT_AMQP_URL"], ManagementURL: env["SUREFOOT_MANAGEMENT_URL"], Vhost: "/"}}
}

// PrivatePostgres starts a PostgreSQL server and removes it when the test ends.
func PrivatePostgres(t testing.TB) *PostgresServer {
	t.Helper()
	server, env := startServer(t, "db")
	return &PostgresServer{server, env["SUREFOOT_DATABASE_URL"]}
}

func startServer(t testing.TB, component string) (Server, map[string]string) {
	t.Helper()
	needsServices(t)
	dir, err := os.MkdirTemp("", "surefoot-"+component+"-") //nolint:usetesting // t.TempDir is closed to the server's user
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755)) // the server's user must pass
	server := Server{component, filepath.Join(repository(t), "scripts", "stack"), dir}
	t.Cleanup(func() {
		server.run(context.WithoutCancel(t.Context()), t, "reset")
		_ = os.RemoveAll(dir)
	})
	server.Start(t)
	return server, readEnv(t, filepath.Join(dir, "env"))
}

// Start starts the server unless it runs, and returns when it is ready.
func (s Server) Start(t testing.TB) { t.Helper(); s.run(t.Context(), t, "up", s.component) }

// Stop shuts the server down in an orderly way and returns when it is gone.
func (s Server) Stop(t testing.TB) { t.Helper(); s.run(t.Context(), t, "down", s.component) }

// Restart is Stop and Start.
func (s Server) Restart(t testing.TB) { t.Helper(); s.run(t.Context(), t, "restart", s.component) }

// Kill kills all of the server's processes with SIGKILL and returns when they are gone. RabbitMQ 3.10 forgets a
// quorum queue that was declared less than a second before, with all that was confirmed into it (measured; its
// registry of queues is flushed every half second): let some time pass, or restart in between.
func (s Server) Kill(t testing.TB) { t.Helper(); s.run(t.Context(), t, "kill", s.component) }

// run calls scripts/stack. The stack follows this process: should it die, the server goes too.
func (s Server) run(ctx context.Context, t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, s.script, args...)
	command.Env = append(os.Environ(), "SUREFOOT_STACK_DIR="+s.dir, "SUREFOOT_STACK_PARENT="+strconv.Itoa(os.Getpid()))
	command.WaitDelay = time.Second
	out, err := command.CombinedOutput()
	require.NoError(t, err, "scripts/stack %s: %s", strings.Join(args, " "), out)
	return string(out)
}

// Ctl runs rabbitmqctl with args and returns what it prints. Each call takes about a second.
func (b *BrokerServer) Ctl(t testing.TB, args ...string) string {
	t.Helper()
	return b.run(t.Context(), t, append([]string{"ctl"}, args...)...)
}

// MemoryAlarm raises or clears the memory alarm and returns when it is in force: while it is, the broker reads
// nothing from connections that have published.
func (b *BrokerServer) MemoryAlarm(t testing.TB, on bool) {
	t.Helper()
	limit := "0.4"
	if on {
		limit = "0.0000001"
	}
	b.Ctl(t, "set_vm_memory_high_watermark", limit)
	Eventually(t, 30*time.Second, "the memory alarm to change", func() bool {
		var nodes []struct {
			Alarm bool `json:"mem_alarm"`
		}
		b.API(t, "GET", "/api/nodes", nil, &nodes)
		return len(nodes) == 1 && nodes[0].Alarm == on
	})
}

// NewVhost returns a further, empty vhost of this server.
func (b *BrokerServer) NewVhost(t testing.TB) AMQP {
	t.Helper()
	return newVhost(t, b.URL, b.ManagementURL)
}

// Database returns a freshly migrated schema on this server.
func (p *PostgresServer) Database(t testing.TB) DB {
	t.Helper()
	return newDatabase(t, p.URL)
}
