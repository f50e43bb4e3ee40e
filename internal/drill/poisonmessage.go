package drill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/message"
)

func poisonMessage() Drill {
	return Drill{
		Name: "poison-message", Section: SectionQueues,
		Proves: "a message that nobody can read is a dead letter on the first try, is logged, and delays nobody",
		Settings: []Setting{
			count("neighbours", 10, 2, 100, "messages around it"),
			count("patience", 50, 10, 10_000, "deliveries after which the endless retry is ended by the drill (before)"),
		},
		Arms: []Arm{
			{Name: Before, Does: "failures go back to the queue at once", play: unreadableNaive},
			{Name: After, Does: "what cannot be read is no passing failure", play: unreadable},
		},
		checks: func(s Settings) []Check {
			n := s.Int("neighbours")
			return append(
				expect(Before, "attempts", moreThan(1), "neighbours_done", lessThan(n)),
				expect(After, "attempts", 1, "dead_letters", 1, "class", string(consumer.ClassMalformed), "logged_with_id_and_reason", 1,
					"neighbours_done", n, "neighbours_longest_wait", lessThan(5*time.Second), "visits_to_retry_queue", 0)...)
		},
	}
}

// placedOrder is what the type promises.
type placedOrder struct {
	OrderID string `json:"orderId"`
}

var errNoOrder = errors.New("orderId is missing")

// Validate refuses an order without an id.
func (o placedOrder) Validate() error {
	if o.OrderID == "" {
		return errNoOrder
	}
	return nil
}

const poisonedKey = "nobody"

// withPoison are neighbours with a message in their middle that has no order id.
func withPoison(n int) (all []message.Message, poisonID string) {
	for i := range n {
		if i == n/2 {
			poison := newEvent("drill.order", poisonedKey, map[string]int{"amount": 5})
			poisonID = poison.ID
			all = append(all, poison)
		}
		key := fmt.Sprintf("order-%d", i)
		all = append(all, newEvent("drill.order", key, placedOrder{key}))
	}
	return all, poisonID
}

func unreadableNaive(ctx context.Context, s *stage) error {
	l, err := s.bare(ctx)
	if err != nil {
		return err
	}
	messages, _ := withPoison(s.set.Int("neighbours"))
	if err := s.enqueue(ctx, messages...); err != nil {
		return err
	}
	err = l.handle(ctx, true, func(ctx context.Context, m message.Message) error {
		if _, err := consumer.Decode[placedOrder](m, false); err != nil {
			return err
		}
		return s.exec(ctx, effectsAdd, m.ID)
	}, func() bool { return len(l.seen.of("")) >= s.set.Int("patience") })
	s.observe("attempts", len(l.seen.of(poisonedKey)))
	return errors.Join(err, s.observeCount(ctx, "neighbours_done", effectsCount))
}

func unreadable(ctx context.Context, s *stage) error {
	mux := consumer.NewMux(consumer.MuxOptions{})
	consumer.On(mux, "drill.order", func(ctx context.Context, tx pgx.Tx, m message.Message, _ placedOrder) error {
		return s.effect(ctx, tx, m)
	})
	l, err := s.line(ctx, work("drill.orders", 5, time.Second), mux.Serve, nil)
	if err != nil {
		return err
	}
	messages, poisonID := withPoison(s.set.Int("neighbours"))
	began := time.Now()
	if err := s.enqueue(ctx, messages...); err != nil {
		return err
	}
	if err := errors.Join(l.dead(ctx, 1), l.effects(ctx, s.set.Int("neighbours"))); err != nil {
		return err
	}
	longest := time.Duration(0)
	for _, d := range l.seen.of("") {
		longest = max(longest, d.at.Sub(began))
	}
	letters, err := s.deadLetters(ctx, l.queue.Name)
	if err != nil {
		return err
	}
	s.observe("attempts", len(l.seen.of(poisonedKey)))
	s.observe("dead_letters", len(letters))
	if len(letters) > 0 {
		s.observe("class", letters[0].ErrorClass)
	}
	logged := 0
	for _, line := range s.logs.find("poison message, sending to DLQ") {
		if reason, _ := line["error"].(string); line["event_id"] == poisonID && reason != "" {
			logged++
		}
	}
	s.observe("logged_with_id_and_reason", logged)
	s.observe("visits_to_retry_queue", l.retried())
	s.observe("neighbours_longest_wait", longest)
	return s.observeCount(ctx, "neighbours_done", effectsCount)
}
