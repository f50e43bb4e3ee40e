package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
)

// idleLimit is how long the queue may keep quiet while messages are missing.
const idleLimit = 30 * time.Second

// book is what has arrived of one table's rows, whose message ids end in a number that counts up.
type book struct {
	seen       []uint64 // bit per number
	last       map[string]int
	distinct   int
	repeated   int
	disordered int
	foreign    string // an id without a number
}

func newBook() *book { return &book{last: map[string]int{}} }

// note enters a message.
func (b *book) note(id, key string) {
	n, ok := numberOf(id)
	if !ok {
		b.foreign = id
		return
	}
	for len(b.seen) <= n/64 {
		b.seen = append(b.seen, make([]uint64, 1+len(b.seen)/2)...)
	}
	if b.seen[n/64]&(1<<(n%64)) != 0 {
		b.repeated++
		return
	}
	b.seen[n/64] |= 1 << (n % 64)
	b.distinct++
	if n < b.last[key] {
		b.disordered++
	}
	b.last[key] = max(b.last[key], n)
}

// numberOf is the number at the end of a message id.
func numberOf(id string) (n int, ok bool) {
	n, err := strconv.Atoi(id[len(strings.TrimRight(id, "0123456789")):])
	return n, err == nil && n < 1<<32 // more than anybody fills
}

// readBack takes the n messages that wait in a queue, and enters them.
func (s *stage) readBack(ctx context.Context, queue string, n int, b *book) error {
	conn, err := rabbit.Dial(ctx, s.broker("bench-check"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // all that it has taken is the run's own
	channel, err := conn.Channel(ctx)
	if err != nil {
		return err
	}
	var deliveries <-chan amqp.Delivery
	err = channel.Do(ctx, "consume from "+queue, func(ch *amqp.Channel) error {
		deliveries, err = ch.Consume(queue, "", true, false, false, false, nil)
		return err
	})
	if err != nil {
		return err
	}
	idle := time.NewTimer(idleLimit)
	defer idle.Stop()
	for got := range n {
		select {
		case d, open := <-deliveries:
			if !open {
				return fmt.Errorf("read back %s: %w", queue, conn.Err())
			}
			b.note(d.MessageId, message.Text(d.Headers, message.HeaderKey))
		case <-idle.C:
			return fmt.Errorf("read back %s: only %d of %d messages came", queue, got, n)
		case <-ctx.Done():
			return ctx.Err()
		}
		if got%1000 == 0 {
			idle.Reset(idleLimit)
		}
	}
	if b.foreign != "" {
		return fmt.Errorf("read back %s: message id %q has no number", queue, message.Clip(b.foreign, 64))
	}
	return nil
}
