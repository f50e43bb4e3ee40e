package drill

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// witness is a queue that is bound to everything, and what came into it.
type witness struct {
	mu     sync.Mutex
	copies map[string][]time.Time // by message id
	kinds  map[string]string      // type by message id
}

const witnessQueue = "drill.witness"

// watch begins to write down what is published to an exchange from now on.
func (s *stage) watch(ctx context.Context, conn *rabbit.Conn, exchange string) (*witness, error) {
	channel, err := conn.Channel(ctx)
	if err != nil {
		return nil, err
	}
	err = channel.Do(ctx, "declare witness", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(witnessQueue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		return err
	})
	if err != nil {
		return nil, err
	}
	err = channel.Do(ctx, "bind witness", func(ch *amqp.Channel) error { return ch.QueueBind(witnessQueue, "#", exchange, false, nil) })
	if err := errors.Join(err, channel.Close(ctx)); err != nil {
		return nil, err
	}
	subscription, err := conn.Consume(ctx, rabbit.ConsumeOptions{Queue: witnessQueue, Prefetch: 1000})
	if err != nil {
		return nil, err
	}
	w := &witness{copies: map[string][]time.Time{}, kinds: map[string]string{}}
	s.background(ctx, func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case d, open := <-subscription.Deliveries():
				if !open {
					return fmt.Errorf("witness: %w", subscription.Err())
				}
				w.note(d.MessageId, d.Type)
				_ = subscription.Ack(d.DeliveryTag, false) // it was written down
			}
		}
	})
	return w, nil
}

func (w *witness) note(id, kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.copies[id], w.kinds[id] = append(w.copies[id], time.Now()), kind
}

// published counts different messages and all copies.
func (w *witness) published() (messages, copies int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.copies {
		copies += len(c)
	}
	return len(w.copies), copies
}

// of counts the different messages of a type.
func (w *witness) of(kind string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range w.kinds {
		if k == kind {
			n++
		}
	}
	return n
}

// counts are the copies by message.
func (w *witness) counts() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := map[string]int{}
	for id, c := range w.copies {
		counts[id] = len(c)
	}
	return counts
}

// repeats are the times of further copies.
func (w *witness) repeats() (times []time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.copies {
		times = append(times, c[1:]...)
	}
	return times
}
