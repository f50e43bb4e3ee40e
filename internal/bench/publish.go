package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
)

// bareWindow is the most unconfirmed messages of a connection: twice what is enough.
const bareWindow = 4000

// lane is one connection of a bare publisher: the client library on a transport that gathers writes, a window of confirms, and
// nothing else. It is the limit of what anybody can reach. For one goroutine.
type lane struct {
	conn      *rabbit.Conn
	ch        *amqp.Channel
	returns   <-chan amqp.Return
	window    []*amqp.DeferredConfirmation // a ring
	sent      int
	confirmed int
}

func openLane(ctx context.Context, o rabbit.Options) (*lane, error) {
	conn, err := rabbit.Dial(ctx, o)
	if err != nil {
		return nil, err
	}
	l := &lane{conn: conn, window: make([]*amqp.DeferredConfirmation, bareWindow)}
	if l.ch, err = rawChannel(ctx, conn); err == nil {
		err = l.ch.Confirm(false)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	l.returns = l.ch.NotifyReturn(make(chan amqp.Return, bareWindow))
	return l, nil
}

// rawChannel is the client library's own: what is measured bare has nothing of ours but the transport.
func rawChannel(ctx context.Context, conn *rabbit.Conn) (raw *amqp.Channel, err error) {
	channel, err := conn.Channel(ctx)
	if err != nil {
		return nil, err
	}
	err = channel.Do(ctx, "take the channel", func(ch *amqp.Channel) error { raw = ch; return nil })
	return raw, err
}

func (l *lane) close() { _ = l.conn.Close() } // all is confirmed, or the arm has failed

// send publishes a message when there is room in the window.
func (l *lane) send(ctx context.Context, exchange, key string, msg amqp.Publishing) error {
	place := &l.window[l.sent%len(l.window)]
	if err := l.await(ctx, place); err != nil {
		return err
	}
	confirm, err := l.ch.PublishWithDeferredConfirm(exchange, key, true, false, msg)
	if err != nil {
		return errors.Join(err, l.conn.Err())
	}
	*place = confirm
	l.sent++
	return nil
}

// flush waits for everything to be confirmed.
func (l *lane) flush(ctx context.Context) error {
	for i := range l.window {
		if err := l.await(ctx, &l.window[(l.sent+i)%len(l.window)]); err != nil {
			return err
		}
	}
	return nil
}

// await waits for the message at a place to be confirmed and routed, and clears the place.
func (l *lane) await(ctx context.Context, place **amqp.DeferredConfirmation) error {
	if *place == nil {
		return nil
	}
	acked, err := (*place).WaitContext(ctx)
	if err != nil {
		return err
	}
	select {
	case r := <-l.returns:
		return fmt.Errorf("message %s was returned: %s", r.MessageId, r.ReplyText)
	default:
	}
	if !acked {
		return errors.Join(errors.New("a message was not confirmed"), l.conn.Err())
	}
	*place = nil
	l.confirmed++
	return nil
}

// publishTask is that of the bare publisher.
type publishTask struct {
	Exchange    string
	Rows        int
	Bytes       int
	Keys        int
	Connections int
	For         time.Duration
}

func runPublish(ctx context.Context, o ArmOptions) (outcome, error) {
	t, err := task[publishTask](o)
	if err != nil {
		return outcome{}, err
	}
	lanes := make([]*lane, t.Connections)
	for i := range lanes {
		if lanes[i], err = openLane(ctx, o.broker()); err != nil {
			return outcome{}, err
		}
		defer lanes[i].close()
	}
	began := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for i, l := range lanes {
		group.Go(func() error { return t.publish(ctx, l, i+1, began.Add(t.For)) })
	}
	err = group.Wait()
	done := outcome{Seconds: time.Since(began).Seconds()}
	for _, l := range lanes {
		done.Rows += l.confirmed
	}
	return done, err
}

// publish sends the rows from the first on, in steps of the number of connections.
func (t publishTask) publish(ctx context.Context, l *lane, first int, until time.Time) error {
	body := payload(t.Bytes)
	for n := first; n <= t.Rows; n += t.Connections {
		if l.sent%1000 == 0 && time.Now().After(until) {
			break
		}
		msg, err := message.Message{ID: fmt.Sprint("m", n), Type: routingKey, Key: fmt.Sprint("k", n%t.Keys), Payload: body}.Publishing()
		if err != nil {
			return err
		}
		if err := l.send(ctx, t.Exchange, routingKey, msg); err != nil {
			return err
		}
	}
	return l.flush(ctx)
}
