package cli_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

const upgradeConfig = `
topology:
  exchange: x
  queues: [{name: q, bindings: [a.b], retry: [1s], concurrency: 1, prefetch: 1, target: {exec: [%s]}}]
`

// upgrading is a schema of an earlier version with the traces of that version's processes.
type upgrading struct {
	*terminal
	db      testkit.DB
	schema  string
	ch      *amqp.Channel
	handled string // the file of ids, in the order in which they were handled
}

func newUpgrading(t *testing.T, from int) *upgrading {
	t.Helper()
	db, broker := testkit.Database(t), testkit.Broker(t)
	u := &upgrading{db: db, schema: testkit.Name("u")}
	t.Cleanup(func() {
		_, err := db.Pool.Exec(context.WithoutCancel(t.Context()), "DROP SCHEMA IF EXISTS "+u.schema+" CASCADE")
		require.NoError(t, err)
	})
	u.terminal = newTerminal(t, "SUREFOOT_DATABASE_URL="+db.URL, "SUREFOOT_SCHEMA="+u.schema, "SUREFOOT_AMQP_URL="+broker.URL,
		"SUREFOOT_MANAGEMENT_URL="+broker.ManagementURL, "SUREFOOT_HTTP_LISTEN=127.0.0.1:0")
	u.handled = filepath.Join(u.dir, "handled")
	worker := filepath.Join(u.dir, "worker")
	require.NoError(t, os.WriteFile(worker, []byte("#!/bin/sh\necho \"$SUREFOOT_MESSAGE_ID\" >>"+u.handled+"\n"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(u.dir, "surefoot.yaml"), fmt.Appendf(nil, upgradeConfig, worker), 0o600))
	conn, err := amqp.Dial(broker.URL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	u.ch, err = conn.Channel()
	require.NoError(t, err)
	u.succeed("topology", "apply", "--yes")
	u.succeed("migrate", "up", "--to", strconv.Itoa(from))
	return u
}

func (u *upgrading) succeed(args ...string) string {
	u.t.Helper()
	code, out := u.run("", args...)
	require.Zero(u.t, code, "%v: %s", args, out)
	return out
}

func (u *upgrading) exec(sql string) {
	u.t.Helper()
	_, err := u.db.Pool.Exec(u.t.Context(), strings.NewReplacer("@new", u.db.Schema, "@", u.schema).Replace(sql))
	require.NoError(u.t, err, sql)
}

// enqueue writes rows as a producer of the old version does, by the function in SQL.
func (u *upgrading) enqueue(key string, ids ...string) {
	u.t.Helper()
	for _, id := range ids {
		u.exec(`SELECT @.enqueue(type => 'a.b', payload => '{}', key => '` + key + `', message_id => '` + id + `')`)
	}
}

// park moves a row to where the old relay put what could not be published.
func (u *upgrading) park(id, state, nextAt string) {
	u.t.Helper()
	u.enqueue("parked "+id, id)
	u.exec(`WITH moved AS (DELETE FROM @.outbox WHERE message_id = '` + id + `' RETURNING *)
		INSERT INTO @.outbox_parked SELECT moved.*, '` + state + `', 3, 'unroutable', 'no queue', now(), now(), ` + nextAt + ` FROM moved`)
}

// publish puts a message into a queue as the old version's consumer did.
func (u *upgrading) publish(queue, id string, headers amqp.Table) {
	u.t.Helper()
	message.SetOrigin(headers, message.Origin{Exchange: "x", RoutingKey: "a.b", Queue: "q"})
	require.NoError(u.t, u.ch.Confirm(false))
	confirm, err := u.ch.PublishWithDeferredConfirmWithContext(u.t.Context(), "", queue, true, false,
		amqp.Publishing{MessageId: id, Type: "a.b", Headers: headers, DeliveryMode: amqp.Persistent, Body: []byte("{}")})
	require.NoError(u.t, err)
	require.True(u.t, confirm.Wait())
}

func (u *upgrading) deadLetter(id string) {
	u.t.Helper()
	headers := amqp.Table{}
	message.Failure{Class: "permanent", Type: "exit 65", Message: "no such order"}.Write(headers, 5)
	u.publish("q.dlq", id, headers)
}

// leave writes down what the old version's processes leave when they are still there, or were a moment ago.
func (u *upgrading) leave() {
	u.t.Helper()
	u.enqueue("k1", "w1", "w2", "w3")
	u.enqueue("k2", "w4", "w5")
	u.enqueue("", "seen")
	u.park("dead", "dead", "NULL")
	u.park("bad", "retry", "now()")
	u.exec(`INSERT INTO @.inbox_consumers (name, queue, retention) VALUES ('q', 'q', '7 days')`)
	u.exec(`INSERT INTO @.inbox (consumer, message) SELECT id, @.inbox_key('seen') FROM @.inbox_consumers`)
	u.exec(`INSERT INTO @.pauses (queue, who, reason) VALUES ('other', 'ann', 'until Monday')`)
	u.exec(`INSERT INTO @.outbox_members (id, name, ttl, expires_at) VALUES (gen_random_uuid(), 'old relay', '3 s', now() + interval '3 s')`)
	u.exec(`UPDATE @.outbox_leases SET owner = (SELECT id FROM @.outbox_members), epoch = 7, ttl = '3 s', expires_at = now() + interval '3 s'`)
	u.deadLetter("letter1")
	u.deadLetter("letter2")
	u.publish("q", "in q", amqp.Table{})
	u.publish("q.retry", "in retry", amqp.Table{message.HeaderAttempts: int64(1)})
}

// pausedRun has a redrive of letter1 that somebody paused; made by the new version in a schema of its own, and taken to the old one.
func (u *upgrading) pausedRun() string {
	u.t.Helper()
	there := func(args ...string) string { return u.succeed(append(args, "--schema", u.db.Schema)...) }
	u.exec(`INSERT INTO @new.inbox_consumers (name, queue, retention) VALUES ('q', 'q', '7 days')`)
	there("dlq", "redrive", "--queue", "q", "--id", "letter1", "--dry-run")
	id := strings.TrimSpace(there("dlq", "runs", "ls", "--plans", "-o", "name"))
	id = id[strings.LastIndex(id, "\n")+1:]
	u.exec(`UPDATE @new.dlq_runs SET state = 'paused', started_at = now(), note = 'by ann'`)
	for _, table := range []string{"dlq_runs", "dlq_run_letters"} {
		rows, err := u.db.Pool.Query(u.t.Context(), `SELECT column_name::text FROM information_schema.columns
			WHERE table_schema = $1 AND table_name = $2 AND is_generated = 'NEVER'`, u.schema, table)
		require.NoError(u.t, err)
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(u.t, err)
		columns := strings.Join(names, ", ")
		u.exec(`INSERT INTO @.` + table + ` (` + columns + `) SELECT ` + columns + ` FROM @new.` + table)
	}
	return id
}

// counts are the rows of each table.
func (u *upgrading) counts() map[string]int {
	u.t.Helper()
	rows, err := u.db.Pool.Query(u.t.Context(), `SELECT relname::text FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind = 'r' AND relname NOT LIKE 'schema_%'`, u.schema)
	require.NoError(u.t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(u.t, err)
	counts := map[string]int{}
	for _, table := range tables {
		var n int
		require.NoError(u.t, u.db.Pool.QueryRow(u.t.Context(), `SELECT count(*) FROM `+u.schema+`.`+table).Scan(&n))
		counts[table] = n
	}
	return counts
}

// ids are what was handled, in order.
func (u *upgrading) ids() []string {
	text, _ := os.ReadFile(u.handled) // not there before the first
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func (u *upgrading) handles(ids ...string) {
	u.t.Helper()
	slices.Sort(ids)
	testkit.Eventually(u.t, time.Minute, strings.Join(ids, ", ")+" are handled", func() bool { return slices.Equal(ids, slices.Sorted(slices.Values(u.ids()))) })
}

// roles runs all roles until the function that it returns is called.
func (u *upgrading) roles() (stop func() int) {
	u.t.Helper()
	cmd := exec.CommandContext(u.t.Context(), testkit.Binary(u.t), "run")
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = u.dir, u.env, &u.said, &u.said
	require.NoError(u.t, cmd.Start())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	u.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if u.t.Failed() {
			u.t.Log(u.said.String())
		}
	})
	return func() int {
		require.NoError(u.t, cmd.Process.Signal(syscall.SIGTERM))
		<-ended
		return cmd.ProcessState.ExitCode()
	}
}

// A schema of an earlier version, with all that its processes leave and one that still has its leases, is migrated to the newest. Nothing is
// lost, what waited and what was dead goes its way, each once, and what was handled before is not handled again.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	for _, from := range []int{9, 19} {
		t.Run(fmt.Sprintf("from %d", from), func(t *testing.T) {
			t.Parallel()
			u := newUpgrading(t, from)
			u.leave()
			run := ""
			if from >= 15 { // the first with redrives that are written down
				run = u.pausedRun()
			}
			before := u.counts()
			code, out := u.run("", "outbox", "ls")
			require.Equal(t, 1, code, out)
			require.Contains(t, out, "run `surefoot migrate up`")

			u.succeed("migrate", "up")
			after := u.counts()
			for table, n := range before {
				require.Equal(t, n, after[table], table)
			}
			stop := u.roles()
			moved := []string{"w1", "w2", "w3", "w4", "w5", "bad", "in q", "in retry"}
			u.handles(moved...)

			u.succeed("outbox", "retry", "--state", "dead", "--yes")
			moved = append(moved, "dead")
			u.handles(moved...)
			if run != "" {
				u.succeed("dlq", "runs", "resume", run, "--yes")
				moved = append(moved, "letter1")
				u.handles(moved...)
				u.succeed("dlq", "redrive", "--queue", "q", "--yes")
				moved = append(moved, "letter2")
			} else {
				u.succeed("dlq", "redrive", "--queue", "q", "--yes")
				moved = append(moved, "letter1", "letter2")
			}
			u.handles(moved...)
			testkit.Eventually(t, time.Minute, "the outbox is empty", func() bool { c := u.counts(); return c["outbox"]+c["outbox_parked"] == 0 })
			testkit.Eventually(t, time.Minute, "the queues are empty", func() bool {
				total := 0
				for _, name := range []string{"q", "q.retry", "q.dlq"} {
					q, err := u.ch.QueueDeclarePassive(name, true, false, false, false, nil)
					require.NoError(t, err)
					total += q.Messages
				}
				return total == 0
			})
			require.Zero(t, stop(), u.said.String())
			u.handles(moved...) // "seen" is not among them, nor anything twice
			require.True(t, slices.IsSorted(slices.DeleteFunc(u.ids(), func(id string) bool { return !slices.Contains([]string{"w1", "w2", "w3"}, id) })), "a key's order")
			require.Equal(t, 1, u.counts()["pauses"])
		})
	}
}

// A process that runs while the schema gets ahead of it works on; it is ready only if the schema says that it fits, and one that starts waits.
func TestAProcessOfTheVersionBefore(t *testing.T) {
	t.Parallel()
	u := newUpgrading(t, int(pg.Version()))
	stop := u.roles()
	ready := func(code int, says string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, fmt.Sprint("readiness ", code), func() bool {
			addr := regexp.MustCompile(`"addr":"(127[^"]+)"`).FindStringSubmatch(u.said.String())
			if addr == nil {
				return false
			}
			response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + addr[1] + "/readyz")
			if err != nil {
				return false
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			return err == nil && response.StatusCode == code && strings.Contains(string(body), says)
		})
	}
	ready(http.StatusOK, "")
	next := strconv.FormatInt(pg.Version()+1, 10)
	u.exec(`INSERT INTO @.schema_version (version_id, is_applied) VALUES (` + next + `, true)`)
	ready(http.StatusServiceUnavailable, "use a newer surefoot")
	u.enqueue("k", "on")
	u.handles("on")
	code, out := u.run("", "outbox", "ls")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "use a newer surefoot")

	u.exec(`CREATE OR REPLACE FUNCTION @.schema_fits(p_program bigint) RETURNS boolean LANGUAGE sql STABLE AS 'SELECT p_program >= ` +
		strconv.FormatInt(pg.Version(), 10) + ` AND (SELECT max(version_id) = ` + next + ` FROM @.schema_version)'`)
	ready(http.StatusOK, "")
	u.succeed("outbox", "ls")
	require.Zero(t, stop(), u.said.String())
	started := u.roles()
	u.enqueue("k", "after a start")
	u.handles("on", "after a start")
	require.Zero(t, started(), u.said.String())
}
