package demo_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/sample"
	"github.com/surefoot-mq/surefoot/internal/demo"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// The whole run, twice in the same place: the second must not stumble over the first.
func TestEverythingIsAccountedForAndTheRunCanBeRepeated(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Database(t), testkit.Broker(t)
	prefix := testkit.Name("demo")
	t.Cleanup(func() { dropSchemas(t, db, prefix) })
	for run := range 2 {
		file, err := os.ReadFile("../../examples/shop/testdata/orders.jsonl")
		require.NoError(t, err)
		d, err := demo.New(demo.Options{
			DatabaseURL: db.URL, AMQPURL: broker.URL, ManagementURL: broker.ManagementURL, Vhost: broker.Vhost, Prefix: prefix,
			Orders: bytes.NewReader(file), Who: "test", Logger: testkit.Logger(t), Say: func(line string) { t.Log(line) },
		})
		require.NoError(t, err)
		account, err := d.Run(t.Context())
		require.NoError(t, err)
		requireWhole(t, account)
		t.Logf("run %d took %.1f s", run, account.Seconds)
	}
}

func requireWhole(t *testing.T, a *demo.Account) {
	t.Helper()
	require.Empty(t, a.Violations)
	want := map[string]int{}
	for _, o := range sample.Orders() {
		status, reason := sample.Expected(o)
		want[status+reason]++
	}
	ends, total := map[string]int{}, 0
	for _, line := range a.Orders {
		ends[line.Status+line.Reason] = line.Orders
		total += line.Orders
	}
	require.Equal(t, want, ends)
	require.Equal(t, sample.Count, total)
	require.Equal(t, sample.Count+1, a.Lines)
	for _, line := range a.Events {
		require.Equal(t, line.Enqueued, line.Published, line.Type)
		require.Equal(t, line.Due, line.Handled+line.Dead, line.Type)
	}
	queues := map[string]demo.QueueLine{}
	for _, line := range a.Queues {
		queues[line.Queue] = line
	}
	require.Equal(t, 1, queues["inventory.orders"].Dead, "the malformed message")
	require.NotZero(t, queues["notifications.mail"].Dead, "mails that bounced")
	require.NotZero(t, queues["payments.saga"].Retried)
	require.Greater(t, queues["payments.saga"].Redriven, 1)
	require.Zero(t, queues["payments.saga"].Dead, "all were redriven")
}

// What is in the account's list of orders must have been submitted by somebody, and the other way round.
func TestRunThatIsCutShortIsNoSuccess(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Database(t), testkit.Broker(t)
	prefix := testkit.Name("demo")
	t.Cleanup(func() { dropSchemas(t, db, prefix) })
	var few bytes.Buffer
	require.NoError(t, sample.Write(&few))
	lines := bytes.SplitAfter(few.Bytes(), []byte("\n"))
	d, err := demo.New(demo.Options{
		DatabaseURL: db.URL, AMQPURL: broker.URL, ManagementURL: broker.ManagementURL, Vhost: broker.Vhost, Prefix: prefix,
		Orders: bytes.NewReader(bytes.Join(lines[:20], nil)), Who: "test", Timeout: 1, Logger: testkit.Logger(t),
	})
	require.NoError(t, err)
	account, err := d.Run(t.Context())
	require.NoError(t, err)
	require.Contains(t, account.Violations[0], "the run ended early")
}

func TestVhostIsMadeWhenItIsMissing(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Database(t), testkit.Broker(t)
	prefix, vhost := testkit.Name("demo"), testkit.Name("demo")
	t.Cleanup(func() { dropSchemas(t, db, prefix) })
	d, err := demo.New(demo.Options{
		DatabaseURL: db.URL, AMQPURL: broker.URL, ManagementURL: broker.ManagementURL, Vhost: vhost, Prefix: prefix,
		Orders: bytes.NewReader(nil), Who: "test", Timeout: 1,
	})
	require.NoError(t, err)
	account, err := d.Run(t.Context())
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(account.Violations), "there were no orders")
	broker.API(t, http.MethodGet, "/api/queues/"+vhost+"/"+demo.Witness, nil, nil)
	broker.API(t, http.MethodDelete, "/api/vhosts/"+vhost, nil, nil)
}

func TestOnlyOneRunAtATime(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	conn, err := db.Pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	prefix := testkit.Name("demo")
	_, err = conn.Exec(t.Context(), `SELECT pg_advisory_lock(hashtext('surefoot demo ' || $1))`, prefix)
	require.NoError(t, err)
	d, err := demo.New(demo.Options{
		DatabaseURL: db.URL, AMQPURL: "amqp://127.0.0.1:1/", Prefix: prefix, Orders: bytes.NewReader(nil), Who: "test",
	})
	require.NoError(t, err)
	_, err = d.Run(t.Context())
	require.ErrorContains(t, err, "another demonstration runs")
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]demo.Options{
		"no services": {Orders: bytes.NewReader(nil), Who: "test"},
		"no orders":   {DatabaseURL: "postgres://x", AMQPURL: "amqp://x", Who: "test"},
		"bad prefix":  {DatabaseURL: "postgres://x", AMQPURL: "amqp://x", Who: "test", Orders: bytes.NewReader(nil), Prefix: `x"; DROP`},
	} {
		_, err := demo.New(o)
		require.Error(t, err, name)
	}
}

func dropSchemas(t *testing.T, db testkit.DB, prefix string) {
	t.Helper()
	for _, name := range []string{"", "_" + orders.Name, "_inventory", "_payments", "_notifications"} {
		_, err := db.Pool.Exec(context.WithoutCancel(t.Context()), "DROP SCHEMA IF EXISTS "+prefix+name+" CASCADE")
		require.NoError(t, err)
	}
}
