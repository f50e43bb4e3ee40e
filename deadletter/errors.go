package deadletter

import (
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/message"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// Reasons why an operation cannot begin or go on.
var (
	// ErrNoDLQ: the dead-letter queue does not exist.
	ErrNoDLQ = errors.New("there is no such dead-letter queue")
	// ErrNoQueue: the work queue, which a redrive fills, does not exist.
	ErrNoQueue = errors.New("there is no such work queue")
	// ErrRefusedByQueue: the work queue did not take a letter, most often because it is full.
	ErrRefusedByQueue = errors.New("the work queue did not take the message")
	// ErrUnsafe: the broker would drop or reorder letters for being looked at.
	ErrUnsafe = errors.New("looking would not be safe")
	// ErrNoConfirm: the broker did not confirm in time.
	ErrNoConfirm = errors.New("no confirm from the broker in time")
	// ErrTooManyHeld: more letters are passed over than the broker gives back in order.
	ErrTooManyHeld = errors.New("too many messages are passed over at once")
	// ErrNothingComes: the broker has messages and delivers none.
	ErrNothingComes = errors.New("the broker delivers nothing")
	// ErrTakenByOthers: letters of the start did not come, and are not in the queue: somebody else took or holds them.
	ErrTakenByOthers = errors.New("somebody else took or holds letters; look again")
	// ErrUndecodable: a letter cannot be received at all, and keeps from receiving what is behind it.
	ErrUndecodable = errors.New("a message cannot be received")
	// ErrBadRequest: the request itself is wrong.
	ErrBadRequest = errors.New("bad request")
)

// unreadable says what to do about a letter with which every connection ends.
func unreadable(err error, dlq string) error {
	if !errors.Is(err, rabbit.ErrUndecodable) || errors.Is(err, ErrUndecodable) {
		return err
	}
	return fmt.Errorf("%w: %w; what is before it in %s can be shown with --limit and redriven; once it is the oldest, take it out on "+
		"RabbitMQ's page of that queue: Get messages, Ack mode \"Automatic ack\"; see docs/runbooks/dlq.md", ErrUndecodable, err, dlq)
}

// missing makes a 404 for a queue one of this package's errors, with what to do.
func missing(err error, queue string, kind error) error {
	if rabbit.Code(err) != amqp.NotFound {
		return err
	}
	hint := "check the name with `surefoot dlq ls --all`"
	if errors.Is(kind, ErrNoQueue) {
		hint = "create it with `surefoot topology apply`; nothing was moved"
	}
	return fmt.Errorf("%w: %s; %s", kind, message.Clip(queue, message.MaxShortString), hint)
}
