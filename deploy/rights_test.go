package deploy_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

const password = "of-the-test-alone"

// rights are a server of each kind with the users and roles that deploy/ gives them.
type rights struct {
	broker *testkit.BrokerServer
	pg     *testkit.PostgresServer
	dir    string // readable by the servers' users
}

// Every role starts, works with exactly the rights of deploy/, and is refused beyond them.
func TestRolesWorkWithTheirRightsAlone(t *testing.T) {
	t.Parallel()
	r := newRights(t)
	r.importDefinitions(t)
	r.grant(t)
	r.everyTableIsGiven(t)
	r.topology(t)
	r.work(t)
	r.refusedByTheBroker(t)
	r.refusedByTheDatabase(t)
}

func newRights(t *testing.T) *rights {
	t.Helper()
	r := &rights{broker: testkit.PrivateBroker(t), pg: testkit.PrivatePostgres(t)}
	dir, err := os.MkdirTemp("", "surefoot-deploy-") //nolint:usetesting // t.TempDir is closed to the servers' user
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	r.dir = dir
	return r
}

func (r *rights) write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(r.dir, name)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	return file
}

// as is the environment of a process of that user of the broker and role of the database; either may be empty.
func (r *rights) as(t *testing.T, user, role string) []string {
	t.Helper()
	environ := []string{"SUREFOOT_CONFIG=" + r.write(t, "surefoot.yaml", read(t, "testdata/surefoot.yaml")), "SUREFOOT_HTTP_LISTEN=127.0.0.1:0", "SUREFOOT_LOG_FORMAT=json"}
	if user != "" {
		environ = append(environ, "SUREFOOT_AMQP_URL="+with(t, r.broker.URL, user), "SUREFOOT_MANAGEMENT_URL="+r.broker.ManagementURL)
	}
	if role != "" {
		environ = append(environ, "SUREFOOT_DATABASE_URL="+with(t, r.pg.URL, role))
	}
	return environ
}

// with is a URL with another user.
func with(t *testing.T, text, user string) string {
	t.Helper()
	u, err := url.Parse(text)
	require.NoError(t, err)
	u.User = url.UserPassword(user, password)
	return u.String()
}

// importDefinitions has rabbitmqctl take what the binary exports, and gives the users passwords.
func (r *rights) importDefinitions(t *testing.T) {
	t.Helper()
	exported := surefoot(t, r.as(t, "", ""), "topology", "export", "--users")
	require.Zero(t, exported.code, exported.stderr)
	if generation := os.Getenv("SUREFOOT_STACK_BROKER"); generation == "" || generation == "3.10" {
		r.broker.Ctl(t, "import_definitions", r.write(t, "definitions.json", exported.stdout))
	} else { // its rabbitmqctl runs in a root of its own, where the file is not
		r.broker.API(t, http.MethodPost, "/api/definitions", json.RawMessage(exported.stdout), nil)
	}
	var definitions struct {
		Users []struct {
			Name string
			Tags []string
		}
	}
	require.NoError(t, json.Unmarshal([]byte(exported.stdout), &definitions))
	for _, user := range definitions.Users {
		r.broker.API(t, http.MethodPut, "/api/users/"+user.Name, map[string]any{"password": password, "tags": strings.Join(user.Tags, ",")}, nil)
	}
}

// grant makes the roles, migrates as their owner, and gives them their rights.
func (r *rights) grant(t *testing.T) {
	t.Helper()
	admin := r.pg.Connect(t)
	do := func(sql string) {
		_, err := admin.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	do(read(t, "postgres/roles.sql"))
	do(`CREATE ROLE shop LOGIN; GRANT surefoot_producer TO shop`)
	for _, role := range []string{"owner", "relay", "consume", "dlq", "watchdog", "reconcile", "run", "operator"} {
		do(`ALTER ROLE surefoot_` + role + ` PASSWORD '` + password + `'`)
	}
	do(`ALTER ROLE shop PASSWORD '` + password + `'`)
	up := surefoot(t, r.as(t, "", "surefoot_owner"), "migrate", "up")
	require.Zero(t, up.code, up.stderr)
	owner := r.connect(t, "surefoot_owner")
	for range 2 { // again after every migration
		_, err := owner.Exec(t.Context(), read(t, "postgres/grants.sql"))
		require.NoError(t, err)
	}
	do(`CREATE SCHEMA app; CREATE TABLE app.orders (id text PRIMARY KEY, status text NOT NULL, at timestamptz NOT NULL);
		GRANT USAGE ON SCHEMA app TO surefoot_watchdog, surefoot_reconcile;
		GRANT SELECT, UPDATE ON app.orders TO surefoot_watchdog, surefoot_reconcile;
		INSERT INTO app.orders VALUES ('stuck', 'WAITING', now() - interval '1 hour'), ('doubtful', 'PENDING', now() - interval '1 hour')`)
}

func (r *rights) connect(t *testing.T, role string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), with(t, r.pg.URL, role))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

// topology: what was imported is what surefoot.yaml wants, and its user makes it anew.
func (r *rights) topology(t *testing.T) {
	t.Helper()
	environ := r.as(t, "surefoot-topology", "")
	require.Equal(t, output{0, "", "the broker is as surefoot.yaml wants it\n"}, surefoot(t, environ, "topology", "plan"))
	for _, name := range []string{"orders.saga", "orders.saga.retry", "orders.saga.dlq"} {
		r.broker.API(t, http.MethodDelete, "/api/queues/%2F/"+name, nil, nil)
	}
	for _, name := range []string{"shop.events", "shop.events.dlx", "shop.events.retry"} {
		r.broker.API(t, http.MethodDelete, "/api/exchanges/%2F/"+name, nil, nil)
	}
	made := surefoot(t, environ, "topology", "apply", "--yes")
	require.Zero(t, made.code, made.stderr)
	for _, user := range []string{"surefoot-topology", "surefoot-consume", "surefoot-dlq", "surefoot-run"} {
		verified := surefoot(t, r.as(t, user, ""), "topology", "verify")
		require.Zero(t, verified.code, verified.stderr)
		require.NotContains(t, verified.stderr, "not checked", user)
	}
}

// process is a role that runs.
type process struct {
	name string
	cmd  *exec.Cmd
	logs *lines
}

// lines takes what a process writes.
type lines struct{ testkit.Buffer }

// addr is where the probes are served, once they are.
func (l *lines) addr() string {
	for line := range strings.Lines(l.String()) {
		var entry struct{ Message, Addr string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Message == "probes are served" {
			return entry.Addr
		}
	}
	return ""
}

// start starts a role and returns when it is ready.
func (r *rights) start(t *testing.T, user, role string, args ...string) *process {
	t.Helper()
	p := &process{strings.Join(args, " "), exec.CommandContext(t.Context(), testkit.Binary(t), args...), &lines{}}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = append(r.as(t, user, role), "PATH="+os.Getenv("PATH")), p.logs, p.logs
	p.cmd.Cancel = func() error { return p.cmd.Process.Kill() }
	require.NoError(t, p.cmd.Start())
	testkit.EventuallyNil(t, time.Minute, p.name+" to be ready", func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.logs.addr()+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		request.Close = true // an idle connection would count as a leak
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return errors.New(p.logs.String())
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return errors.New(p.logs.String())
		}
		return nil
	})
	return p
}

// stop ends the role, which must have met no refusal.
func (p *process) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, p.cmd.Wait(), "%s: %s", p.name, p.logs)
	for _, refusal := range []string{"permission denied", "42501", "ACCESS_REFUSED", "no permission", "not checked"} {
		require.NotContains(t, p.logs.String(), refusal, p.name)
	}
}

// work has every role do what it is for, alone and then all in one process.
func (r *rights) work(t *testing.T) {
	t.Helper()
	processes := []*process{
		r.start(t, "surefoot-relay", "surefoot_relay", "relay", "run"),
		r.start(t, "surefoot-consume", "surefoot_consume", "consume", "run"),
		r.start(t, "", "surefoot_watchdog", "watchdog", "run"),
		r.start(t, "", "surefoot_reconcile", "reconcile", "run"),
	}
	shop, admin := r.connect(t, "shop"), r.pg.Connect(t)
	_, err := shop.Exec(t.Context(),
		`SELECT surefoot.enqueue('order.created', convert_to(x, 'UTF8'), key => x, message_id => x) FROM (VALUES ('good'), ('bad')) v(x)`)
	require.NoError(t, err)
	count := func(sql string) int {
		var n int
		require.NoError(t, admin.QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	testkit.Eventually(t, time.Minute, "the good one and the two events of the rules to be handled", func() bool { return count(`SELECT count(*) FROM surefoot.inbox`) == 3 })
	require.Equal(t, 2, count(`SELECT count(*) FROM app.orders WHERE status = 'CANCELLED'`))
	operator := r.as(t, "surefoot-dlq", "surefoot_operator")
	testkit.Eventually(t, time.Minute, "the bad one to be dead", func() bool {
		return strings.Contains(surefoot(t, operator, "dlq", "show", "--queue", "orders.saga").stdout, "bad")
	})
	for _, command := range []string{
		"dlq ls", "dlq groups --queue orders.saga", "dlq redrive --queue orders.saga --reason mended --yes", "dlq runs ls", "message show good", "outbox ls", "watchdog ls",
		"reconcile ls", "circuits ls", "consume pause --queue orders.saga --reason rest --yes", "consume ls", "consume resume --queue orders.saga --yes", "watchdog once", "audit ls", "migrate status",
	} {
		r.do(t, operator, command)
	}
	// The tasks of deploy/kubernetes.
	r.do(t, r.as(t, "surefoot-dlq", "surefoot_dlq"), "dlq redrive --queue orders.saga --reason again --yes --as kubernetes")
	r.do(t, r.as(t, "", "surefoot_reconcile"), "reconcile run --once")
	testkit.Eventually(t, time.Minute, "the bad one to be dead again", func() bool {
		return strings.Contains(surefoot(t, operator, "dlq", "show", "--queue", "orders.saga").stdout, "bad")
	})
	r.do(t, operator, "dlq discard --queue orders.saga --reason useless --yes")
	for _, p := range processes {
		p.stop(t)
	}
	r.start(t, "surefoot-run", "surefoot_run", "run").stop(t)
}

// do runs a command, which must be done.
func (r *rights) do(t *testing.T, environ []string, command string) {
	t.Helper()
	got := surefoot(t, environ, strings.Fields(command)...)
	require.Zero(t, got.code, "%s: %s%s", command, got.stdout, got.stderr)
}

// refusedByTheBroker: a step beyond is refused.
func (r *rights) refusedByTheBroker(t *testing.T) {
	t.Helper()
	declare := func(name string) func(*amqp.Channel) error {
		return func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(name, false, false, true, false, nil)
			return err
		}
	}
	get := func(queue string) func(*amqp.Channel) error {
		return func(ch *amqp.Channel) error { _, _, err := ch.Get(queue, false); return err }
	}
	publish := func(exchange string) func(*amqp.Channel) error {
		return func(ch *amqp.Channel) error {
			closed := ch.NotifyClose(make(chan *amqp.Error, 1))
			if err := errors.Join(ch.Confirm(false), ch.PublishWithContext(t.Context(), exchange, "orders.saga", false, false, amqp.Publishing{})); err != nil {
				return err
			}
			select {
			case err := <-closed:
				return err
			case <-time.After(5 * time.Second):
				return nil
			}
		}
	}
	for user, steps := range map[string]map[string]func(*amqp.Channel) error{
		"surefoot-relay":    {"make a queue": declare("other"), "read": get("orders.saga"), "write past the exchanges": publish(""), "write dead letters": publish("shop.events.dlx")},
		"surefoot-consume":  {"make a queue": declare("other"), "fence": declare("surefoot.fence.x"), "read dead letters": get("orders.saga.dlq"), "write events": publish("shop.events")},
		"surefoot-dlq":      {"make a queue": declare("other"), "fence": declare("surefoot.fence.x"), "read work": get("orders.saga"), "write events": publish("shop.events")},
		"surefoot-topology": {"make a queue": declare("other"), "fence": declare("surefoot.fence.x"), "write to a queue by name": publish("")},
		"surefoot-run":      {"make a queue": declare("other"), "read the retry queue": get("orders.saga.retry"), "write retries": publish("shop.events.retry")},
	} {
		conn, err := amqp.Dial(with(t, r.broker.URL, user))
		require.NoError(t, err)
		for name, step := range steps {
			ch, err := conn.Channel()
			require.NoError(t, err)
			refused, is := errors.AsType[*amqp.Error](step(ch))
			require.True(t, is, "%s may %s", user, name)
			require.Equal(t, amqp.AccessRefused, refused.Code, "%s: %s", user, name)
		}
		require.NoError(t, conn.Close())
	}
}

// everyTableIsGiven: a table that a migration adds has somebody who may use it.
func (r *rights) everyTableIsGiven(t *testing.T) {
	t.Helper()
	rows, err := r.pg.Connect(t).Query(t.Context(), `SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'surefoot'::regnamespace AND c.relkind = 'r'
		AND NOT EXISTS (SELECT FROM unnest('{relay,consume,dlq,watchdog,reconcile}'::text[]) AS role
			WHERE has_table_privilege('surefoot_' || role, c.oid, 'INSERT, DELETE')) ORDER BY 1`)
	require.NoError(t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	// Only your own programs use idempotency, only the operator pauses, and only a migration writes the schema's own tables.
	require.Equal(t, []string{"idempotency", "pauses", "schema_lock", "schema_version"}, names, "see deploy/postgres/grants.sql")
}

// refusedByTheDatabase: no role sees or changes what belongs to another one.
func (r *rights) refusedByTheDatabase(t *testing.T) {
	t.Helper()
	enqueue := `SELECT surefoot.enqueue('order.created', ''::bytea)`
	for role, statements := range map[string][]string{
		"shop":               {`SELECT FROM surefoot.outbox`, `INSERT INTO surefoot.outbox DEFAULT VALUES`, `SELECT FROM surefoot.inbox`, `SELECT FROM surefoot.audit`},
		"surefoot_relay":     {enqueue, `INSERT INTO surefoot.outbox DEFAULT VALUES`, `UPDATE surefoot.outbox SET payload = ''`, `SELECT FROM surefoot.inbox`, `SELECT FROM surefoot.dlq_archive`, `SELECT FROM app.orders`},
		"surefoot_consume":   {`SELECT FROM surefoot.outbox`, `UPDATE surefoot.inbox SET handled_at = now()`, `DELETE FROM surefoot.pauses`, `SELECT FROM surefoot.audit`, `SELECT FROM app.orders`},
		"surefoot_dlq":       {enqueue, `SELECT FROM surefoot.outbox`, `DELETE FROM surefoot.inbox`, `SELECT FROM app.orders`},
		"surefoot_watchdog":  {`SELECT FROM surefoot.outbox`, `SELECT FROM surefoot.inbox`, `DELETE FROM app.orders`, `SELECT FROM surefoot.dlq_archive`},
		"surefoot_reconcile": {`SELECT FROM surefoot.outbox`, `SELECT FROM surefoot.inbox`, `DELETE FROM app.orders`, `SELECT FROM surefoot.watchdog_holds`},
		"surefoot_run":       {`UPDATE surefoot.outbox SET payload = ''`, `UPDATE surefoot.audit SET who = ''`, `DELETE FROM app.orders`},
		"surefoot_operator":  {`DELETE FROM surefoot.outbox`, `UPDATE surefoot.outbox_parked SET attempts = 0`, `DELETE FROM surefoot.inbox`, `UPDATE surefoot.audit SET who = ''`},
	} {
		conn := r.connect(t, role)
		for _, sql := range append(statements, `TRUNCATE surefoot.audit`, `CREATE TABLE surefoot.x ()`, `DROP TABLE surefoot.audit`, `CREATE SCHEMA other`) {
			_, err := conn.Exec(t.Context(), sql)
			refused, is := errors.AsType[*pgconn.PgError](err)
			require.True(t, is, "%s may %s", role, sql)
			require.Equal(t, "42501", refused.Code, "%s: %s: %s", role, sql, refused.Message)
		}
	}
}
