package rabbit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ErrRPCTimeout says that the broker did not answer in time. The connection was aborted.
var ErrRPCTimeout = errors.New("rabbit: no answer from the broker in time")

// Channel is a channel for requests that wait for an answer: declare, bind, get, delete. One request at a time, each bounded.
// Safe for concurrent use. Publishing and consuming have their own types.
type Channel struct {
	conn *Conn
	amqp *amqp.Channel
	shut atomic.Bool   // Close was called
	turn chan struct{} // holds one token: two requests at once on a channel would take each other's answers
}

// Channel opens a channel.
func (c *Conn) Channel(ctx context.Context) (*Channel, error) {
	var ch *amqp.Channel
	err := c.rpc(ctx, "open channel", func() (err error) {
		ch, err = c.amqp.Channel()
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Channel{conn: c, amqp: ch, turn: make(chan struct{}, 1)}, nil
}

// Do runs one request, named by op for its error, within ctx and RPCTimeout. When neither the answer nor an error comes in time the whole connection
// is aborted: the answer could still arrive and be taken for that of the next request. So cancelling ctx during a request costs the connection;
// pass one that ends only when that is meant. An error of the broker (*amqp.Error, such as 404 or 406) closes the channel.
func (ch *Channel) Do(ctx context.Context, op string, request func(*amqp.Channel) error) error {
	select {
	case ch.turn <- struct{}{}:
		defer func() { <-ch.turn }()
	case <-ctx.Done():
		return fmt.Errorf("rabbit: %s: %w", op, ctx.Err())
	}
	return ch.conn.rpc(ctx, op, func() error { return request(ch.amqp) })
}

// Close closes the channel. Unacknowledged deliveries go back to their queues. Closing a closed channel does nothing.
func (ch *Channel) Close(ctx context.Context) error {
	ch.shut.Store(true)
	if ch.amqp.IsClosed() {
		return nil
	}
	return ch.Do(ctx, "close channel", (*amqp.Channel).Close)
}

// endReason says why the channel is over, given what the library told.
func (ch *Channel) endReason(reason *amqp.Error) error {
	if reason != nil && reason.Server {
		return fmt.Errorf("rabbit: channel closed by the broker: %w", reason)
	}
	if ch.shut.Load() {
		return ErrClosed
	}
	<-ch.conn.done // without a reason of the broker it is the end of the connection
	return ch.conn.Err()
}

// rpc runs request and aborts the connection when it has not ended in time; then request ends with an error.
func (c *Conn) rpc(ctx context.Context, op string, request func() error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("rabbit: %s: %w", op, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.opts.RPCTimeout, fmt.Errorf("%w (%s)", ErrRPCTimeout, c.opts.RPCTimeout))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		c.Abort(fmt.Errorf("rabbit: connection to %s aborted: %s: %w", c.address, op, context.Cause(ctx)))
	})
	err := request()
	if !stop() && err != nil {
		return fmt.Errorf("rabbit: %s: %w", op, context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("rabbit: %s: %w", op, c.explain(err))
	}
	return nil
}

// explain replaces the library's bare "not open" by the reason why the connection is not.
func (c *Conn) explain(err error) error {
	if !errors.Is(err, amqp.ErrClosed) {
		return err
	}
	if reason := c.Err(); reason != nil {
		return reason
	}
	return err
}

// Code returns the AMQP reply code inside err, such as 404, 405 or 406, and 0 when there is none.
func Code(err error) int {
	if reason, ok := errors.AsType[*amqp.Error](err); ok {
		return reason.Code
	}
	return 0
}

// Inspect returns the ready messages and the consumers of a queue, exactly, by a passive declare. A missing queue is an error with Code 404.
// Unacknowledged messages are not counted.
func (c *Conn) Inspect(ctx context.Context, queue string) (ready, consumers int, err error) {
	channel, err := c.Channel(ctx)
	if err != nil {
		return 0, 0, err
	}
	err = channel.Do(ctx, fmt.Sprintf("inspect queue %q", queue), func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		ready, consumers = q.Messages, q.Consumers
		return err
	})
	return ready, consumers, errors.Join(err, channel.Close(ctx))
}
