package docs_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// The SQL of docs/migrating.md takes over an outbox that is being written to: each row goes one way, in its order, and back again.
func TestTheTakeoverOfAnOutbox(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("migrating.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	require.Len(t, blocks, 2)
	db := testkit.Database(t)
	own := strings.NewReplacer("surefoot.enqueue", db.Schema+".enqueue",
		"TRIGGER app_outbox", "TRIGGER app_outbox", // a trigger's name has no schema
		"app_outbox", db.Schema+".app_outbox")
	exec := func(ctx context.Context, sql string) {
		_, err := db.Pool.Exec(ctx, own.Replace(sql))
		require.NoError(t, err, sql)
	}
	ctx := t.Context()
	exec(ctx, `CREATE TABLE app_outbox (id uuid PRIMARY KEY, type text, key text, payload jsonb, created_at timestamptz DEFAULT clock_timestamp(), sent_at timestamptz)`)
	id := func(n int) string { return fmt.Sprintf("00000000-0000-7000-8000-%012d", n) }
	insert := func(q interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	}, n int,
	) {
		_, err := q.Exec(ctx, own.Replace(`INSERT INTO app_outbox (id, type, key, payload) VALUES ($1, 'a.b', 'k', '{"n": 1}')`), id(n))
		require.NoError(t, err)
	}
	insert(db.Pool, 1)
	exec(ctx, `UPDATE app_outbox SET sent_at = now()`) // by the old poller
	insert(db.Pool, 2)
	open, err := db.Pool.Begin(ctx) // a producer in the middle of its transaction
	require.NoError(t, err)
	insert(open, 3)
	taken := make(chan error, 1)
	go func() {
		_, err := db.Pool.Exec(context.WithoutCancel(ctx), own.Replace(blocks[0][1]))
		taken <- err
	}()
	testkit.Eventually(t, 30*time.Second, "the takeover waits for the producer", func() bool {
		var waits bool
		require.NoError(t, db.Pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = '`+db.Schema+`.app_outbox'::regclass)`).Scan(&waits))
		return waits
	})
	require.NoError(t, open.Commit(ctx))
	require.NoError(t, <-taken)
	insert(db.Pool, 4)
	ids := func() []string {
		rows, err := db.Pool.Query(ctx, `SELECT message_id FROM `+db.Schema+`.outbox ORDER BY id`)
		require.NoError(t, err)
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return all
	}
	unsent := func() (n int) {
		require.NoError(t, db.Pool.QueryRow(ctx, own.Replace(`SELECT count(*) FROM app_outbox WHERE sent_at IS NULL`)).Scan(&n))
		return n
	}
	require.Equal(t, []string{id(2), id(3), id(4)}, ids(), "not what was sent, and in the order of before")
	require.Zero(t, unsent(), "nothing is left to the old poller")

	exec(ctx, blocks[1][1])
	insert(db.Pool, 5)
	require.Equal(t, []string{id(2), id(3), id(4)}, ids())
	require.Equal(t, 1, unsent(), "the old poller has it again")
}

// foreign is a consumer by another library on a classic queue.
type foreign struct {
	mu  sync.Mutex
	ids []string
}

func (f *foreign) run(deliveries <-chan amqp.Delivery) {
	for d := range deliveries {
		f.mu.Lock()
		f.ids = append(f.ids, d.MessageId)
		f.mu.Unlock()
		_ = d.Ack(false) // a lost one is delivered again, and counted twice
	}
}

func (f *foreign) handled() []string { f.mu.Lock(); defer f.mu.Unlock(); return slices.Clone(f.ids) }

// totals are what the management API tells of a queue; messages are unacknowledged ones, too.
type totals struct {
	Name     string
	Messages *int
}

// The cut of docs/migrating.md, step 3, while events are written all the time: each is handled by one of the two consumers, and once.
func TestTheCutOfConsumers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs the services")
	}
	db, broker, dir := testkit.Database(t), testkit.Broker(t), t.TempDir()
	env := append(os.Environ(), "SUREFOOT_DATABASE_URL="+db.URL, "SUREFOOT_SCHEMA="+db.Schema, "SUREFOOT_AMQP_URL="+broker.URL,
		"SUREFOOT_MANAGEMENT_URL="+broker.ManagementURL, "SUREFOOT_HTTP_LISTEN=127.0.0.1:0")
	command := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), testkit.Binary(t), args...)
		cmd.Dir, cmd.Env = dir, env
		return cmd
	}
	succeed := func(args ...string) {
		out, err := command(args...).CombinedOutput()
		require.NoError(t, err, "%v: %s", args, out)
	}
	start := func(args ...string) (stop func()) {
		cmd, said := command(args...), new(testkit.Buffer)
		cmd.Stderr = said
		require.NoError(t, cmd.Start())
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }()
		t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
		return func() {
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			<-ended
			require.Zero(t, cmd.ProcessState.ExitCode(), said)
		}
	}
	file := filepath.Join(dir, "handled")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "worker"), []byte("#!/bin/sh\necho \"$SUREFOOT_MESSAGE_ID\" >>"+file+"\n"), 0o700))
	configure := func(bindings string) {
		text := fmt.Sprintf("topology: {exchange: x, queues: [{name: q, bindings: [%s], retry: [1s], target: {exec: [%s/worker]}}]}\n", bindings, dir)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "surefoot.yaml"), []byte(text), 0o600))
		succeed("topology", "apply", "--yes")
	}
	configure("")

	conn, err := amqp.Dial(broker.URL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	require.NoError(t, err)
	_, err = ch.QueueDeclare("old", true, false, false, false, amqp.Table{"x-queue-type": "classic"})
	require.NoError(t, err)
	require.NoError(t, ch.QueueBind("old", "a.b", "x", false, nil))
	deliveries, err := ch.Consume("old", "old", false, false, false, false, nil)
	require.NoError(t, err)
	var before foreign
	go before.run(deliveries)

	written, writing := 0, make(chan struct{})
	producing, stopProducing := context.WithCancel(t.Context())
	whole := context.WithoutCancel(producing) // a write is not cut off: whether it was committed would not be known
	go func() {                               // a producer that knows of nothing
		defer close(writing)
		for pace := time.NewTicker(50 * time.Millisecond); producing.Err() == nil; <-pace.C { // a process for each message: not too many
			_, err := db.Pool.Exec(whole, `SELECT `+db.Schema+`.enqueue(type => 'a.b', payload => '{}', message_id => $1)`, fmt.Sprint("m", written))
			if err != nil {
				return
			}
			written++
		}
	}()
	defer func() { stopProducing(); <-writing }()

	relay := start("relay", "run")
	testkit.Eventually(t, time.Minute, "the old consumer works", func() bool { return len(before.handled()) > 30 })
	relay() // 2
	testkit.Eventually(t, time.Minute, "the old queue is empty", func() bool {
		var queues []totals
		broker.API(t, "GET", "/api/queues/"+url.PathEscape(broker.Vhost)+"?disable_stats=true&enable_queue_totals=true", nil, &queues)
		i := slices.IndexFunc(queues, func(q totals) bool { return q.Name == "old" })
		return i >= 0 && queues[i].Messages != nil && *queues[i].Messages == 0
	})
	require.NoError(t, ch.Cancel("old", false))
	configure("a.b") // 4
	require.NoError(t, ch.QueueUnbind("old", "a.b", "x", nil))
	stop := start("run") // 5
	after := func() []string {
		text, _ := os.ReadFile(file) // not there before the first
		return strings.Fields(string(text))
	}
	testkit.Eventually(t, time.Minute, "the new consumer works", func() bool { return len(after()) > 20 })
	stopProducing()
	<-writing
	all := func() []string { return slices.Sorted(slices.Values(append(before.handled(), after()...))) }
	testkit.Eventually(t, 2*time.Minute, "everything is handled", func() bool { return len(all()) >= written })
	stop()
	want := make([]string, written)
	for i := range want {
		want[i] = fmt.Sprint("m", i)
	}
	slices.Sort(want)
	require.Equal(t, want, all(), "each by one of the two, and once")
}
