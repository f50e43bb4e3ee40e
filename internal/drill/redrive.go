package drill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/topology"
)

func redrive() Drill {
	return Drill{
		Name: "redrive", Section: SectionQueues,
		Proves: "a redrive moves exactly what was chosen, by number, type or error, in order, with attempts reset and a mark; the rest stays",
		Settings: []Setting{
			count("letters", 12, 8, 400, "dead letters, of two types and two errors in turns"),
			count("attempts", 2, 1, 5, "attempts before a message is a dead letter"),
		},
		Arms: []Arm{
			{Name: Before, Does: "a script that moves messages as they are", play: shovel},
			{Name: After, Does: "redrives with filters", play: redrives},
		},
		checks: func(s Settings) []Check {
			n := s.Int("letters")
			return append(
				expect(Before, "letters", n, "moved", n, "left", 0, "attempts_reset", false, "marked", 0),
				expect(After, "letters", n, "moved_by_number", 2, "left_after_number", n-2, "oldest_first", true,
					"moved_by_type", (n-2)/2, "all_of_the_type", true, "moved_by_error", atLeast(1), "all_of_the_error", true, "left_is_what_did_not_match", true,
					"attempts_reset", true, "marked", equalFigure("moved"), "order_kept", true, "lost", 0)...)
		},
	}
}

// Types and errors of the letters, in turns: a1 b1 a2 b2 a1 ...
var errKinds = [2]error{errors.New("the price list is wrong"), errors.New("the customer is unknown")}

func letterType(i int) string { return []string{"drill.price", "drill.customer"}[i%2] }

func letterError(i int) error { return errKinds[i/2%2] }

// fillDLQ makes dead letters, in their order, by a consumer whose handler fails, and which has ended then: what comes back waits in
// the queue.
func (s *stage) fillDLQ(ctx context.Context) (*line, []message.Message, error) {
	queue := work("drill.mixed", s.set.Int("attempts"), 50*time.Millisecond)
	queue.Ordering, queue.Prefetch, queue.Concurrency = topology.OrderingNone, 1, 1 // in the order of the queue
	numbers := map[string]int{}
	var messages []message.Message
	for i := range s.set.Int("letters") {
		m := newEvent(letterType(i), fmt.Sprintf("key-%d", i), map[string]int{"n": i})
		numbers[m.ID] = i
		messages = append(messages, m)
	}
	l, err := s.line(ctx, queue, func(_ context.Context, _ pgx.Tx, m message.Message) error {
		if m.Attempts < s.set.Int("attempts")-1 {
			return letterError(numbers[m.ID])
		}
		return consumer.Permanent(letterError(numbers[m.ID]))
	}, func(o *consumer.Options) { o.Concurrency = 1 })
	if err != nil {
		return nil, nil, err
	}
	for i, m := range messages { // one by one, so that they die in this order
		if err := errors.Join(s.enqueue(ctx, m), l.dead(ctx, i+1)); err != nil {
			return nil, nil, err
		}
	}
	if err := l.consumer.stop(); err != nil {
		return nil, nil, err
	}
	dead, err := ready(ctx, l.conn, l.queue.DLQ())
	s.observe("letters", dead)
	return l, messages, err
}

// take reads n messages that wait in the queue.
func (l *line) take(ctx context.Context, n int) ([]*amqp.Delivery, error) {
	subscription, err := l.conn.Consume(ctx, rabbit.ConsumeOptions{Queue: l.queue.Name, Prefetch: max(n, 1)})
	if err != nil {
		return nil, err
	}
	limit := time.NewTimer(bareLimit)
	defer limit.Stop()
	var all []*amqp.Delivery
	for len(all) < n {
		select {
		case <-ctx.Done():
			return all, context.Cause(ctx)
		case <-limit.C:
			return all, fmt.Errorf("%d of %d messages came", len(all), n)
		case d, open := <-subscription.Deliveries():
			if !open {
				return all, subscription.Err()
			}
			all = append(all, d)
			if err := subscription.Ack(d.DeliveryTag, false); err != nil {
				return all, err
			}
		}
	}
	return all, subscription.Close(ctx)
}

// shovel gets each letter and publishes it again as it is.
func shovel(ctx context.Context, s *stage) error {
	l, messages, err := s.fillDLQ(ctx)
	if err != nil {
		return err
	}
	publisher, err := l.conn.Publisher(ctx, rabbit.PublisherOptions{})
	if err != nil {
		return err
	}
	channel, err := l.conn.Channel(ctx)
	if err != nil {
		return err
	}
	moved := 0
	for range messages {
		var d amqp.Delivery
		var there bool
		err := channel.Do(ctx, "get letter", func(ch *amqp.Channel) (err error) {
			d, there, err = ch.Get(l.queue.DLQ(), true)
			return err
		})
		if err != nil {
			return err
		}
		if !there {
			break
		}
		headers := d.Headers
		for name := range headers {
			if message.BrokerOwned(name) {
				delete(headers, name)
			}
		}
		copied := amqp.Publishing{Headers: headers, MessageId: d.MessageId, Type: d.Type, DeliveryMode: 2, ContentType: d.ContentType, Body: d.Body}
		if err := publisher.PublishConfirmed(ctx, "", l.queue.Name, copied); err != nil {
			return err
		}
		moved++
	}
	left, err := ready(ctx, l.conn, l.queue.DLQ())
	if err != nil {
		return err
	}
	s.observe("moved", moved)
	s.observe("left", left)
	all, err := l.take(ctx, moved)
	s.observeRedriven(all)
	return err
}

// observeRedriven looks at the deliveries after a redrive.
func (s *stage) observeRedriven(all []*amqp.Delivery) {
	reset, marked := true, 0
	for _, d := range all {
		reset = reset && message.Attempts(d.Headers) == 0
		if at, err := time.Parse(time.RFC3339, message.Text(d.Headers, message.HeaderReprocess)); err == nil && !at.IsZero() {
			marked++
		}
	}
	s.observe("attempts_reset", reset && len(all) > 0)
	s.observe("marked", marked)
}

// redrives moves two by number, then those of a type, then those of an error, and looks at what is left after each.
func redrives(ctx context.Context, s *stage) error {
	l, messages, err := s.fillDLQ(ctx)
	if err != nil {
		return err
	}
	letters, err := s.letters(ctx)
	if err != nil {
		return err
	}
	move := func(limit int, filter deadletter.Filter) (moved []*amqp.Delivery, left []deadletter.Letter, err error) {
		result, err := letters.Redrive(ctx, deadletter.RedriveRequest{Common: deadletter.Common{
			Queue: l.queue.Name, Filter: filter, Max: limit, Who: operator, Reason: "the cause is mended",
		}})
		if err != nil {
			return nil, nil, err
		}
		if moved, err = l.take(ctx, result.Done); err != nil {
			return nil, nil, err
		}
		left, err = s.deadLetters(ctx, l.queue.Name)
		return moved, left, err
	}
	byNumber, left, err := move(2, deadletter.Filter{})
	if err != nil {
		return err
	}
	s.observe("moved_by_number", len(byNumber))
	s.observe("left_after_number", len(left))
	s.observe("oldest_first", len(byNumber) == 2 && byNumber[0].MessageId == messages[0].ID && byNumber[1].MessageId == messages[1].ID)
	byType, _, err := move(0, deadletter.Filter{Type: letterType(0)})
	if err != nil {
		return err
	}
	s.observe("moved_by_type", len(byType))
	s.observe("all_of_the_type", !slices.ContainsFunc(byType, func(d *amqp.Delivery) bool { return d.Type != letterType(0) }))
	byError, left, err := move(0, deadletter.Filter{ErrorContains: "customer is unknown"})
	if err != nil {
		return err
	}
	number := func(id string) int {
		return slices.IndexFunc(messages, func(m message.Message) bool { return m.ID == id })
	}
	s.observe("moved_by_error", len(byError))
	s.observe("all_of_the_error", !slices.ContainsFunc(byError, func(d *amqp.Delivery) bool { return !errors.Is(letterError(number(d.MessageId)), errKinds[1]) }))
	s.observe("left_is_what_did_not_match", !slices.ContainsFunc(left, func(l deadletter.Letter) bool {
		return l.Type == letterType(0) || errors.Is(letterError(number(l.ID)), errKinds[1])
	}))
	all := slices.Concat(byNumber, byType, byError)
	s.observe("moved", len(all))
	s.observe("order_kept", inOrder(byNumber, number) && inOrder(byType, number) && inOrder(byError, number))
	s.observeRedriven(all)
	s.observe("lost", len(messages)-len(all)-len(left))
	return nil
}

func inOrder(all []*amqp.Delivery, number func(id string) int) bool {
	return slices.IsSortedFunc(all, func(a, b *amqp.Delivery) int { return number(a.MessageId) - number(b.MessageId) })
}
