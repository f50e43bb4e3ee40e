package doctor_test

import (
	"context"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/doctor"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/topology"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// patient is a configuration with its services.
type patient struct {
	db     testkit.DB
	broker testkit.AMQP
	yaml   string
}

// oneQueue has every role but the watchdog and the reconciliation.
const oneQueue = "topology: {exchange: x, queues: [{name: q, bindings: [a], target: {exec: [/bin/true]}}]}\n"

func newPatient(t *testing.T) patient {
	t.Helper()
	return patient{testkit.Database(t), testkit.Broker(t), oneQueue}
}

func (p patient) load(t *testing.T) *config.Config {
	t.Helper()
	c, err := config.Load(config.Sources{
		Environ: []string{
			"SUREFOOT_DATABASE_URL=" + p.db.URL, "SUREFOOT_SCHEMA=" + p.db.Schema, "SUREFOOT_AMQP_URL=" + p.broker.URL,
			"SUREFOOT_MANAGEMENT_URL=" + p.broker.ManagementURL,
		},
		ReadFile: func(name string) ([]byte, error) {
			if name != config.DefaultFile {
				return nil, fs.ErrNotExist
			}
			return []byte(p.yaml), nil
		},
	})
	require.NoError(t, err)
	return c
}

// apply makes the topology.
func (p patient) apply(t *testing.T) patient {
	t.Helper()
	c := p.load(t)
	made, err := topology.New(topology.Options{Spec: c.Topology, URL: p.broker.URL, ManagementURL: p.broker.ManagementURL})
	require.NoError(t, err)
	_, err = made.Apply(t.Context(), topology.ApplyOptions{})
	require.NoError(t, err)
	return p
}

func (p patient) options(t *testing.T) doctor.Options {
	t.Helper()
	return doctor.Options{Config: p.load(t)}
}

// examine returns what is not well, by check.
func examine(t *testing.T, o doctor.Options) map[string][]doctor.Finding {
	t.Helper()
	all, err := doctor.Examine(t.Context(), o)
	require.NoError(t, err)
	ill := map[string][]doctor.Finding{}
	for _, f := range all {
		if f.Severity != doctor.OK {
			require.NotEmpty(t, f.Found, f)
			require.NotEmpty(t, f.Mend, f)
			if f.Severity != doctor.Unknown {
				require.NotEmpty(t, f.Meaning, f)
			}
			ill[f.Check] = append(ill[f.Check], f)
		}
	}
	return ill
}

// only requires that one check alone has found something, and returns that.
func only(t *testing.T, check string, ill map[string][]doctor.Finding) []doctor.Finding {
	t.Helper()
	require.Contains(t, ill, check)
	require.Len(t, ill, 1, "%v", ill)
	return ill[check]
}

func TestAllIsWell(t *testing.T) {
	t.Parallel()
	p := newPatient(t).apply(t)
	all, err := doctor.Examine(t.Context(), p.options(t))
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, f := range all {
		require.Equal(t, doctor.OK, f.Severity, "%+v", f)
		seen[f.Check] = true
	}
	for _, name := range doctor.Checks() {
		require.True(t, seen[name], "%s has said nothing", name)
	}
	require.Empty(t, examine(t, p.options(t)), "looking has left something behind")
}

func TestEveryCheckIsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/doctor.md")
	require.NoError(t, err)
	for _, name := range doctor.Checks() {
		require.Contains(t, string(text), "`"+name+"`")
	}
}

func TestChecksCanBeLeftOut(t *testing.T) {
	t.Parallel()
	o := doctor.Options{Config: patient{yaml: oneQueue}.load(t), Skip: []string{"retry-window"}}
	all, err := doctor.Examine(t.Context(), o)
	require.NoError(t, err)
	for _, f := range all {
		require.NotEqual(t, "retry-window", f.Check)
	}
	o.Skip = []string{"nonsense"}
	_, err = doctor.Examine(t.Context(), o)
	require.ErrorIs(t, err, doctor.ErrUnknownName)
	o.Skip, o.Roles = nil, []string{"nobody"}
	_, err = doctor.Examine(t.Context(), o)
	require.ErrorIs(t, err, doctor.ErrUnknownName)
}

// With services away the others are looked at, and every check that was not made is named.
func TestServicesAway(t *testing.T) {
	t.Parallel()
	p := newPatient(t).apply(t)
	nowhere := func(u string) string {
		parsed, err := url.Parse(u)
		require.NoError(t, err)
		parsed.Host = "127.0.0.1:1"
		return parsed.String()
	}
	without := p
	without.db.URL = nowhere(p.db.URL)
	found := only(t, "database", examine(t, without.options(t)))
	require.True(t, found[0].OutOfReach)
	require.Equal(t, doctor.Unknown, found[0].Severity)
	require.Contains(t, found[0].Meaning, "schema, database-rights, rules, database-clock, long-transactions, table-sizes, pooler, synchronous-commit, dlq-wear")

	without = p
	without.broker.ManagementURL = nowhere(p.broker.ManagementURL)
	ill := examine(t, without.options(t))
	require.True(t, ill["management"][0].OutOfReach)
	require.Contains(t, ill["management"][0].Meaning, "broker-limits, broker-clock, topology, dlq-delivery-limit, dlq-wear")
	require.Equal(t, doctor.Unknown, ill["dead-letter-paths"][0].Severity, "the queues are there; their arguments are not known")
	require.Len(t, ill, 2, "%v", ill)

	without = p
	without.broker.URL = nowhere(p.broker.URL)
	ill = examine(t, without.options(t))
	require.True(t, ill["broker"][0].OutOfReach)

	ill = examine(t, doctor.Options{Config: patient{yaml: oneQueue}.load(t)})
	require.Len(t, ill, 3, "%v", ill)
	require.Equal(t, "set SUREFOOT_DATABASE_URL", ill["database"][0].Mend)
	require.False(t, ill["database"][0].OutOfReach, "nobody has said where it is")
}

func TestRefusedByTheServices(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	wrong := func(u string) string {
		parsed, err := url.Parse(u)
		require.NoError(t, err)
		parsed.User = url.UserPassword(parsed.User.Username(), "hunter2")
		return parsed.String()
	}
	p.db.URL, p.broker.URL = wrong(p.db.URL), wrong(p.broker.URL)
	ill := examine(t, p.options(t))
	for check, severity := range map[string]doctor.Severity{"database": doctor.Critical, "broker": doctor.Critical, "management": doctor.Warning} {
		require.Equal(t, severity, ill[check][0].Severity, check)
		require.NotContains(t, ill[check][0].Found, "hunter2")
	}
}

func TestSchema(t *testing.T) {
	t.Parallel()
	p := patient{testkit.DatabaseBehind(t, 1), testkit.Broker(t), oneQueue}.apply(t)
	ill := examine(t, p.options(t))
	require.Equal(t, doctor.Critical, ill["schema"][0].Severity)
	require.Contains(t, ill["schema"][0].Mend, "surefoot migrate up")
	require.Contains(t, ill["tables"][0].Meaning, "rules, table-sizes, dlq-wear")

	p.db.Schema = testkit.Name("none")
	ill = examine(t, p.options(t))
	require.Contains(t, ill["schema"][0].Found, "is not there yet")
}

// guest makes a database user and returns p as it.
func (p patient) guest(t *testing.T) (patient, string, func(string)) {
	t.Helper()
	guest := testkit.Name("guest")
	exec := func(sql string) {
		t.Helper()
		_, err := p.db.Pool.Exec(context.WithoutCancel(t.Context()), sql)
		require.NoError(t, err, sql)
	}
	exec("CREATE ROLE " + guest + " LOGIN PASSWORD 'x'")
	t.Cleanup(func() { exec("DROP OWNED BY " + guest + "; DROP ROLE " + guest) })
	u, err := url.Parse(p.db.Direct)
	require.NoError(t, err)
	u.User = url.UserPassword(guest, "x")
	p.db.URL = u.String()
	return p, guest, exec
}

func TestDatabaseRights(t *testing.T) {
	t.Parallel()
	p, guest, exec := newPatient(t).apply(t).guest(t)
	require.Contains(t, examine(t, p.options(t))["schema"][0].Mend, "GRANT USAGE ON SCHEMA")
	exec("GRANT USAGE ON SCHEMA " + p.db.Schema + " TO " + guest)
	exec("GRANT SELECT ON " + p.db.Schema + ".schema_version TO " + guest)
	ill := examine(t, p.options(t))
	require.Len(t, ill["database-rights"], 2)
	for _, f := range ill["database-rights"] {
		require.Equal(t, doctor.Critical, f.Severity)
		_, grants, _ := strings.Cut(f.Mend, ": ")
		exec(grants)
	}
	require.Equal(t, []string{"relay", "consume"}, []string{ill["database-rights"][0].About, ill["database-rights"][1].About})
	require.Contains(t, ill["long-transactions"][0].Mend, "pg_read_all_stats")
	require.NotContains(t, examine(t, p.options(t)), "database-rights", "what it asks for is enough")

	p.consumesOne(t)

	exec("REVOKE INSERT ON " + p.db.Schema + ".inbox FROM " + guest)
	o := p.options(t)
	o.Roles = []string{"relay"}
	require.NotContains(t, examine(t, o), "database-rights", "another role's right is missing")
}

// consumesOne consumes a message as p's user: the rights that are asked for are all that a consumer needs.
func (p patient) consumesOne(t *testing.T) {
	t.Helper()
	pool, err := pg.Open(t.Context(), pg.Options{URL: p.db.URL, MaxConns: 12})
	require.NoError(t, err)
	defer pool.Close()
	o := consumer.FromSpec(p.load(t).Topology.Queues[0])
	o.Pool, o.Schema, o.URL, o.ManagementURL = pool, p.db.Schema, p.broker.URL, p.broker.ManagementURL
	o.Handler = func(context.Context, pgx.Tx, message.Message) error { return nil }
	c, err := consumer.New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	publish(t, p, "q", 1)
	testkit.Eventually(t, 20*time.Second, "the message to be handled", func() bool {
		var handled int
		require.NoError(t, p.db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM "+p.db.Schema+".inbox").Scan(&handled))
		return handled == 1
	})
	cancel()
	require.NoError(t, <-ended)
}

func TestRules(t *testing.T) {
	t.Parallel()
	p := newPatient(t).apply(t)
	_, err := p.db.Pool.Exec(t.Context(), "CREATE TABLE "+p.db.Schema+".sagas (id text PRIMARY KEY, status text NOT NULL, at timestamptz NOT NULL)")
	require.NoError(t, err)
	p.yaml += `watchdog:
  rules:
    - {name: SLOW, table: ` + p.db.Schema + `.sagas, key: id, status: status, stuck: [OPEN], clock: at, limit: 1h, new_status: SHUT, reason: R, event_type: e}
    - {name: GONE, table: nowhere.sagas, key: id, status: status, stuck: [OPEN], clock: at, limit: 1h, new_status: SHUT, reason: R, event_type: e}
reconcile:
  rules:
    - {name: ASK, table: nowhere.sagas, key: id, status: status, suspects: [OPEN], clock: at, age: 2h, authority: {sql: SELECT 'x'}, answers: {x: {new_status: SHUT, reason: R, event_type: e}}}
`
	found := only(t, "rules", examine(t, p.options(t)))
	require.Len(t, found, 3, "%v", found)
	require.Equal(t, []doctor.Severity{doctor.Critical, doctor.Critical, doctor.Warning}, []doctor.Severity{found[0].Severity, found[1].Severity, found[2].Severity})
	require.Contains(t, found[0].Found, `"GONE"`)
	require.Contains(t, found[1].Found, `"ASK"`)
	require.Contains(t, found[2].Found, "no index")
}

func TestClocks(t *testing.T) {
	t.Parallel()
	p := newPatient(t).apply(t)
	for off, want := range map[time.Duration]string{time.Hour: "behind", -time.Hour: "ahead of"} {
		o := p.options(t)
		o.Now = func() time.Time { return time.Now().Add(off) }
		ill := examine(t, o)
		require.Len(t, ill, 2)
		for _, check := range []string{"database-clock", "broker-clock"} {
			require.Equal(t, doctor.Warning, ill[check][0].Severity)
			require.Regexp(t, `^its clock is (1h0m|59m5)[0-9.]+s `+want+" this host's$", ill[check][0].Found)
		}
	}
}

func TestLongTransactionsAndTableSizes(t *testing.T) {
	t.Parallel()
	p := newPatient(t).apply(t)
	conn, err := p.db.Pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	var pid string
	require.NoError(t, tx.QueryRow(t.Context(), "SELECT 'process ' || pg_backend_pid()").Scan(&pid))
	o := p.options(t).Strict()
	testkit.Eventually(t, 10*time.Second, "the transaction to be told", func() bool {
		for _, f := range examine(t, o)["long-transactions"] {
			if f.About == pid {
				require.Contains(t, f.Found, "idle in transaction")
				return f.Severity == doctor.Warning
			}
		}
		return false
	})
	ill := examine(t, o)
	require.Contains(t, ill["table-sizes"][0].Found, "MiB")
	var about []string
	for _, f := range ill["table-sizes"] {
		about = append(about, f.About)
	}
	require.Contains(t, about, p.db.Schema+".outbox")
}

func TestPooler(t *testing.T) {
	t.Parallel()
	p := newPatient(t).apply(t)
	direct := p.db.Direct
	p.db.URL = testkit.PgBouncer(t, direct)
	p.yaml += "relay: {listen_url: '" + p.db.URL + "'}\n"
	found := only(t, "pooler", examine(t, p.options(t)))
	require.Len(t, found, 2, "%v", found)
	require.Equal(t, "relay.listen_url", found[0].About)
	require.Contains(t, found[1].Mend, "SET statement_timeout")

	p.db.URL = testkit.PgBouncerIn(t, "statement", direct)
	p.yaml = oneQueue
	found = examine(t, p.options(t))["pooler"]
	require.Len(t, found, 1)
	require.Equal(t, doctor.Critical, found[0].Severity)
	require.Contains(t, found[0].Mend, "pool_mode")
}

func TestSynchronousCommit(t *testing.T) {
	t.Parallel()
	p := newPatient(t).apply(t)
	u, err := url.Parse(p.db.Direct)
	require.NoError(t, err)
	query := u.Query()
	query.Set("synchronous_commit", "off")
	u.RawQuery = query.Encode()
	p.db.URL = u.String()
	require.Equal(t, doctor.Critical, only(t, "synchronous-commit", examine(t, p.options(t)))[0].Severity)
}

func TestBrokerVersion(t *testing.T) {
	t.Parallel()
	require.Equal(t, doctor.Critical, doctor.JudgeVersion(rabbit.Version{Major: 3, Minor: 9, Patch: 1}).Severity)
	require.Equal(t, doctor.Unknown, doctor.JudgeVersion(rabbit.Version{}).Severity)
	require.Contains(t, doctor.JudgeVersion(rabbit.Version{Major: 4}).Found, "16 MiB")
}

func TestVhostLimits(t *testing.T) {
	t.Parallel()
	p := newPatient(t).apply(t)
	for _, limit := range []string{"max-queues", "max-connections"} {
		p.broker.API(t, http.MethodPut, "/api/vhost-limits/"+p.broker.Vhost+"/"+limit, map[string]int{"value": 5}, nil)
	}
	found := only(t, "broker-limits", examine(t, p.options(t)))
	require.Len(t, found, 2)
	require.Contains(t, found[0].Found, "needs up to 11", "three queues and eight fences")
	require.Contains(t, found[1].Found, "needs up to 6")
}

// While an alarm is on nothing is published, not even to try the rights: the broker would not answer.
func TestAlarm(t *testing.T) {
	t.Parallel()
	server := testkit.PrivateBroker(t)
	p := patient{testkit.Database(t), server.NewVhost(t), oneQueue}.apply(t)
	server.MemoryAlarm(t, true)
	defer server.MemoryAlarm(t, false)
	ill := examine(t, p.options(t))
	require.Equal(t, doctor.Critical, ill["broker-limits"][0].Severity)
	require.Contains(t, ill["broker-limits"][0].Found, "memory alarm")
	require.Equal(t, doctor.Unknown, ill["broker-rights"][0].Severity)
	require.Contains(t, ill["broker-rights"][0].Found, "an alarm is on")
	require.Len(t, ill, 2, "%v", ill)
}

func TestBrokerRights(t *testing.T) {
	t.Parallel()
	p := newPatient(t).apply(t)
	guest := testkit.Name("guest")
	p.broker.API(t, http.MethodPut, "/api/users/"+guest, map[string]string{"password": "x", "tags": "monitoring"}, nil)
	t.Cleanup(func() {
		request, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodDelete, p.broker.ManagementURL+"/api/users/"+guest, http.NoBody)
		require.NoError(t, err)
		admin, err := url.Parse(p.broker.URL)
		require.NoError(t, err)
		password, _ := admin.User.Password()
		request.SetBasicAuth(admin.User.Username(), password)
		request.Close = true
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
	})
	permit := func(configure, write, read string) {
		p.broker.API(t, http.MethodPut, "/api/permissions/"+p.broker.Vhost+"/"+guest, map[string]string{"configure": configure, "write": write, "read": read}, nil)
	}
	as := p
	u, err := url.Parse(p.broker.URL)
	require.NoError(t, err)
	u.User = url.UserPassword(guest, "x")
	as.broker.URL = u.String()

	permit("", "", "")
	var lacking []string
	for _, f := range only(t, "broker-rights", examine(t, as.options(t))) {
		require.Equal(t, doctor.Critical, f.Severity)
		_, what, _ := strings.Cut(f.Found, "has no ")
		lacking = append(lacking, what)
	}
	require.Len(t, lacking, 5)
	require.Contains(t, lacking[0], "configure permission on \"surefoot.fence.")
	require.Equal(t, []string{`write permission on "x"`, `write permission on "amq.default"`, `read permission on "q"`, `read permission on "q.dlq"`}, lacking[1:])

	permit(`^surefoot\.fence\.`, `^(x|amq\.default)$`, `^q(\.dlq)?$`)
	require.Empty(t, examine(t, as.options(t)), "least rights")

	p.broker.API(t, http.MethodPut, "/api/users/"+guest, map[string]string{"password": "x", "tags": ""}, nil)
	ill := examine(t, as.options(t))
	require.Equal(t, doctor.Warning, ill["management"][0].Severity)
	require.Contains(t, ill["management"][0].Mend, "set_user_tags")
}

// Trying the rights leaves no queue, no consumer and no message behind, and takes none.
func TestTryingLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	p := newPatient(t).apply(t)
	declare(t, p, "all", amqp.Table{"x-queue-type": "quorum"}, "#")
	publish(t, p, "q", 2)
	publish(t, p, "q.dlq", 2)
	require.Empty(t, examine(t, p.options(t)))
	require.Equal(t, []int{2, 2, 0}, []int{ready(t, p, "q"), ready(t, p, "q.dlq"), ready(t, p, "all")})
	var queues []struct{ Name string }
	p.broker.API(t, http.MethodGet, "/api/queues/"+p.broker.Vhost+"?columns=name", nil, &queues)
	require.Len(t, queues, 4, "%v", queues)
}

// channel opens one that ends with the test.
func channel(t *testing.T, p patient) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(p.broker.URL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	require.NoError(t, err)
	return ch
}

func declare(t *testing.T, p patient, queue string, arguments amqp.Table, bindings ...string) {
	t.Helper()
	ch := channel(t, p)
	_, err := ch.QueueDeclare(queue, true, false, false, false, arguments)
	require.NoError(t, err)
	for _, key := range bindings {
		require.NoError(t, ch.QueueBind(queue, key, "x", false, nil))
	}
}

func publish(t *testing.T, p patient, queue string, n int) {
	t.Helper()
	ch := channel(t, p)
	require.NoError(t, ch.Confirm(false))
	for range n {
		confirmed, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", queue, true, false, amqp.Publishing{MessageId: "m", DeliveryMode: amqp.Persistent})
		require.NoError(t, err)
		require.True(t, confirmed.Wait())
	}
}

func ready(t *testing.T, p patient, queue string) int {
	t.Helper()
	q, err := channel(t, p).QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(t, err)
	require.Zero(t, q.Consumers)
	return q.Messages
}

func TestTopology(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	found := only(t, "topology", examine(t, p.options(t)))
	require.Len(t, found, 1)
	require.Contains(t, found[0].Found, "lacks ")
	require.Equal(t, "`surefoot topology apply`", found[0].Mend)

	p.apply(t)
	p.yaml = strings.ReplaceAll(p.yaml, "name: q,", "name: q, retry: [7s],")
	found = examine(t, p.options(t))["topology"]
	require.Contains(t, found[0].About, "q.retry")
	require.Contains(t, found[0].Found, "other properties")
}

func TestDeadLetterPaths(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	declare(t, p, "q", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 20})
	ill := examine(t, p.options(t))
	require.Contains(t, ill, "topology")
	found := ill["dead-letter-paths"]
	require.NotEmpty(t, found)
	for _, f := range found {
		require.Equal(t, doctor.Critical, f.Severity)
		require.Equal(t, "queue q", f.About, "what is missing is told by the plan")
	}
}

// Also a queue that is not in surefoot.yaml any more.
func TestDLQDeliveryLimit(t *testing.T) {
	t.Parallel()
	p := newPatient(t).apply(t)
	declare(t, p, "old.dlq", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 20})
	found := only(t, "dlq-delivery-limit", examine(t, p.options(t)))
	require.Len(t, found, 1)
	require.Equal(t, "queue old.dlq", found[0].About)
	require.Equal(t, doctor.Critical, found[0].Severity)
}

func TestDLQWear(t *testing.T) {
	t.Parallel()
	p := newPatient(t).apply(t)
	publish(t, p, "q.dlq", 2)
	require.Empty(t, examine(t, p.options(t)))
	found := examine(t, p.options(t).Strict())["dlq-wear"]
	require.Len(t, found, 1)
	require.Regexp(t, "has been delivered [1-9] times, of 1000000", found[0].Found)
	require.Equal(t, 2, ready(t, p, "q.dlq"))
}

func TestConsumerTimeout(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.yaml = "topology: {exchange: x, queues: [{name: slow, prefetch: 100, concurrency: 1}, {name: q}]}\n"
	found := examine(t, p.options(t))["consumer-timeout"]
	require.Len(t, found, 1)
	require.Equal(t, "queue slow", found[0].About)
	require.Contains(t, found[0].Found, "up to 50m0s; the broker waits 30m0s")

	declare(t, p, "q", amqp.Table{"x-queue-type": "quorum", "x-consumer-timeout": 20_000})
	found = examine(t, p.options(t))["consumer-timeout"]
	require.Len(t, found, 2)
	require.Contains(t, found[1].Found, "the broker waits 20s (argument x-consumer-timeout)")
}

func TestRetryWindow(t *testing.T) {
	t.Parallel()
	rule := "{table: s.t, key: id, status: s, stuck: [A], clock: c, new_status: B, reason: R, event_type: e, "
	p := patient{yaml: `topology: {exchange: x, queues: [{name: q}, {name: r, retry: [1m, 10m]}]}
inbox: {retention: 30m}
watchdog: {rules: [` + rule + `name: EARLY, limit: 30m}, ` + rule + `name: LATE, limit: 1h}, ` + rule + `name: DEADLINE, limit: 1ms}]}
reconcile:
  rules: [{name: ASK, table: s.t, key: id, status: s, suspects: [A], clock: c, age: 45m, authority: {sql: SELECT 'x'}, answers: {x: {new_status: B, reason: R, event_type: e}}}]
`}
	o := p.options(t)
	o.ReservationExpiry = 50 * time.Minute
	found := examine(t, o)["retry-window"]
	about := map[string]string{}
	for _, f := range found {
		require.Equal(t, doctor.Warning, f.Severity)
		about[f.About] = f.Found
	}
	// Tries of 30 s each, and waits of 1 m and three times 10 m between them.
	require.Equal(t, map[string]string{
		"watchdog rule EARLY": "its limit of 30m0s is not above the retry window of queue r, 33m30s",
		"watchdog rule LATE":  "its limit of 1h0m0s is not below the reservation's expiry, 50m0s",
		"reconcile rule ASK":  "asks after 45m0s, not after the limit of watchdog rule LATE, 1h0m0s",
		"inbox.retention":     "is 30m0s, not above the retry window of queue r, 33m30s",
	}, about)
	require.Len(t, found, 4)
}

// Own certificates are looked at whether the services are there or not.
func TestCertificates(t *testing.T) {
	t.Parallel()
	authority := testkit.NewAuthority(t)
	good, expired, early := authority.Issue(t, testkit.Certificate{}), authority.Issue(t, testkit.Certificate{Expired: true}), authority.Issue(t, testkit.Certificate{Early: true})
	look := func(ahead time.Duration) map[string]doctor.Finding {
		c := patient{yaml: oneQueue}.load(t)
		c.AMQP.CertFile, c.AMQP.KeyFile = good.Cert, good.Key
		c.Console.CertFile, c.Console.KeyFile = expired.Cert, expired.Key
		c.HTTP.CertFile, c.HTTP.KeyFile = early.Cert, early.Key
		c.Database.CertFile, c.Database.KeyFile = good.Cert, early.Key
		c.Topology.Queues = append(c.Topology.Queues, topology.Queue{
			Name: "mail", Target: &topology.Target{HTTP: &topology.HTTPTarget{CertFile: expired.Cert, KeyFile: expired.Key}},
		})
		all, err := doctor.Examine(t.Context(), doctor.Options{Config: c, Now: func() time.Time { return time.Now().Add(ahead) }})
		require.NoError(t, err)
		found := map[string]doctor.Finding{}
		for _, f := range all {
			if f.Check == "certificates" {
				found[f.About] = f
			}
		}
		return found
	}
	now := look(0)
	require.Len(t, now, 5)
	for about, want := range map[string]struct {
		severity doctor.Severity
		found    string
	}{
		"amqp.cert_file":             {doctor.OK, "is valid until "},
		"console.cert_file":          {doctor.Critical, "has expired at "},
		"http.cert_file":             {doctor.Critical, "is not valid before "},
		"mail.target.http.cert_file": {doctor.Critical, "has expired at "},
		"database.cert_file":         {doctor.Critical, "private key does not match public key"},
	} {
		require.Equal(t, want.severity, now[about].Severity, about)
		require.Contains(t, now[about].Found, want.found)
	}
	soon := look(20 * time.Hour)["amqp.cert_file"] // of its 48 there are 4 left
	require.Equal(t, doctor.Warning, soon.Severity)
	require.Regexp(t, "^expires at .*, in 4h0m0s$", soon.Found)
}
