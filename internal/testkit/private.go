package testkit

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// startTimeout covers a private server's start on a loaded machine, and its stop.
const startTimeout = 3 * time.Minute

// Server is a server of the test's own. It keeps its port and data when it is stopped, killed and started.
type Server struct {
	component string // of scripts/stack: "db" or "broker"
	script    string
	dir       string
	env       []string // for scripts/stack
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
	server := newServer(t, "broker")
	env := server.begin(t)
	return &BrokerServer{server, AMQP{URL: env["SUREFOOT_AMQP_URL"], ManagementURL: env["SUREFOOT_MANAGEMENT_URL"], Vhost: "/"}}
}

// PrivatePostgres starts a PostgreSQL server and removes it when the test ends.
func PrivatePostgres(t testing.TB) *PostgresServer {
	t.Helper()
	return newPostgres(t)
}

func newPostgres(t testing.TB, env ...string) *PostgresServer {
	t.Helper()
	server := newServer(t, "db", env...)
	return &PostgresServer{server, server.begin(t)["SUREFOOT_DATABASE_URL"]}
}

// SmallPostgres starts a PostgreSQL server whose disk has that many bytes, in memory, and can be filled. It needs root.
func SmallPostgres(t testing.TB, bytes int) *PostgresServer {
	t.Helper()
	server := newServer(t, "db")
	disk := filepath.Join(server.dir, "data")
	require.NoError(t, os.WriteFile(filepath.Join(server.dir, "lock"), nil, 0o600)) // the mark of a stack's directory
	require.NoError(t, os.Mkdir(disk, 0o755))
	require.NoError(t, syscall.Mount("tmpfs", disk, "tmpfs", 0, "mode=755,size="+strconv.Itoa(bytes))) // "reset" takes it away
	return &PostgresServer{server, server.begin(t)["SUREFOOT_DATABASE_URL"]}
}

func (p *PostgresServer) ballast() string { return filepath.Join(p.dir, "data", "ballast") }

// FillDisk leaves not a byte of a SmallPostgres' disk.
func (p *PostgresServer) FillDisk(t testing.TB) {
	t.Helper()
	file, err := os.Create(p.ballast())
	require.NoError(t, err)
	defer file.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = file.Write(block)
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
}

// FreeDisk undoes FillDisk.
func (p *PostgresServer) FreeDisk(t testing.TB) {
	t.Helper()
	require.NoError(t, os.Remove(p.ballast()))
}

// newServer makes the directory of a server, which goes when the test ends.
func newServer(t testing.TB, component string, env ...string) Server {
	t.Helper()
	needsServices(t)
	dir, err := os.MkdirTemp("", "surefoot-"+component+"-") //nolint:usetesting // t.TempDir is closed to the server's user
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755)) // the server's user must pass
	server := Server{component, filepath.Join(repository(t), "scripts", "stack"), dir, env}
	t.Cleanup(func() {
		server.run(context.WithoutCancel(t.Context()), t, "reset")
		_ = os.RemoveAll(dir)
	})
	return server
}

// begin starts the server for the first time and returns its addresses.
func (s Server) begin(t testing.TB) map[string]string {
	t.Helper()
	s.Start(t)
	return readEnv(t, filepath.Join(s.dir, "env"))
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

// Describe returns whether the server runs and where, and the end of its log, for a test that has failed.
func (s Server) Describe(t testing.TB) string {
	t.Helper()
	command := exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-c", `"$1" status; "$1" logs "$2"`, "sh", s.script, s.component)
	command.Env = append(os.Environ(), "SUREFOOT_STACK_DIR="+s.dir)
	out, _ := command.CombinedOutput() // what it says of a server that is down is wanted too
	return string(out)
}

// run calls scripts/stack. The stack follows this process: should it die, the server goes too. A server that comes back at another
// port fails the test here, and not where nobody finds it.
func (s Server) run(ctx context.Context, t testing.TB, args ...string) string {
	t.Helper()
	var out strings.Builder
	before := s.addresses()
	s.pipe(ctx, t, nil, &out, args...)
	if after := s.addresses(); before != "" && after != "" {
		require.Equal(t, before, after, "scripts/stack %s moved the server", strings.Join(args, " "))
	}
	return out.String()
}

// addresses are those of the server, "" before it has begun.
func (s Server) addresses() string {
	text, _ := os.ReadFile(filepath.Join(s.dir, "env"))
	return string(text)
}

// pipe is run with the script's standard input and output given.
func (s Server) pipe(ctx context.Context, t testing.TB, in io.Reader, out io.Writer, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, s.script, args...)
	command.Env = append(os.Environ(), "SUREFOOT_STACK_DIR="+s.dir, "SUREFOOT_STACK_PARENT="+strconv.Itoa(os.Getpid()))
	command.Env = append(command.Env, s.env...)
	var errs strings.Builder
	command.Stdin, command.Stdout, command.Stderr, command.WaitDelay = in, out, &errs, time.Second
	err := command.Run()
	require.NoError(t, err, "scripts/stack %s: %s", strings.Join(args, " "), errs.String())
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

// DiskAlarm raises or clears the alarm of the broker's disk: its effect is that of the memory alarm.
func (b *BrokerServer) DiskAlarm(t testing.TB, on bool) {
	t.Helper()
	limit := "50MB"
	if on {
		limit = "100000GB"
	}
	b.Ctl(t, "set_disk_free_limit", limit)
}

// NewVhost returns a further, empty vhost of this server.
func (b *BrokerServer) NewVhost(t testing.TB) AMQP {
	t.Helper()
	return newVhost(t, b.URL, b.ManagementURL)
}

// Standby starts a server that follows p, asynchronously, by way of the URL through: p's, or one of a proxy in between.
func (p *PostgresServer) Standby(t testing.TB, through string) *PostgresServer {
	t.Helper()
	return newPostgres(t, "SUREFOOT_STACK_PRIMARY="+through)
}

// Promote makes a standby a primary and returns when it is one.
func (p *PostgresServer) Promote(t testing.TB) { t.Helper(); p.run(t.Context(), t, "promote") }

// StartReadOnly starts a stopped server for looking only: a transaction there writes nothing unless it asks to.
func (p *PostgresServer) StartReadOnly(t testing.TB) {
	t.Helper()
	settings, err := os.OpenFile(filepath.Join(p.dir, "data", "db", "cluster", "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = settings.WriteString("default_transaction_read_only = on\n")
	require.NoError(t, errors.Join(err, settings.Close()))
	p.Start(t)
}

// Dump writes a dump of the database to a file and returns its name.
func (p *PostgresServer) Dump(t testing.TB) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "dump"))
	require.NoError(t, err)
	defer file.Close()
	p.pipe(t.Context(), t, nil, file, "dump")
	return file.Name()
}

// Restore reads a dump into the database.
func (p *PostgresServer) Restore(t testing.TB, dump string) {
	t.Helper()
	file, err := os.Open(dump)
	require.NoError(t, err)
	defer file.Close()
	p.pipe(t.Context(), t, file, io.Discard, "restore")
}

// Connect returns a pool on the server's database, closed when the test ends.
func (p *PostgresServer) Connect(t testing.TB) *pgxpool.Pool { t.Helper(); return pool(t, p.URL) }

// Database returns a freshly migrated schema on this server.
func (p *PostgresServer) Database(t testing.TB) DB {
	t.Helper()
	return newDatabase(t, p.URL)
}
