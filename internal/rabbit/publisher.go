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

// ErrWindowFull says that TryPublish found no place in the window, or the connection blocked.
var ErrWindowFull = errors.New("rabbit: publish window is full")

// PublisherOptions bound what is in flight.
type PublisherOptions struct {
	// Window is the most messages in flight or not yet collected; default 2000.
	Window int
	// WindowBytes is the most body bytes in flight; one message always passes; default 32 MiB.
	WindowBytes int
	// MaxMessageBytes is the largest body sent; default the broker's default: 16 MiB from 4.0, 128 MiB before.
	MaxMessageBytes int
}

// Publisher publishes on one channel in confirm mode, always mandatory, pipelined within a window.
//
// Publish hands a message to the broker and returns; the outcome comes later through Ready and Collect. Each accepted publish has exactly one
// outcome, and keeps its place in the window until that is collected, so memory is bounded whatever the caller does. Messages of one
// goroutine go out in its order. Outcomes come in any order: one slow queue does not hold back those of others.
//
// One goroutine may do it all:
//
//	for each message {
//		for p.TryPublish(...) == ErrWindowFull { wait for p.Ready() or ctx; handle p.Collect(buf) }
//	}
//
// or use PublishConfirmed, which waits for its own outcome; both can be mixed on one Publisher. Safe for concurrent use.
//
// It encodes publishes and reads confirms itself, see encoder and tap; the channel is the library's in all else. The library does not know that the
// channel confirms.
type Publisher struct {
	conn    *Conn
	ch      *amqp.Channel
	channel uint16
	limits  limits
	window  window

	send    sync.Mutex // one write at a time, in the order of the window
	encoder encoder
	over    chan struct{} // closed when the broker will say nothing more about the channel
	done    chan struct{}
}

// Publisher opens a channel for publishing. It ends with the connection, with its channel, or with Close.
func (c *Conn) Publisher(ctx context.Context, opts PublisherOptions) (*Publisher, error) {
	opts.Window = cmp.Or(opts.Window, 2000)
	opts.WindowBytes = cmp.Or(opts.WindowBytes, 32<<20)
	opts.MaxMessageBytes = cmp.Or(opts.MaxMessageBytes, c.version.MaxMessageBytes())
	if opts.Window < 0 || opts.WindowBytes < 0 || opts.MaxMessageBytes < 0 {
		return nil, errors.New("rabbit: publisher: Window, WindowBytes and MaxMessageBytes must not be negative")
	}
	var ch *amqp.Channel
	err := c.rpc(ctx, "open publishing channel", func() (err error) {
		ch, err = c.amqp.Channel()
		return err
	})
	if err != nil {
		return nil, err
	}
	p := &Publisher{
		conn: c, ch: ch, channel: channelNumber(ch),
		limits: limits{FrameMax: c.FrameMax(), MaxMessageBytes: opts.MaxMessageBytes, User: c.user},
		over:   make(chan struct{}), done: make(chan struct{}),
	}
	p.window.init(opts.Window, opts.WindowBytes, ch.NotifyReturn(make(chan amqp.Return, returnsRoom)))
	closes := ch.NotifyClose(make(chan *amqp.Error, 1))
	c.wire.listen(p.channel, p)
	go p.end(closes)
	if err := c.wire.publish(p.channel, p.encoder.confirmSelect(p.channel)); err != nil {
		<-p.done
		return nil, p.Err()
	}
	return p, nil
}

// What the tap tells.
func (p *Publisher) confirmed(tag uint64, multiple, done bool) {
	p.window.confirmed(tag, multiple, done)
}
func (p *Publisher) returned() { p.window.returned() }
func (p *Publisher) ended()    { close(p.over) }

// end gives what flies its outcome when the channel is over, after everything that the broker said about it before.
func (p *Publisher) end(closes <-chan *amqp.Error) {
	defer close(p.done)
	defer telemetry.FatalOnPanic(p.conn.opts.Logger)
	reason := <-closes
	select {
	case <-p.over:
	case <-p.conn.done:
	}
	p.window.finish(p.endReason(reason))
}

// endReason says why the channel is over. Without a reason of the broker it is the end of the connection, unless Close was called.
func (p *Publisher) endReason(reason *amqp.Error) error {
	if reason != nil && reason.Server {
		return fmt.Errorf("rabbit: publishing channel closed by the broker: %w", reason)
	}
	if closed := p.window.reason(); closed != nil {
		return closed
	}
	<-p.conn.done
	return p.conn.Err()
}

// Publish hands msg to the broker, waiting while the window is full or the connection blocked, until ctx ends. After nil exactly one Result with token
// follows; after an error nothing was sent and none follows: a *RefusedError (permanent), ctx's error, or the end of the publisher. The body must not be changed until then.
// Somebody must collect results meanwhile. A write that has begun is bounded by the connection's WriteTimeout, not by ctx.
func (p *Publisher) Publish(ctx context.Context, exchange, key string, msg amqp.Publishing, token any) error {
	return p.publish(ctx, exchange, key, &msg, flight{token: token})
}

// TryPublish is Publish without the wait: ErrWindowFull says to collect results, or to wait for the connection to be unblocked, first.
func (p *Publisher) TryPublish(exchange, key string, msg amqp.Publishing, token any) error {
	if blocked, _ := p.conn.Blocked(); blocked {
		return fmt.Errorf("%w: connection blocked by the broker", ErrWindowFull)
	}
	full, err := p.tryWrite(exchange, key, &msg, flight{token: token})
	if full != nil {
		return ErrWindowFull
	}
	return err
}

// PublishConfirmed publishes and waits for the outcome. It returns nil when the message is confirmed and routed; a *ReturnedError, a *RefusedError,
// or any other error when the outcome is unknown or, if ctx ended first or the publisher is over, nothing was sent; then publish again later.
// Many goroutines may call it at once and share the pipeline.
func (p *Publisher) PublishConfirmed(ctx context.Context, exchange, key string, msg amqp.Publishing) error {
	f := flight{outcome: make(chan Result, 1)}
	if err := p.publish(ctx, exchange, key, &msg, f); err != nil {
		return err
	}
	select {
	case r := <-f.outcome:
		return r.Err
	case <-ctx.Done():
		return fmt.Errorf("rabbit: outcome of the publish unknown, no confirm in time: %w", ctx.Err())
	}
}

func (p *Publisher) publish(ctx context.Context, exchange, key string, msg *amqp.Publishing, f flight) error {
	for {
		if err := p.conn.WaitUnblocked(ctx); err != nil {
			return err
		}
		full, err := p.tryWrite(exchange, key, msg, f)
		if full == nil {
			return err
		}
		select {
		case <-full:
		case <-ctx.Done():
			return fmt.Errorf("rabbit: publish window is full: %w", ctx.Err())
		}
	}
}

// tryWrite encodes a message, enters the window and writes, in this order: what is refused takes no place, and what cannot be written leaves it again.
func (p *Publisher) tryWrite(exchange, key string, msg *amqp.Publishing, f flight) (full <-chan struct{}, err error) {
	p.send.Lock()
	defer p.send.Unlock()
	frames, err := p.encoder.publish(p.limits, p.channel, exchange, key, msg)
	if err != nil {
		return nil, err
	}
	f.exchange, f.key, f.id, f.body = exchange, key, msg.MessageId, msg.Body
	if full, err = p.window.enter(f); full != nil || err != nil {
		return full, err
	}
	err = p.conn.wire.publish(p.channel, frames)
	if err == nil || !p.window.leave() {
		return nil, nil
	}
	<-p.done // a write fails only at the end, whose reason is worth more than the write's
	return nil, p.Err()
}

// Ready returns a channel that gets a value when there may be results to collect. It is for one receiver.
func (p *Publisher) Ready() <-chan struct{} { return p.window.readySignal }

// Collect appends the results that are there to dst and frees their places in the window. It never blocks. After Done it returns
// what is left of them.
func (p *Publisher) Collect(dst []Result) []Result { return p.window.collect(dst) }

// InFlight returns the publishes whose outcome was not yet collected, and their body bytes.
func (p *Publisher) InFlight() (messages, bytes int) { return p.window.inFlight() }

// Done is closed when the publisher is over and every outcome can be collected.
func (p *Publisher) Done() <-chan struct{} { return p.done }

// Err says why the publisher is over: ErrClosed after Close, an error that wraps *amqp.Error when the broker closed the channel (404 missing
// exchange, 406 body too large) or the connection, else one that wraps ErrLost. Nil before Done.
func (p *Publisher) Err() error {
	select {
	case <-p.done:
		return p.window.reason()
	default:
		return nil
	}
}

// Close takes no more publishes, waits for the outcomes in flight until ctx ends, and closes the channel. What has none by then is
// Unknown and can still be collected. Closing a publisher that is over does nothing.
func (p *Publisher) Close(ctx context.Context) error {
	p.window.shut(ErrClosed)
	err := p.window.drained(ctx)
	if p.ch.IsClosed() {
		<-p.done
		return err
	}
	p.send.Lock()
	defer p.send.Unlock()
	closing := p.conn.rpc(context.WithoutCancel(ctx), "close publishing channel", p.ch.Close)
	<-p.done
	return errors.Join(err, closing)
}
