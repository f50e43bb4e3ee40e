package rabbit

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// ErrRPCTimeout says that the broker did not answer in time. The connection was aborted.
var ErrRPCTimeout = errors.New("rabbit: no answer from the broker in time")

// Channel is a channel for requests that wait for an answer: declare, bind, get, delete. One request at a time, each bounded.
// Safe for concurrent use. Publishing and consuming have their own types.
type Channel struct {
	conn   *Conn
	amqp   *amqp.Channel
	number uint16
	shut   atomic.Bool   // Close was called
	turn   chan struct{} // holds one token: two requests at once on a channel would take each other's answers

	ack     sync.Mutex
	encoder encoder
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
	return &Channel{conn: c, amqp: ch, number: channelNumber(ch), turn: make(chan struct{}, 1)}, nil
}

// channelNumber is the one thing about its channels that the library keeps to itself.
func channelNumber(ch *amqp.Channel) uint16 {
	return uint16(reflect.ValueOf(ch).Elem().FieldByName("id").Uint())
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

// Consume subscribes with manual acknowledgement, for one who settles by [Channel.Ack]; see [Subscription] for more comfort. The deliveries are closed
// when the consumer is cancelled or the channel ends, and only after the library has told that; a channel has one consumer at a time.
func (ch *Channel) Consume(ctx context.Context, opts ConsumeOptions) (<-chan *amqp.Delivery, error) {
	opts, err := opts.checked(ch.conn)
	if err != nil {
		return nil, err
	}
	to := make(chan *amqp.Delivery, opts.Prefetch+spare)
	over, err := ch.consume(ctx, opts, func(d *amqp.Delivery) error { return offer(to, d) }, func() int { return len(to) })
	if err != nil {
		return nil, err
	}
	go func() {
		defer telemetry.FatalOnPanic(ch.conn.opts.Logger)
		defer close(to)
		for range over {
		}
	}()
	return to, nil
}

// consume has deliver called with each delivery, from the goroutine that reads, until the returned channel is closed.
func (ch *Channel) consume(ctx context.Context, opts ConsumeOptions, deliver func(*amqp.Delivery) error, waiting func() int) (over <-chan amqp.Delivery, err error) {
	s := &stream{deliver: deliver, waiting: waiting}
	if most := ch.conn.FrameMax(); most > 0 {
		s.most = most - frameOverhead
	}
	ch.conn.wire.divert(ch.number, s)
	err = ch.Do(ctx, fmt.Sprintf("consume from queue %q", opts.Queue), func(c *amqp.Channel) (err error) {
		if err = c.Qos(opts.Prefetch, 0, false); err != nil {
			return err
		}
		over, err = c.Consume(opts.Queue, opts.Tag, false, false, false, false, nil)
		return err
	})
	return over, err
}

// spare is room beyond the prefetch, should a queue that changes its leader count otherwise for a moment.
const spare = 1000

// offer hands a delivery on when there is room, as there is for as many as the prefetch and more.
func offer(to chan<- *amqp.Delivery, d *amqp.Delivery) error {
	select {
	case to <- d:
		return nil
	default:
		return errTooMany
	}
}

// Ack acknowledges a delivery. Nil means that it was written, not that it arrived.
func (ch *Channel) Ack(tag uint64) error {
	ch.ack.Lock()
	defer ch.ack.Unlock()
	return ch.settle(&ch.encoder, basicAck, tag, false, false)
}

func (ch *Channel) settle(e *encoder, how method, tag uint64, multiple, requeue bool) error {
	err := ch.conn.wire.publish(ch.number, e.settlement(ch.number, how, tag, multiple, requeue))
	if err != nil {
		return fmt.Errorf("rabbit: settle: %w", ch.conn.explain(err))
	}
	return nil
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
	c.wire.asking.Add(1)
	err := request()
	c.wire.asking.Add(-1)
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
	return ready, consumers, errors.Join(err, channel.Close(context.WithoutCancel(ctx)))
}
