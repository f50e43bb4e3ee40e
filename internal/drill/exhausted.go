package drill

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

func retriesExhausted() Drill {
	return Drill{
		Name: "retries-exhausted", Section: SectionQueues,
		Proves: "what fails for too long becomes a dead letter with the whole record of its failures",
		Settings: []Setting{
			count("attempts", 5, 2, 10, "attempts, the first included"),
			length("delay", 200*time.Millisecond, 50*time.Millisecond, 10*time.Second, "delay of the retry queue (30s by default)"),
			count("patience", 50, 11, 10_000, "calls after which the endless retry is ended by the drill (before)"),
		},
		Arms: []Arm{
			{Name: Before, Does: "failures go back to the queue at once, for ever", play: exhaustedNaive},
			{Name: After, Does: "a bound of attempts and a dead-letter queue", play: exhausted},
		},
		checks: func(s Settings) []Check {
			n := s.Int("attempts")
			return append(
				expect(Before, "attempts", moreThan(n)),
				expect(After, "attempts", n, "visits_to_retry_queue", n-1, "dead_letters", 1, "record_attempts", n, "record_log", n, "record_class", string(resilience.ClassTransient),
					"record_message", containing("503"), "record_whole", true, "logged", 1)...)
		},
	}
}

// unavailable is a service that always answers 503.
func (s *stage) unavailable(ctx context.Context) (call func(ctx context.Context) error, asked *meter, err error) {
	asked = &meter{}
	url, err := s.serve(ctx, asked.wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })))
	client := s.naive()
	return func(ctx context.Context) error {
		a, err := client.post(ctx, url, "")
		if err == nil && a.status >= http.StatusBadRequest {
			err = &resilience.StatusError{Status: a.status, Err: errors.New("the service answers http status 503")}
		}
		return err
	}, asked, err
}

func exhaustedNaive(ctx context.Context, s *stage) error {
	l, err := s.bare(ctx)
	if err != nil {
		return err
	}
	call, asked, err := s.unavailable(ctx)
	if err != nil {
		return err
	}
	if err := s.enqueue(ctx, newEvent("drill.order", "order-1", nil)); err != nil {
		return err
	}
	err = l.handle(ctx, true, func(ctx context.Context, _ message.Message) error { return call(ctx) },
		func() bool { return asked.calls() >= s.set.Int("patience") })
	s.observe("attempts", asked.calls())
	return err
}

func exhausted(ctx context.Context, s *stage) error {
	call, asked, err := s.unavailable(ctx)
	if err != nil {
		return err
	}
	l, err := s.line(ctx, work("drill.orders", s.set.Int("attempts"), s.set.Duration("delay")),
		func(ctx context.Context, _ pgx.Tx, _ message.Message) error { return call(ctx) }, nil)
	if err != nil {
		return err
	}
	if err := s.enqueue(ctx, newEvent("drill.order", "order-1", nil)); err != nil {
		return err
	}
	if err := l.dead(ctx, 1); err != nil {
		return err
	}
	letters, err := s.deadLetters(ctx, l.queue.Name)
	if err != nil {
		return err
	}
	s.observe("attempts", asked.calls())
	s.observe("visits_to_retry_queue", l.retried())
	s.observe("dead_letters", len(letters))
	if len(letters) > 0 && letters[0].Failure != nil {
		s.observeRecord(letters[0])
	}
	s.observe("logged", len(s.logs.find("retries exhausted, sending to DLQ")))
	return nil
}

func (s *stage) observeRecord(letter deadletter.Letter) {
	f := letter.Failure
	s.observe("record_attempts", letter.Attempts)
	s.observe("record_class", f.Class)
	s.observe("record_message", f.Message)
	s.observe("record_log", len(f.Log))
	whole := f.Type != "" && f.Fingerprint != "" && f.Host != "" && f.Version != "" && !f.FirstFailedAt.IsZero() && f.LastFailedAt.After(f.FirstFailedAt.Time) &&
		letter.OriginQueue != "" && letter.Exchange == exchange && letter.RoutingKey != ""
	s.observe("record_whole", whole)
	rows := [][]string{}
	for _, a := range f.Log {
		rows = append(rows, []string{valueText(a.Number), a.Class, a.Message, a.Host})
	}
	s.table("the record's log of attempts", []string{"ATTEMPT", "CLASS", "MESSAGE", "HOST"}, rows)
}

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
