package cli_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// fullDisk takes nothing.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// A script that takes the failure for "nothing was done" would enqueue everything twice.
func TestOutboxAddThatCannotTellItsResult(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for _, format := range []string{"table", "json", "jsonl", "name"} {
		e := env("")
		e.Environ = []string{"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema}
		e.Stdin = strings.NewReader(`{"type":"a","payload":1}` + "\n" + `{"type":"a","payload":2}`)
		var stderr bytes.Buffer
		e.Stdout, e.Stderr = fullDisk{}, &stderr
		require.Equal(t, cli.ExitPartly, cli.Main(t.Context(), []string{"outbox", "add", "-o", format}, e), format)
		require.Contains(t, stderr.String(), "2 messages were enqueued; do not add them again: ")
		require.Contains(t, stderr.String(), "no space left on device")
	}
	require.Len(t, payloads(t, db), 8)
}

// Two inputs with the same keys, a batch apart and in different order, lock them in different order.
func TestOutboxAddThatMeetsAnotherWriterCanBeRunAgain(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	other, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = other.Rollback(t.Context()) }()
	lock := func(key string) error {
		_, err := other.Exec(t.Context(), "SELECT "+db.Schema+".enqueue('a', '1', key => $1, lock_key => true)", key)
		return err
	}
	_, err = other.Exec(t.Context(), "SET LOCAL deadlock_timeout = '1min'") // the command is the one that fails
	require.NoError(t, err)
	db.URL = db.Direct + "&deadlock_timeout=2s"
	require.NoError(t, lock("second"))
	done := make(chan result, 1)
	input := `{"type":"a","key":"first","payload":1}` + "\n" +
		strings.Repeat(`{"type":"a","payload":1}`+"\n", 600) + `{"type":"a","key":"second","payload":1}`
	go func() { done <- outboxOf(t, db)(input, "add", "--lock-keys") }()
	testkit.Eventually(t, 20*time.Second, "the command to wait for the second key", func() bool {
		var waiting bool
		err := db.Pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = ($1 || '.outbox')::regclass::oid)", db.Schema).Scan(&waiting)
		return err == nil && waiting
	})
	require.NoError(t, lock("first"))
	got := <-done
	require.Equal(t, cli.ExitFailed, got.code)
	require.Contains(t, got.stderr, "nothing was enqueued, another writer was in the way; run it again: ")
}

func TestOutboxAddOfWhatNoQueueIsBoundFor(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Database(t), testkit.Broker(t)
	at := func(management, input string, args ...string) result {
		e := env("topology: {exchange: shop, queues: [{name: q, bindings: [order.*, 'mail.#']}]}")
		e.Stdin = strings.NewReader(input)
		e.Environ = []string{
			"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema, "SUREFOOT_AMQP_URL=" + broker.URL, "SUREFOOT_MANAGEMENT_URL=" + management,
		}
		return run(t, e, args...)
	}
	input := `{"type":"order.created","payload":1}` + "\n" + `{"type":"oder.created","payload":2}` + "\n" +
		`{"type":"a","routing_key":"mail.a.b","payload":3}` + "\n" + `{"type":"order.paid","exchange":"other","payload":4}`
	got := at(broker.ManagementURL, input, "outbox", "add")
	require.Equal(t, cli.ExitUsage, got.code)
	require.Contains(t, got.stderr, `line 1: there is no exchange "shop": the message would wait`)

	require.Zero(t, at(broker.ManagementURL, "", "topology", "apply", "--yes").code)
	for _, args := range [][]string{nil, {"--dry-run"}} {
		got = at(broker.ManagementURL, input, append([]string{"outbox", "add"}, args...)...)
		require.Equal(t, cli.ExitUsage, got.code)
		require.Contains(t, got.stderr, `line 2: no queue is bound to exchange "shop" with routing key "oder.created": the message would wait in the outbox, and later ones of its key with it`)
		require.Contains(t, got.stderr, `line 4: there is no exchange "other": `)
		require.Contains(t, got.stderr, "\nhint: correct the type, or bind a queue")
		require.NotContains(t, got.stderr, "line 1")
		require.NotContains(t, got.stderr, "line 3")
		require.Empty(t, got.stdout)
	}
	require.Empty(t, payloads(t, db))

	require.Zero(t, at(broker.ManagementURL, input, "outbox", "add", "--allow-unroutable").code)
	require.Len(t, payloads(t, db), 4)
	require.Zero(t, at("http://127.0.0.1:1", input, "outbox", "add").code, "a broker that is away holds nobody up")
	require.Len(t, payloads(t, db), 8)
}
