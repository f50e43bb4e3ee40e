package consumer_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/message"
)

// The workers of both sides: as many as the pool has connections.
const (
	benchWorkers  = 8
	benchPrefetch = 64
)

// BenchmarkInbox drains a queue with one inserted row per message: by the consumer, whose transaction also holds the
// inbox row, and by a bare consumer with the same transaction and an acknowledgement each. x-bare is how many times
// longer the consumer takes.
func BenchmarkInbox(b *testing.B) {
	w := newWorld(b, worldOptions{})
	compare(b, w, 1500, true, func(done func()) func() {
		return w.start(benchOptions(w, func(ctx context.Context, tx pgx.Tx, m message.Message) error {
			defer done()
			return w.effect(ctx, tx, m)
		}))
	}, func(ctx context.Context, d *amqp.Delivery) error {
		return pgx.BeginFunc(ctx, w.db.Pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO `+w.db.Schema+`.effects (id, key) VALUES ($1, $2)`, d.MessageId, "")
			return err
		})
	})
}

// BenchmarkPlain drains a queue of messages without ids, by handlers that do nothing: what the consumer itself costs.
func BenchmarkPlain(b *testing.B) {
	w := newWorld(b, worldOptions{})
	compare(b, w, 10000, false, func(done func()) func() {
		o := benchOptions(w, nil)
		o.AllowNoID = true
		o.Plain = func(context.Context, message.Message) error { done(); return nil }
		return w.start(o)
	}, func(context.Context, *amqp.Delivery) error { return nil })
}

func benchOptions(w *world, h consumer.Handler) consumer.Options {
	o := w.options(w.effect)
	o.Handler, o.Prefetch, o.Concurrency, o.Logger = h, benchPrefetch, benchWorkers, zerolog.Nop()
	return o
}

// compare drains n messages by each side in turn, b.N times.
func compare(b *testing.B, w *world, n int, ids bool, ours func(done func()) (stop func()), bare func(context.Context, *amqp.Delivery) error) {
	b.Helper()
	var spent, bareSpent time.Duration
	for b.Loop() {
		bareSpent += drainBare(b, w, n, ids, bare)
		spent += drainOurs(b, w, n, ids, ours)
	}
	total := float64(n * b.N)
	b.ReportMetric(total/spent.Seconds(), "msg/s")
	b.ReportMetric(total/bareSpent.Seconds(), "bare-msg/s")
	b.ReportMetric(spent.Seconds()/bareSpent.Seconds(), "x-bare")
	b.ReportMetric(0, "ns/op")
}

func drainOurs(b *testing.B, w *world, n int, ids bool, ours func(done func()) func()) time.Duration {
	b.Helper()
	w.fill(b, n, ids)
	var left atomic.Int64
	left.Store(int64(n))
	finished := make(chan struct{})
	began := time.Now()
	stop := ours(func() {
		if left.Add(-1) == 0 {
			close(finished)
		}
	})
	receive(b, finished, "the queue to be drained")
	spent := time.Since(began)
	stop()
	return spent
}

func drainBare(b *testing.B, w *world, n int, ids bool, handle func(context.Context, *amqp.Delivery) error) time.Duration {
	b.Helper()
	w.fill(b, n, ids)
	began := time.Now()
	conn, err := amqp.Dial(w.vhost.URL)
	require.NoError(b, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(b, err)
	require.NoError(b, ch.Qos(benchPrefetch, 0, false))
	deliveries, err := ch.Consume("q", "bare", false, false, false, false, nil)
	require.NoError(b, err)
	var left atomic.Int64
	left.Store(int64(n))
	var workers sync.WaitGroup
	for range benchWorkers {
		workers.Go(func() {
			for d := range deliveries {
				if err := handle(b.Context(), &d); err != nil {
					b.Error(err)
				}
				_ = d.Ack(false)
				if left.Add(-1) == 0 {
					_ = ch.Cancel("bare", false)
				}
			}
		})
	}
	workers.Wait()
	return time.Since(began)
}

// fill puts n messages into the queue, pipelined.
func (w *world) fill(b *testing.B, n int, ids bool) {
	b.Helper()
	confirms := make([]*amqp.DeferredConfirmation, 0, n)
	for i := range n {
		p := amqp.Publishing{Type: "bench", DeliveryMode: amqp.Persistent, Body: fmt.Appendf(nil, `{"n":%d}`, i)}
		if ids {
			p.MessageId = message.NewID()
		}
		confirm, err := w.ch.PublishWithDeferredConfirm("", "q", true, false, p)
		require.NoError(b, err)
		confirms = append(confirms, confirm)
	}
	for _, confirm := range confirms {
		ok, err := confirm.WaitContext(b.Context())
		require.NoError(b, err)
		require.True(b, ok)
	}
}
