package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
)

// moveWindow is the redrive's own default, and movePrefetch twice that.
const (
	moveWindow   = 500
	movePrefetch = 2 * moveWindow
	moveLimit    = 30 * time.Minute
)

func (b *Bench) redrive(ctx context.Context, s *stage, r *Report) error {
	r.Load = Load{Rows: b.o.Rows, Bytes: b.o.Bytes, Keys: b.o.Keys, Rounds: b.o.Rounds}
	schema, err := s.freshSchema(ctx, "redrive")
	if err != nil {
		return err
	}
	work := s.work()
	redrive := s.command(schema, "dlq", "redrive", "--queue", work.Name, "--yes", "--output", "jsonl")
	redrive.env = append(redrive.env, "SUREFOOT_OPERATOR=bench")
	turns := []turn{
		{"bare move", func(ctx context.Context, round int) (Sample, error) {
			return s.moveOnce(ctx, s.arm(schema, armMove, moveTask{From: work.DLQ(), To: work.Name, Rows: b.o.Rows}), round, movePrefetch)
		}},
		{"redrive", func(ctx context.Context, round int) (Sample, error) { return s.moveOnce(ctx, redrive, round, 0) }},
	}
	if err := s.take(ctx, r, turns, nil); err != nil {
		return err
	}
	r.compare("redrive", "bare move", atLeast(0.8))
	r.figure("redrive peak memory", "MiB", r.amounts(Memory, "redrive"), atMost(goalMemory))
	return nil
}

// moveOnce fills the dead-letter queue and lets a program empty it into the work queue. As many as back may be in the dead-letter
// queue again, for their acknowledgements were lost when the connection was closed.
func (s *stage) moveOnce(ctx context.Context, mover program, round, back int) (Sample, error) {
	sample := Sample{Round: round}
	if err := s.freshWork(ctx); err != nil {
		return sample, err
	}
	from, to := s.work().DLQ(), s.work().Name
	if err := s.fillQueue(ctx, from, s.o.Rows, s.letter()); err != nil {
		return sample, err
	}
	before := s.meter.read()
	p, err := s.start(ctx, mover)
	if err != nil {
		return sample, err
	}
	defer p.kill()
	seen, err := s.observe(ctx, p, work{queue: to, rows: s.o.Rows, window: moveLimit}, before)
	if err != nil {
		return sample, err
	}
	if _, err := p.wait(ctx); err != nil {
		return sample, err
	}
	sample.Rows, sample.Seconds, sample.Rate = seen.rows(), seen.seconds(), seen.rate()
	sample.spent(p, seen.used, s.o.Rows)
	return sample, s.accountMove(ctx, from, to, back)
}

// letter makes dead letters as the consumer leaves them.
func (s *stage) letter() func(int) (amqp.Publishing, error) {
	queue := s.work()
	return func(n int) (amqp.Publishing, error) {
		msg, err := message.Message{ID: fmt.Sprint("m", n), Type: routingKey, Key: fmt.Sprint("k", n%s.o.Keys), Payload: s.body}.Publishing()
		if err != nil {
			return msg, err
		}
		msg.Headers[message.HeaderAttempts] = int64(queue.MaxAttempts)
		message.SetOrigin(msg.Headers, message.Origin{Exchange: queue.Exchange, RoutingKey: routingKey, Queue: queue.Name})
		message.Failure{Class: "unknown", Type: "*errors.errorString", Message: "no answer", Stack: "main.go:1"}.Write(msg.Headers, queue.MaxAttempts)
		return msg, nil
	}
}

// accountMove wants every letter in the work queue, once and in its order, and no more than back in the dead-letter queue.
func (s *stage) accountMove(ctx context.Context, from, to string, back int) error {
	left, err := s.depth(ctx, from)
	if err != nil {
		return err
	}
	came, err := s.depth(ctx, to)
	if err != nil {
		return err
	}
	b := newBook()
	if err := s.readBack(ctx, to, came, b); err != nil {
		return err
	}
	if left > back || b.distinct != s.o.Rows || b.repeated > 0 || b.disordered > 0 {
		return fmt.Errorf("of %d letters %d came, %d twice and %d out of order, and %d are left", s.o.Rows, b.distinct, b.repeated, b.disordered, left)
	}
	return nil
}

// moveTask is that of the bare move: the least that loses nothing.
type moveTask struct {
	From, To string
	Rows     int
}

func runMove(ctx context.Context, o ArmOptions) (outcome, error) {
	t, err := task[moveTask](o)
	if err != nil {
		return outcome{}, err
	}
	conn, err := rabbit.Dial(ctx, o.broker())
	if err != nil {
		return outcome{}, err
	}
	done, err := t.move(ctx, o, conn)
	return done, errors.Join(err, closeSettled(ctx, conn))
}

// move publishes with a window of confirms, and acknowledges each letter when its copy is confirmed.
func (t moveTask) move(ctx context.Context, o ArmOptions, conn *rabbit.Conn) (outcome, error) {
	out, err := openLane(ctx, o.broker())
	if err != nil {
		return outcome{}, err
	}
	defer out.close()
	in, err := rawChannel(ctx, conn)
	if err != nil {
		return outcome{}, err
	}
	if err := in.Qos(movePrefetch, 0, false); err != nil {
		return outcome{}, err
	}
	deliveries, err := in.Consume(t.From, "", false, false, false, false, nil)
	if err != nil {
		return outcome{}, err
	}
	began := time.Now()
	copies := make(chan letterCopy, moveWindow)
	settled := make(chan error, 1)
	go func() { settled <- acknowledge(ctx, out, in, copies) }()
	err = t.copyAll(ctx, out, deliveries, copies)
	close(copies)
	err = errors.Join(err, <-settled)
	return outcome{Rows: t.Rows, Seconds: time.Since(began).Seconds()}, err
}

// letterCopy is a copy on its way, with the tag of its original.
type letterCopy struct {
	confirm *amqp.DeferredConfirmation
	tag     uint64
}

func (t moveTask) copyAll(ctx context.Context, out *lane, deliveries <-chan amqp.Delivery, copies chan<- letterCopy) error {
	for range t.Rows {
		select {
		case d, open := <-deliveries:
			if !open {
				return errors.New("the deliveries ended")
			}
			confirm, err := out.ch.PublishWithDeferredConfirm("", t.To, true, false, message.Republishing(&d))
			if err != nil {
				return err
			}
			copies <- letterCopy{confirm, d.DeliveryTag}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// acknowledge reads copies to their end, also when one has failed: nobody waits for room in vain.
func acknowledge(ctx context.Context, out *lane, in *amqp.Channel, copies <-chan letterCopy) (err error) {
	for c := range copies {
		if err != nil {
			continue
		}
		if err = out.await(ctx, &c.confirm); err == nil {
			err = in.Ack(c.tag, false)
		}
	}
	return err
}
