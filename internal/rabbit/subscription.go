package rabbit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// ErrServerCancelled says that the broker cancelled the subscription: queue deleted, its leader lost, or consumer timeout (4.3).
// The connection goes on; subscribe again.
var ErrServerCancelled = errors.New("rabbit: the broker cancelled the subscription")

// ErrStale says that an acknowledgement was dropped, for its subscription has ended. The message may be delivered again.
var ErrStale = errors.New("rabbit: acknowledgement dropped: its subscription has ended")

// ErrNotOutstanding says that an acknowledgement was dropped, for its tag was never delivered here or is settled already. The
// broker would have closed the channel.
var ErrNotOutstanding = errors.New("rabbit: acknowledgement dropped: its delivery is not outstanding")

// ConsumeOptions say what to consume.
type ConsumeOptions struct {
	// Queue to consume from; required.
	Queue string
	// Tag names the consumer on the management page; default the connection's name.
	Tag string
	// Prefetch is the most unacknowledged deliveries, 1 to 65535; default 10.
	Prefetch int
}

func (o ConsumeOptions) checked(c *Conn) (ConsumeOptions, error) {
	o.Prefetch = cmp.Or(o.Prefetch, 10)
	o.Tag = cmp.Or(o.Tag, c.opts.connectionName())
	if o.Queue == "" || o.Prefetch < 1 || o.Prefetch > 65535 || len(o.Tag) > shortStringMax {
		return o, fmt.Errorf("rabbit: consume from queue %q: a queue, a prefetch from 1 to 65535 (is %d) and a tag of at most 255 bytes are needed", o.Queue, o.Prefetch)
	}
	return o, nil
}

// Subscription is one consumer on a channel of its own: one generation. It ends with its connection, its channel, a cancel by the
// broker, or Close, and never comes back; subscribe anew. Safe for concurrent use.
//
//	consuming --Cancel--> cancelled (what was delivered can still be settled) --Close--> ended
//	    '------ server cancel, channel or connection closed, Close ----------------> ended (acknowledgements are dropped)
//
// The deliveries' own Ack, Nack and Reject go through the subscription too.
type Subscription struct {
	channel    *Channel
	tag        string
	deliveries chan *amqp.Delivery // as many as the prefetch fit, and more
	done       chan struct{}
	err        error // written before done is closed

	mu      sync.Mutex // one settlement at a time
	encoder encoder
	tags    outstanding
	closed  bool // deliveries are
	ended   bool
}

// source is what the client library tells about a subscription.
type source struct {
	deliveries <-chan amqp.Delivery // empty, see stream; closed when no more come
	cancels    <-chan string
	closes     <-chan *amqp.Error
}

// Consume subscribes with manual acknowledgement.
func (c *Conn) Consume(ctx context.Context, opts ConsumeOptions) (*Subscription, error) {
	opts, err := opts.checked(c)
	if err != nil {
		return nil, err
	}
	channel, err := c.Channel(ctx)
	if err != nil {
		return nil, err
	}
	s := &Subscription{channel: channel, tag: opts.Tag, deliveries: make(chan *amqp.Delivery, opts.Prefetch+spare), done: make(chan struct{})}
	from := source{
		cancels: channel.amqp.NotifyCancel(make(chan string, 1)),
		closes:  channel.amqp.NotifyClose(make(chan *amqp.Error, 1)),
	}
	if from.deliveries, err = channel.consume(ctx, opts, s.deliver, func() int { return len(s.deliveries) }); err != nil {
		return nil, errors.Join(err, channel.Close(context.WithoutCancel(ctx)))
	}
	go s.run(from) //nolint:contextcheck // the subscription outlives the call that made it
	return s, nil
}

// deliver hands on what has come. There is room for all that may be unsettled.
func (s *Subscription) deliver(d *amqp.Delivery) error {
	d.Acknowledger = s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.tags.high = max(s.tags.high, d.DeliveryTag)
	return offer(s.deliveries, d)
}

// run waits for the end. After Cancel there are no deliveries any more, but settling goes on.
func (s *Subscription) run(from source) {
	defer telemetry.FatalOnPanic(s.channel.conn.opts.Logger)
	end := s.watch(from)
	if end != nil {
		s.end(end)
		return
	}
	s.mu.Lock()
	s.closed = true
	close(s.deliveries)
	s.mu.Unlock()
	select {
	case _, told := <-from.cancels:
		s.end(s.cancelled(from, told))
	case reason := <-from.closes:
		s.end(s.channel.endReason(reason))
	}
}

// watch returns why the subscription ended, nil when Cancel ended the deliveries.
func (s *Subscription) watch(from source) error {
	select {
	case <-from.deliveries:
		return s.told(from)
	case _, told := <-from.cancels:
		return s.cancelled(from, told)
	case reason := <-from.closes:
		return s.channel.endReason(reason)
	}
}

// cancelled tells a cancel by the broker from the end of the channel, with which the library closes the notices too.
func (s *Subscription) cancelled(from source, told bool) error {
	if told {
		return ErrServerCancelled
	}
	return s.channel.endReason(<-from.closes)
}

// told returns the end that the library has told. It tells a cancel by the broker and a close before it closes
// the deliveries, so without either they were ended by Cancel.
func (s *Subscription) told(from source) error {
	select {
	case _, told := <-from.cancels:
		return s.cancelled(from, told)
	case reason := <-from.closes:
		return s.channel.endReason(reason)
	default:
		return nil
	}
}

// end drops all acknowledgements from here on, and what nobody has received. After a cancel by the broker it closes the channel: what is
// unacknowledged goes back to the queue.
func (s *Subscription) end(reason error) {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	if errors.Is(reason, ErrServerCancelled) {
		_ = s.channel.Close(context.Background()) // its failure is the end of the connection, which others see
	}
	s.err = reason
	close(s.done) // before the deliveries close, so that who sees them closed finds Err set
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.deliveries)
	}
	for range s.deliveries {
	}
}

// Deliveries are closed when the subscription has ended, or after Cancel when all of them were received. Err tells which.
// Nothing is buffered beyond the prefetch. What has come when it ends is dropped, for it belongs to the broker again.
func (s *Subscription) Deliveries() <-chan *amqp.Delivery { return s.deliveries }

// Done is closed when the subscription has ended.
func (s *Subscription) Done() <-chan struct{} { return s.done }

// Err says why the subscription ended: ErrServerCancelled; ErrClosed after Close; an error wrapping *amqp.Error when the broker closed the channel or the connection;
// one wrapping ErrLost when the connection went away. Nil until Done.
func (s *Subscription) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// Tag is the consumer's name.
func (s *Subscription) Tag() string { return s.tag }

// Cancel stops new deliveries, within ctx and RPCTimeout. Those that the broker has sent already still come; receive until Deliveries is
// closed. All can still be settled until Close.
func (s *Subscription) Cancel(ctx context.Context) error {
	if err := s.Err(); err != nil {
		return err
	}
	return s.channel.Do(ctx, "cancel subscription", func(ch *amqp.Channel) error { return ch.Cancel(s.tag, false) })
}

// Close ends the subscription, within ctx and RPCTimeout: its unsettled messages go back to the queue. It may be called more than once.
func (s *Subscription) Close(ctx context.Context) error {
	err := s.channel.Close(ctx)
	<-s.done
	return err
}
