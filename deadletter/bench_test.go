package deadletter_test

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/message"
)

// BenchmarkRedrive compares a redrive, with its audit and locks, to the least that is safe: consume, publish confirmed in a window of the
// same size, acknowledge. Both run in each iteration; "ratio" is redrive time by bare time.
func BenchmarkRedrive(b *testing.B) {
	const n = 2000
	s := newStage(b)
	letters, _ := batch("m", n, "order.paid")
	var ours, bare time.Duration
	for b.Loop() {
		s.fill(dlq, letters...)
		began := time.Now()
		result, err := s.redrive()
		ours += time.Since(began)
		require.NoError(b, err)
		require.Equal(b, n, result.Done)
		s.take(work)
		s.fill(dlq, letters...)
		began = time.Now()
		s.bareMove(n)
		bare += time.Since(began)
		s.take(work)
		s.settledDepth(n) // closing at once, as the bare move does, brings letters back
		_, err = s.ch.QueuePurge(dlq, false)
		require.NoError(b, err)
	}
	rounds := float64(b.N)
	b.ReportMetric(n*rounds/ours.Seconds(), "redriven/s")
	b.ReportMetric(n*rounds/bare.Seconds(), "bare/s")
	b.ReportMetric(ours.Seconds()/bare.Seconds(), "ratio")
}

func (s *stage) bareMove(n int) {
	s.Helper()
	consume, err := s.conn.Channel()
	require.NoError(s, err)
	require.NoError(s, consume.Qos(1000, 0, false))
	deliveries, err := consume.Consume(dlq, "", false, false, false, false, nil)
	require.NoError(s, err)
	type flight struct {
		confirm *amqp.DeferredConfirmation
		tag     uint64
	}
	flights := make(chan flight, 500)
	done := make(chan bool, 1)
	go func() {
		all := true
		for f := range flights {
			all = f.confirm.Wait() && consume.Ack(f.tag, false) == nil && all
		}
		done <- all
	}()
	for range n {
		d := <-deliveries
		confirm, err := s.ch.PublishWithDeferredConfirmWithContext(context.Background(), "", work, true, false, message.Republishing(&d))
		require.NoError(s, err)
		flights <- flight{confirm, d.DeliveryTag}
	}
	close(flights)
	require.True(s, <-done)
	require.NoError(s, consume.Close())
}
