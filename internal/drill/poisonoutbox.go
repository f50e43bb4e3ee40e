package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
)

func poisonOutbox() Drill {
	return Drill{
		Name: "poison-outbox", Section: SectionOutbox,
		Proves: "a message that always fails is tried a few times with growing waits, parked with its error, and holds nobody up",
		Settings: []Setting{
			count("good", 5, 1, 50, "payments that succeed"),
			count("attempts", 3, 2, 3, "attempts of the one that always fails"),
			length("first_wait", 200*time.Millisecond, 50*time.Millisecond, 5*time.Second, "wait before its second attempt (30s by default)"),
			length("second_wait", 400*time.Millisecond, 50*time.Millisecond, 5*time.Second, "wait before its third one"),
			count("patience", 15, 8, 1000, "calls of the provider after which the endless retry is ended by the drill (before)"),
		},
		Arms: []Arm{
			{Name: Before, Does: "failures go back to the queue at once, for ever", play: poisonNaive},
			{Name: After, Does: "a retry ladder and a bound", play: poison},
		},
		checks: func(s Settings) []Check {
			good, attempts := s.Int("good"), s.Int("attempts")
			first := s.Duration("first_wait")
			checks := append(
				expect(Before, "provider_calls", atLeast(s.Int("patience")), "left_pending", atLeast(1)),
				expect(After, "confirmed", good, "attempts", attempts, "provider_calls", good+attempts, "waited_first", between(first, first+time.Second),
					"parked", 1, "parked_attempts", attempts, "parked_error", containing("provider"), "left_pending", 0,
					"payment_of_the_poison", "PendingConfirmation")...)
			if attempts > 2 {
				second := s.Duration("second_wait")
				checks = append(checks, expect(After, "waited_second", between(second, second+time.Second))...)
			}
			return checks
		},
	}
}

const poisonKey = "payment-poison"

const (
	poisonTable  pg.SQL = `CREATE TABLE @schema@.drill_payments (key text PRIMARY KEY, status text NOT NULL DEFAULT 'PendingConfirmation')`
	poisonAdd    pg.SQL = `INSERT INTO @schema@.drill_payments (key) VALUES ($1)`
	poisonDone   pg.SQL = `UPDATE @schema@.drill_payments SET status = 'Confirmed' WHERE key = $1`
	poisonPaid   pg.SQL = `SELECT count(*) FROM @schema@.drill_payments WHERE status = 'Confirmed'`
	poisonStatus pg.SQL = `SELECT status FROM @schema@.drill_payments WHERE key = $1`
)

// bank confirms payments, but one.
type bank struct {
	meter
	url    string
	client naive

	mu     sync.Mutex
	poison []time.Time // when it was asked for the one
}

func (s *stage) bank(ctx context.Context) (b *bank, err error) {
	b = &bank{client: s.naive()}
	b.url, err = s.serve(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer b.begin()()
		if r.Header.Get("Idempotency-Key") != poisonKey {
			w.WriteHeader(http.StatusOK)
			return
		}
		b.mu.Lock()
		b.poison = append(b.poison, time.Now())
		b.mu.Unlock()
		w.WriteHeader(http.StatusInternalServerError)
	}))
	return b, err
}

func (b *bank) asked() []time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]time.Time{}, b.poison...)
}

var errBank = errors.New("the provider does not confirm this payment")

func (b *bank) confirm(ctx context.Context, key string) error {
	a, err := b.client.post(ctx, b.url, key)
	if err == nil && a.status != http.StatusOK {
		err = errBank
	}
	return err
}

// poisoned makes the payments and enqueues their messages, the poison first.
func (s *stage) poisoned(ctx context.Context) error {
	if err := s.exec(ctx, poisonTable); err != nil {
		return err
	}
	keys := []string{poisonKey}
	for i := range s.set.Int("good") {
		keys = append(keys, fmt.Sprintf("payment-%d", i))
	}
	var messages []message.Message
	for _, key := range keys {
		if err := s.exec(ctx, poisonAdd, key); err != nil {
			return err
		}
		messages = append(messages, newEvent("drill.confirm", key, struct{}{}))
	}
	return s.enqueue(ctx, messages...)
}

// poisonNaive puts every failure back to where it came from.
func poisonNaive(ctx context.Context, s *stage) error {
	l, err := s.bare(ctx)
	if err != nil {
		return err
	}
	provider, err := s.bank(ctx)
	if err != nil {
		return err
	}
	if err := s.poisoned(ctx); err != nil {
		return err
	}
	err = l.handle(ctx, true, func(ctx context.Context, m message.Message) error {
		if err := provider.confirm(ctx, m.Key); err != nil {
			return err
		}
		return s.exec(ctx, poisonDone, m.Key)
	}, func() bool { return provider.calls() >= s.set.Int("patience") })
	if err != nil {
		return err
	}
	left, err := ready(ctx, l.conn, l.queue.Name)
	s.observe("attempts", len(provider.asked()))
	s.observe("provider_calls", provider.calls())
	s.observe("left_pending", left)
	return errors.Join(err, s.observeCount(ctx, "confirmed", poisonPaid))
}

// poison lets the consumer's ladder work.
func poison(ctx context.Context, s *stage) error {
	delays := []time.Duration{s.set.Duration("first_wait"), s.set.Duration("second_wait")}
	queue := work("drill.payments", s.set.Int("attempts"), delays...)
	if err := s.prepare(ctx, queue); err != nil {
		return err
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	provider, err := s.bank(ctx)
	if err != nil {
		return err
	}
	if err := s.poisoned(ctx); err != nil {
		return err
	}
	if _, err := s.relay(ctx, "relay", nil); err != nil {
		return err
	}
	_, err = s.consume(ctx, queue, func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if err := provider.confirm(ctx, m.Key); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, poisonDone.In(s.schema), m.Key)
		return err
	}, nil)
	if err != nil {
		return err
	}
	err = eventually(ctx, 30*time.Second, "the message to be parked, and the others to be handled", func(ctx context.Context) (bool, error) {
		parked, err := ready(ctx, conn, queue.DLQ())
		if err != nil || parked == 0 {
			return false, err
		}
		paid, err := s.count(ctx, poisonPaid)
		return paid == s.set.Int("good"), err
	})
	if err != nil {
		return err
	}
	asked := provider.asked()
	s.observe("attempts", len(asked))
	s.observe("provider_calls", provider.calls())
	for i, figure := range []string{"waited_first", "waited_second"} {
		if len(asked) > i+1 {
			s.observe(figure, asked[i+1].Sub(asked[i]))
		}
	}
	return s.observeParked(ctx, conn, queue.Name)
}

// observeParked looks at the dead letter, and for what is left elsewhere.
func (s *stage) observeParked(ctx context.Context, conn *rabbit.Conn, queue string) error {
	letters, err := s.deadLetters(ctx, queue)
	if err != nil {
		return err
	}
	s.observe("parked", len(letters))
	if len(letters) == 1 && letters[0].Failure != nil {
		s.observe("parked_attempts", letters[0].Attempts)
		s.observe("parked_error", letters[0].Failure.Message)
	}
	rows, err := s.count(ctx, waiting)
	if err != nil {
		return err
	}
	waits, err := ready(ctx, conn, queue)
	if err != nil {
		return err
	}
	s.observe("left_pending", rows+waits)
	var status string
	if err := s.pool.QueryRow(ctx, poisonStatus.In(s.schema), poisonKey).Scan(&status); err != nil {
		return err
	}
	s.observe("payment_of_the_poison", status)
	return s.observeCount(ctx, "confirmed", poisonPaid)
}
