package consumer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/message"
)

// BenchmarkBatch drains a queue with one inserted row per message: by batches, whose transaction also holds the inbox
// rows and inserts all effects by one statement, and by a bare consumer with a transaction and an acknowledgement per
// message. x-bare-rate is how many times more messages a second the batches
// do.
func BenchmarkBatch(b *testing.B) {
	const n, bareN = 30000, 6000 // about the same time
	w := newWorld(b, worldOptions{})
	var batches atomic.Int64
	var spent, bareSpent time.Duration
	for b.Loop() {
		bareSpent += drainBare(b, w, bareN, true, func(ctx context.Context, d *amqp.Delivery) error {
			return pgx.BeginFunc(ctx, w.db.Pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO `+w.db.Schema+`.effects (id, key) VALUES ($1, $2)`, d.MessageId, "")
				return err
			})
		})
		spent += drainOurs(b, w, n, true, func(done func()) func() {
			o := benchOptions(w, nil)
			o.Prefetch, o.Concurrency, o.BatchSize, o.Timeout = 400, 2, 100, 5*time.Second
			o.Batch = func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
				batches.Add(1)
				defer func() {
					for range msgs {
						done()
					}
				}()
				return w.effectsOf(ctx, tx, msgs)
			}
			return w.start(o)
		})
	}
	rate, bareRate := float64(n*b.N)/spent.Seconds(), float64(bareN*b.N)/bareSpent.Seconds()
	b.ReportMetric(rate, "msg/s")
	b.ReportMetric(bareRate, "bare-msg/s")
	b.ReportMetric(rate/bareRate, "x-bare-rate")
	b.ReportMetric(float64(n*b.N)/float64(batches.Load()), "msg/batch")
	b.ReportMetric(0, "ns/op")
}
