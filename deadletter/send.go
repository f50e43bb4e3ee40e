package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
)

// recordReturned writes entries and what belongs to them in one transaction, also when ctx has ended.
func (d *DeadLetters) recordReturned(ctx context.Context, op audit.Operation, entries []audit.Entry, also func(pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
	defer cancel()
	err := pgx.BeginFunc(ctx, d.opts.Pool, func(tx pgx.Tx) error {
		if err := audit.Write(ctx, tx, d.opts.Schema, op, entries...); err != nil {
			return err
		}
		return also(tx)
	})
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

// returned brings messages into dead-letter queues: the record of the start, feed with a sender, the record of the end.
func (d *DeadLetters) returned(
	ctx context.Context, op audit.Operation, found int, done func([]any) error, feed func(context.Context, *sender) error,
) (err error) {
	start := audit.Entry{Outcome: "started", Detail: map[string]any{"found": found}}
	if err := d.recordReturned(ctx, op, []audit.Entry{start}, func(pgx.Tx) error { return nil }); err != nil {
		return err
	}
	count := 0
	counted := func(tokens []any) error { count += len(tokens); return done(tokens) }
	err = d.sending(ctx, counted, feed)
	end := audit.Entry{Outcome: "finished", Detail: map[string]any{"done": count}}
	if err != nil {
		end.Outcome, end.Detail["error"] = "stopped", err.Error()
	}
	return errors.Join(err, d.recordReturned(ctx, op, []audit.Entry{end}, func(pgx.Tx) error { return nil }))
}

// sending runs feed with a sender on a connection of its own, and waits for the answers that are due.
func (d *DeadLetters) sending(ctx context.Context, done func([]any) error, feed func(context.Context, *sender) error) (err error) {
	conn, err := d.connect(ctx, "dlq-return")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	publisher, err := conn.Publisher(ctx, rabbit.PublisherOptions{Window: d.opts.Window})
	if err != nil {
		return err
	}
	s := &sender{publisher: publisher, done: done, timeout: d.opts.ConfirmTimeout}
	err = feed(ctx, s)
	return errors.Join(err, s.finish(ctx))
}

// sender publishes in order, mandatory and confirmed, within the publisher's window. For one goroutine.
type sender struct {
	publisher *rabbit.Publisher
	done      func([]any) error // tokens of what is confirmed
	timeout   time.Duration
	failed    error
}

// send hands a message to the broker. It fails when an earlier one has failed.
func (s *sender) send(ctx context.Context, queue string, p amqp.Publishing, token any) error {
	for {
		if s.failed != nil {
			return s.failed
		}
		err := s.publisher.TryPublish("", queue, p, token)
		if !errors.Is(err, rabbit.ErrWindowFull) {
			if err != nil {
				return fmt.Errorf("message %s: %w", message.Clip(orNone(p.MessageId), 64), err)
			}
			return s.collect()
		}
		if err := s.await(ctx); err != nil {
			return err
		}
	}
}

func (s *sender) await(ctx context.Context) error {
	limit := time.NewTimer(s.timeout)
	defer limit.Stop()
	select {
	case <-s.publisher.Ready():
	case <-s.publisher.Done():
	case <-limit.C:
		return fmt.Errorf("%w: %s", ErrNoConfirm, s.timeout)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return s.collect()
}

func (s *sender) collect() error {
	var confirmed []any
	for _, r := range s.publisher.Collect(nil) {
		switch {
		case r.Outcome == rabbit.Confirmed:
			confirmed = append(confirmed, r.Token)
		case s.failed == nil && r.Outcome == rabbit.Returned:
			s.failed = fmt.Errorf("%w: %w", ErrNoDLQ, r.Err)
		case s.failed == nil:
			s.failed = r.Err
		}
	}
	if len(confirmed) > 0 {
		if err := s.done(confirmed); err != nil && s.failed == nil {
			s.failed = err
		}
	}
	return s.failed
}

// finish waits for the answers that are due, also when ctx has ended: what is confirmed has to be recorded.
func (s *sender) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	defer cancel()
	for {
		err := s.collect()
		if n, _ := s.publisher.InFlight(); n == 0 {
			return err
		}
		select {
		case <-s.publisher.Ready():
		case <-s.publisher.Done():
			return errors.Join(s.collect(), s.publisher.Err())
		case <-ctx.Done():
			return errors.Join(err, ErrNoConfirm)
		}
	}
}
