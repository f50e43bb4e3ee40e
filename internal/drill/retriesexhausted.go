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
