package drill

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/topology"
)

// line is outbox, relay, a queue and its consumer, with a look at what is delivered.
type line struct {
	stage    *stage
	conn     *rabbit.Conn
	queue    topology.Queue
	consumer part
	seen     *deliveries
}

// line builds it; the handler of each delivery is written down first.
func (s *stage) line(ctx context.Context, queue topology.Queue, handler consumer.Handler, change func(*consumer.Options)) (*line, error) {
	if err := s.prepare(ctx, queue); err != nil {
		return nil, err
	}
	if err := s.exec(ctx, effectsTable); err != nil {
		return nil, err
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := s.relay(ctx, "relay", nil); err != nil {
		return nil, err
	}
	l := &line{stage: s, conn: conn, queue: queue, seen: &deliveries{}}
	l.consumer, err = s.consume(ctx, queue, func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		l.seen.note(m)
		return handler(ctx, tx, m)
	}, change)
	return l, err
}

// bare is a line whose queue has a consumer without any pattern, or none yet.
func (s *stage) bare(ctx context.Context) (*line, error) {
	if err := s.prepare(ctx, work("drill.unused", 3, time.Second)); err != nil {
		return nil, err
	}
	if err := s.exec(ctx, effectsTable); err != nil {
		return nil, err
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	l := &line{stage: s, conn: conn, queue: topology.Queue{Name: "drill.bare"}, seen: &deliveries{}}
	channel, err := conn.Channel(ctx)
	if err != nil {
		return nil, err
	}
	err = channel.Do(ctx, "declare queue", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(l.queue.Name, true, false, false, false, amqp.Table{"x-queue-type": "classic"})
		return err
	})
	if err != nil {
		return nil, err
	}
	err = channel.Do(ctx, "bind queue", func(ch *amqp.Channel) error { return ch.QueueBind(l.queue.Name, "drill.#", exchange, false, nil) })
	if err := errors.Join(err, channel.Close(ctx)); err != nil {
		return nil, err
	}
	_, err = s.relay(ctx, "relay", nil)
	return l, err
}

// bareLimit bounds a consumer without patterns.
const bareLimit = time.Minute

// handle works on the bare queue, one message after the other, until enough says so. A failure goes back to the queue at once, or is
// forgotten.
func (l *line) handle(ctx context.Context, requeue bool, handler func(ctx context.Context, m message.Message) error, enough func() bool) error {
	subscription, err := l.conn.Consume(ctx, rabbit.ConsumeOptions{Queue: l.queue.Name, Prefetch: 1})
	if err != nil {
		return err
	}
	limit := time.NewTimer(bareLimit)
	defer limit.Stop()
	for !enough() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-limit.C:
			return errors.New("the messages did not come")
		case d, open := <-subscription.Deliveries():
			if !open {
				return subscription.Err()
			}
			m := message.FromDelivery(d)
			l.seen.note(m)
			if handler(ctx, m) != nil && requeue {
				err = subscription.Nack(d.DeliveryTag, false, true)
			} else {
				err = subscription.Ack(d.DeliveryTag, false)
			}
			if err != nil {
				return err
			}
		}
	}
	return subscription.Close(ctx)
}

// dead waits until the dead-letter queue has n letters.
func (l *line) dead(ctx context.Context, n int) error {
	return l.stage.dead(ctx, l.conn, l.queue.DLQ(), n)
}

// effects waits until n effects are there.
func (l *line) effects(ctx context.Context, n int) error {
	return eventually(ctx, 30*time.Second, "the effects", func(ctx context.Context) (bool, error) {
		have, err := l.stage.count(ctx, effectsCount)
		return have >= n, err
	})
}

// retried is how often a message went to the retry queue.
func (l *line) retried() int { return int(l.consumer.value("surefoot_consumer_retries_total")) }

// delivery is a message as a handler got it.
type delivery struct {
	message.Message
	at time.Time
}

// deliveries are in their order. Safe for concurrent use.
type deliveries struct {
	mu  sync.Mutex
	all []delivery
}

func (d *deliveries) note(m message.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, delivery{m, time.Now()})
}

// of are those of a key; all with "".
func (d *deliveries) of(key string) (found []delivery) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.all {
		if key == "" || one.Key == key {
			found = append(found, one)
		}
	}
	return found
}

// attempts are the counters that each delivery of a key came with.
func (d *deliveries) attempts(key string) []int {
	counters := []int{}
	for _, one := range d.of(key) {
		counters = append(counters, one.Attempts)
	}
	return counters
}
