package drill

import (
	"context"
	"errors"
	"time"

	"github.com/surefoot-mq/surefoot/message"
)

func duplicateDelivery() Drill {
	return Drill{
		Name: "duplicate-delivery", Section: SectionQueues,
		Proves: "an event that is delivered twice has one effect, and the second delivery is acknowledged",
		Settings: []Setting{
			count("copies", 2, 2, 20, "deliveries of the same event"),
		},
		Arms: []Arm{
			{Name: Before, Does: "no inbox", play: duplicatesNaive},
			{Name: After, Does: "inbox and effect in one transaction", play: duplicates},
		},
		checks: func(s Settings) []Check {
			n := s.Int("copies")
			return append(
				expect(Before, "deliveries", n, "effects", n, "left_in_queue", 0),
				expect(After, "deliveries", n, "effects", 1, "acknowledged_as_duplicate", n-1, "left_in_queue", 0, "dead_letters", 0)...)
		},
	}
}

// copies are several messages of one id.
func copies(n int) []message.Message {
	one := newEvent("drill.order", "order-1", nil)
	all := make([]message.Message, n)
	for i := range all {
		all[i] = one
	}
	return all
}

func duplicatesNaive(ctx context.Context, s *stage) error {
	l, err := s.bare(ctx)
	if err != nil {
		return err
	}
	n := s.set.Int("copies")
	if err := s.enqueue(ctx, copies(n)...); err != nil {
		return err
	}
	err = l.handle(ctx, true, func(ctx context.Context, m message.Message) error { return s.exec(ctx, effectsAdd, m.ID) },
		func() bool { return len(l.seen.of("")) >= n })
	if err != nil {
		return err
	}
	s.observe("deliveries", len(l.seen.of("")))
	left, err := ready(ctx, l.conn, l.queue.Name)
	s.observe("left_in_queue", left)
	return errors.Join(err, s.observeCount(ctx, "effects", effectsCount))
}

func duplicates(ctx context.Context, s *stage) error {
	l, err := s.line(ctx, work("drill.orders", 5, time.Second), s.effect, nil)
	if err != nil {
		return err
	}
	n := s.set.Int("copies")
	if err := s.enqueue(ctx, copies(n)...); err != nil {
		return err
	}
	handled := func() int { return int(l.consumer.value("surefoot_consumer_handled_total")) }
	err = eventually(ctx, 20*time.Second, "all copies to be acknowledged", func(context.Context) (bool, error) { return handled() >= n, nil })
	if err != nil {
		return err
	}
	s.observe("deliveries", handled())
	s.observe("acknowledged_as_duplicate", int(l.consumer.value("surefoot_consumer_handled_total", "result", "duplicate")))
	left, err := ready(ctx, l.conn, l.queue.Name)
	if err != nil {
		return err
	}
	dead, err := ready(ctx, l.conn, l.queue.DLQ())
	s.observe("left_in_queue", left)
	s.observe("dead_letters", dead)
	return errors.Join(err, s.observeCount(ctx, "effects", effectsCount))
}
