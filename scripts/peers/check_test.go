package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

const checkRows = 2000

// Each peer, also when it is stopped in between, leaves every row in the queue and nothing in its table.
func TestEveryRowIsPublishedAndSettled(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"textbook", "river", "watermill", "watermill with topics"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			name, partitioned, _ := strings.Cut(name, " ")
			prepare := []string{name, "prepare"}
			if partitioned != "" {
				prepare = append(prepare, "-topics", "3")
			}
			for range 2 { // prepare starts anew, whatever is there
				b.run(prepare...)
				b.run(name, "fill", "-rows", strconv.Itoa(checkRows), "-bytes", "300", "-keys", "7")
			}
			require.Equal(t, int64(checkRows), b.drain(name).Rows)
			b.requireQueue()
			require.Zero(t, b.drain(name).Rows)

			b.run(name, "fill", "-rows", strconv.Itoa(checkRows), "-bytes", "300", "-keys", "7")
			first := b.drain(name, "-for", "100ms").Rows
			require.Equal(t, int64(checkRows), first+b.drain(name).Rows)
			b.requireQueue()
		})
	}
}

// What no queue takes is confirmed all the same, and must stay.
func TestReturnedRowsAreNotSettled(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"textbook", "river"} {
		b := newBench(t)
		require.NoError(t, b.ch.QueueUnbind(b.queue, "order.*", b.queue, nil))
		b.run(name, "prepare")
		b.run(name, "fill", "-rows", "10", "-bytes", "300")
		var stdout, stderr bytes.Buffer
		_ = run(t.Context(), []string{name, "drain", "-for", "300ms"}, b.getenv, &stdout, &stderr) // River goes on, and tries again
		require.Contains(t, stderr.String(), "was returned: no queue is bound")
		if name == "river" {
			require.Contains(t, stdout.String(), `{"rows":0,`)
			continue
		}
		require.NoError(t, b.ch.QueueBind(b.queue, "order.*", b.queue, false, nil))
		require.Equal(t, int64(10), b.drain(name).Rows)
	}
}

func TestErrorsSayWhatIsMissing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, name := range []string{"textbook", "river", "watermill"} {
		b.run(name, "prepare")
		b.run(name, "fill", "-rows", "1")
		for variable, value := range map[string]string{"SUREFOOT_BENCH_EXCHANGE": "no-such-exchange", "SUREFOOT_DATABASE_URL": "", "SUREFOOT_BENCH_SCHEMA": "A-b"} {
			env := func(key string) string {
				if key == variable {
					return value
				}
				return b.getenv(key)
			}
			var stdout, stderr bytes.Buffer
			require.Equal(t, 1, run(t.Context(), []string{name, "drain"}, env, &stdout, &stderr))
			require.Contains(t, stderr.String(), variable, name)
			require.Empty(t, stdout.String())
		}
	}
	var stderr bytes.Buffer
	require.Equal(t, 2, run(t.Context(), []string{"kafka", "drain"}, b.getenv, nil, &stderr))
	require.Contains(t, stderr.String(), `no peer "kafka"`)
}

// bench is a schema, an exchange and a quorum queue of one test.
type bench struct {
	t     *testing.T
	env   map[string]string
	ch    *amqp.Channel
	queue string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	name := fmt.Sprintf("peers_%d", time.Now().UnixNano())
	b := &bench{t: t, queue: name, env: map[string]string{
		"SUREFOOT_DATABASE_URL": os.Getenv("SUREFOOT_DATABASE_URL"), "SUREFOOT_AMQP_URL": os.Getenv("SUREFOOT_AMQP_URL"),
		"SUREFOOT_BENCH_SCHEMA": name, "SUREFOOT_BENCH_EXCHANGE": name,
	}}
	require.NotEmpty(t, b.env["SUREFOOT_DATABASE_URL"], "run scripts/peers/check, which has the services")
	conn, err := amqp.Dial(b.env["SUREFOOT_AMQP_URL"])
	require.NoError(t, err)
	b.ch, err = conn.Channel()
	require.NoError(t, err)
	require.NoError(t, b.ch.ExchangeDeclare(name, "topic", true, false, false, false, nil))
	_, err = b.ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	require.NoError(t, b.ch.QueueBind(name, "order.*", name, false, nil))
	t.Cleanup(func() {
		_, err := b.ch.QueueDelete(name, false, false, false)
		require.NoError(t, err)
		require.NoError(t, b.ch.ExchangeDelete(name, false, false))
		require.NoError(t, conn.Close())
		ctx := context.WithoutCancel(t.Context())
		db, err := pgx.Connect(ctx, b.env["SUREFOOT_DATABASE_URL"])
		require.NoError(t, err)
		_, err = db.Exec(ctx, "DROP SCHEMA IF EXISTS "+name+" CASCADE")
		require.NoError(t, err)
		require.NoError(t, db.Close(ctx))
	})
	return b
}

func (b *bench) getenv(key string) string { return b.env[key] }

func (b *bench) run(args ...string) string {
	b.t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(b.t.Context(), args, b.getenv, &stdout, &stderr)
	require.Zero(b.t, code, "%v: %s", args, &stderr)
	require.Empty(b.t, stderr.String())
	return stdout.String()
}

func (b *bench) drain(name string, args ...string) (r result) {
	b.t.Helper()
	line := b.run(append([]string{name, "drain"}, args...)...)
	require.NoError(b.t, json.Unmarshal([]byte(line), &r))
	return r
}

// requireQueue empties the queue and requires each row once, as it was meant.
func (b *bench) requireQueue() {
	b.t.Helper()
	seen := map[string]int{}
	deliveries, err := b.ch.Consume(b.queue, b.queue, true, false, false, false, nil)
	require.NoError(b.t, err)
	patience := time.After(time.Minute)
	for range checkRows {
		select {
		case d := <-deliveries:
			seen[d.MessageId]++
			require.Equal(b.t, amqp.Persistent, d.DeliveryMode)
			require.Equal(b.t, routingKey, d.RoutingKey)
			require.Equal(b.t, payload(300), string(d.Body))
			require.Contains(b.t, d.Headers["sf-key"], "k")
		case <-patience:
			require.Fail(b.t, "rows are missing", "%d came", len(seen))
		}
	}
	require.NoError(b.t, b.ch.Cancel(b.queue, false))
	for d := range deliveries {
		require.Fail(b.t, "published twice", d.MessageId)
	}
	for i := range checkRows {
		require.Equal(b.t, 1, seen[fmt.Sprint("m", i+1)], "m%d", i+1)
	}
}
