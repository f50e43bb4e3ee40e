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
	// Args of basic.consume; default none.
	Args amqp.Table
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
	deliveries chan amqp.Delivery
	done       chan struct{}
	err        error // written before done is closed

	mu    sync.Mutex // one settlement at a time
	tags  outstanding
	ended bool
}

// source is what the client library feeds a subscription from.
type source struct {
	deliveries <-chan amqp.Delivery
	cancels    <-chan string
	closes     <-chan *amqp.Error
}

// Consume subscribes with manual acknowledgement.
func (c *Conn) Consume(ctx context.Context, opts ConsumeOptions) (*Subscription, error) {
	opts.Prefetch = cmp.Or(opts.Prefetch, 10)
	opts.Tag = cmp.Or(opts.Tag, c.opts.connectionName())
	if opts.Queue == "" || opts.Prefetch < 1 || opts.Prefetch > 65535 || len(opts.Tag) > shortStringMax {
		return nil, fmt.Errorf("rabbit: consume from queue %q: a queue, a prefetch from 1 to 65535 (is %d) and a tag of at most 255 bytes are needed", opts.Queue, opts.Prefetch)
	}
	channel, err := c.Channel(ctx)
	if err != nil {
		return nil, err
	}
	from, err := subscribe(ctx, channel, opts)
	if err != nil {
		return nil, errors.Join(err, channel.Close(context.WithoutCancel(ctx)))
	}
	s := &Subscription{channel: channel, tag: opts.Tag, deliveries: make(chan amqp.Delivery), done: make(chan struct{})}
	go s.run(from) //nolint:contextcheck // the subscription outlives the call that made it
	return s, nil
}

func subscribe(ctx context.Context, channel *Channel, opts ConsumeOptions) (from source, err error) {
	from.cancels = channel.amqp.NotifyCancel(make(chan string, 1))
	from.closes = channel.amqp.NotifyClose(make(chan *amqp.Error, 1))
	err = channel.Do(ctx, fmt.Sprintf("consume from queue %q", opts.Queue), func(ch *amqp.Channel) (err error) {
		if err = ch.Qos(opts.Prefetch, 0, false); err != nil {
			return err
		}
		from.deliveries, err = ch.Consume(opts.Queue, opts.Tag, false, false, false, false, opts.Args)
		return err
	})
	return from, err
}

// run hands deliveries on until the subscription ends. After Cancel there are none any more, but settling goes on.
func (s *Subscription) run(from source) {
	defer telemetry.FatalOnPanic(s.channel.conn.opts.Logger)
	end := s.forward(from)
	if end != nil {
		s.end(end) // before the deliveries close, so that who sees them closed finds Err set
		close(s.deliveries)
		return
	}
	close(s.deliveries)
	select {
	case _, told := <-from.cancels:
		s.end(s.cancelled(from, told))
	case reason := <-from.closes:
		s.end(s.channel.endReason(reason))
	}
}

// forward returns why the subscription ended, nil when Cancel ended the deliveries.
func (s *Subscription) forward(from source) error {
	for {
		select {
		case d, ok := <-from.deliveries:
			if !ok {
				return s.told(from)
			}
			s.note(d.DeliveryTag)
			d.Acknowledger = s
			select {
			case s.deliveries <- d:
			case _, told := <-from.cancels:
				return s.cancelled(from, told)
			case reason := <-from.closes:
				return s.channel.endReason(reason)
			}
		case _, told := <-from.cancels:
			return s.cancelled(from, told)
		case reason := <-from.closes:
			return s.channel.endReason(reason)
		}
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

// end drops all acknowledgements from here on. After a cancel by the broker it closes the channel: what is unacknowledged goes back to
// the queue, and what the library still holds is dropped.
func (s *Subscription) end(reason error) {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	if errors.Is(reason, ErrServerCancelled) {
		_ = s.channel.Close(context.Background()) // its failure is the end of the connection, which others see
	}
	s.err = reason
	close(s.done)
}

// Deliveries are closed when the subscription has ended, or after Cancel when all of them were received. Err tells which.
// Nothing is buffered beyond the prefetch.
func (s *Subscription) Deliveries() <-chan amqp.Delivery { return s.deliveries }

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
