package relay_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

const fillSQL pg.SQL = `
INSERT INTO @schema@.outbox (occurred_at, hash, shard, message_id, type, key, exchange, routing_key, content_type, source, correlation_id,
    causation_id, request_id, traceparent, tracestate, payload)
SELECT now(), h, (h & 9223372036854775807) % 8, 'm' || g, 'order.created', k, '', '', 'application/json', '', '', '', '', '', '', decode(repeat('ab', 256), 'hex')
FROM generate_series(1, $1::integer) g, LATERAL (SELECT 'k' || g % 10000 AS k) k, LATERAL (SELECT @schema@.outbox_hash(k) AS h) h`

// BenchmarkDrain drains a backlog of 256-byte rows of 10,000 keys into a quorum queue, strictly ordered, and compares
// it, in the same run, with a bare pipelined publisher of as many connections. SUREFOOT_BENCH_ROWS sets the
// backlog (default 20,000).
func BenchmarkDrain(b *testing.B) {
	rows := 20_000
	if n, err := strconv.Atoi(os.Getenv("SUREFOOT_BENCH_ROWS")); err == nil {
		rows = n
	}
	w := newWorld(b)
	ch := w.channel()
	require.NoError(b, ch.ExchangeDeclare(exchange, "topic", true, false, false, false, nil))
	_, err := ch.QueueDeclare("bench", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(b, err)
	require.NoError(b, ch.QueueBind("bench", "order.#", exchange, false, nil))
	var bare, drained, cpu time.Duration
	for b.Loop() {
		_, err := w.db.Pool.Exec(b.Context(), fillSQL.In(w.db.Schema), rows)
		require.NoError(b, err)
		_, err = ch.QueuePurge("bench", false)
		require.NoError(b, err)
		bare += w.bare(b, rows)
		_, err = ch.QueuePurge("bench", false)
		require.NoError(b, err)
		took, used := w.drain(b)
		drained, cpu = drained+took, cpu+used
		q, err := ch.QueueDeclarePassive("bench", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		require.NoError(b, err)
		require.Equal(b, rows, q.Messages, "every row once")
	}
	total := float64(rows * b.N)
	b.ReportMetric(total/drained.Seconds(), "rows/s")
	b.ReportMetric(total/bare.Seconds(), "bare/s")
	b.ReportMetric(bare.Seconds()/drained.Seconds(), "ratio")
	b.ReportMetric(float64(cpu.Microseconds())/total, "cpu-us/row")
}

// drain runs a relay until the outbox is empty: confirmed and settled.
func (w *world) drain(b *testing.B) (took, cpu time.Duration) {
	b.Helper()
	o := w.options()
	o.Logger = zerolog.Nop()
	begun, used := time.Now(), cpuTime()
	stop := w.start(o)
	testkit.Eventually(b, 5*time.Minute, "the outbox to be empty", func() bool {
		var left bool
		require.NoError(b, w.db.Pool.QueryRow(b.Context(), `SELECT EXISTS (SELECT FROM `+w.db.Schema+`.outbox)`).Scan(&left))
		return !left
	})
	took, cpu = time.Since(begun), cpuTime()-used
	stop()
	return took, cpu
}

// bare publishes as many messages from memory on four connections.
func (w *world) bare(b *testing.B, rows int) time.Duration {
	b.Helper()
	const connections = 4
	var ready, group sync.WaitGroup
	begin := make(chan struct{})
	for range connections {
		ready.Add(1)
		group.Go(func() { w.publishBare(b, rows/connections, &ready, begin) })
	}
	ready.Wait()
	begun := time.Now()
	close(begin)
	group.Wait()
	return time.Since(begun)
}

func (w *world) publishBare(b *testing.B, n int, ready *sync.WaitGroup, begin <-chan struct{}) {
	b.Helper()
	ctx := context.WithoutCancel(b.Context())
	conn, err := rabbit.Dial(ctx, rabbit.Options{URL: w.broker.URL, Role: "bare", Coalesce: true})
	if err != nil {
		b.Error(err)
		ready.Done()
		return
	}
	defer func() { _ = conn.Close() }()
	pub, err := conn.Publisher(ctx, rabbit.PublisherOptions{Window: 4000})
	ready.Done()
	if err != nil {
		b.Error(err)
		return
	}
	<-begin
	body := make([]byte, 256)
	var results []rabbit.Result
	done := 0
	collect := func() {
		results = pub.Collect(results[:0])
		done += len(results)
	}
	for i := range n {
		msg, _ := message.Message{ID: fmt.Sprint("m", i), Type: "order.created", Key: fmt.Sprint("k", i%10000), Payload: body}.Publishing()
		for pub.TryPublish(exchange, "order.created", msg, nil) != nil {
			<-pub.Ready()
			collect()
		}
	}
	for done < n {
		<-pub.Ready()
		collect()
	}
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
