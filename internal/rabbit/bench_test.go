package rabbit_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

const benchWindow = 2000

// BenchmarkPublish compares, in interleaved rounds of one run, this package's publisher with the bare client, which waits for confirms in order
// and pairs no returns. cpu/bare is the ratio of CPU per message, time/bare that of time.
func BenchmarkPublish(b *testing.B) {
	broker := testkit.Broker(b)
	conn := dial(b, rabbit.Options{URL: broker.URL})
	q := queue(b, conn, amqp.Table{"x-queue-type": "quorum", "x-max-length": 1000})
	msg := amqp.Publishing{
		MessageId: "0192f3a4-5b6c-7d8e-9f00-112233445566", Type: "order.created", DeliveryMode: amqp.Persistent,
		Headers: amqp.Table{"sf-key": "order-4711"}, Body: make([]byte, 256),
	}
	arms := []func(int){
		bareArm(b, broker.URL, q, msg),
		publisherArm(b, rabbit.Options{URL: broker.URL}, q, msg),
	}
	cpu, spent := make([]time.Duration, len(arms)), make([]time.Duration, len(arms))
	n := 0
	for b.Loop() {
		for i, arm := range arms {
			begun, used := time.Now(), cpuTime()
			arm(benchWindow)
			cpu[i] += cpuTime() - used
			spent[i] += time.Since(begun)
		}
		n += benchWindow
	}
	for i, name := range []string{"bare", "publisher"} {
		b.ReportMetric(float64(cpu[i].Nanoseconds())/float64(n), name+"-cpu-ns/msg")
		b.ReportMetric(float64(n)/spent[i].Seconds(), name+"-msg/s")
		if i > 0 {
			b.ReportMetric(float64(cpu[i])/float64(cpu[0]), name+"-cpu/bare")
		}
	}
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func bareArm(b *testing.B, url, queue string, msg amqp.Publishing) func(int) {
	b.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		b.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		b.Fatal(err)
	}
	return func(n int) {
		confirms := make([]*amqp.DeferredConfirmation, n)
		for i := range confirms {
			if confirms[i], err = ch.PublishWithDeferredConfirm("", queue, true, false, msg); err != nil {
				b.Fatal(err)
			}
		}
		for _, c := range confirms {
			if !c.Wait() {
				b.Fatal("nacked")
			}
		}
	}
}

func publisherArm(b *testing.B, opts rabbit.Options, queue string, msg amqp.Publishing) func(int) {
	b.Helper()
	p, err := dial(b, opts).Publisher(context.WithoutCancel(b.Context()), rabbit.PublisherOptions{Window: benchWindow})
	if err != nil {
		b.Fatal(err)
	}
	results := make([]rabbit.Result, 0, benchWindow)
	return func(n int) {
		landed := 0
		take := func() {
			results = p.Collect(results[:0])
			for _, r := range results {
				if r.Outcome != rabbit.Confirmed {
					b.Fatal(r.Err)
				}
			}
			landed += len(results)
		}
		for range n {
			for errors.Is(p.TryPublish("", queue, msg, nil), rabbit.ErrWindowFull) {
				<-p.Ready()
				take()
			}
		}
		for take(); landed < n; take() {
			<-p.Ready()
		}
	}
}
