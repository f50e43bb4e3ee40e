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

// publishTask is that of the bare publisher: the client library on a transport that gathers writes, a window of confirms, and nothing
// else. It is the limit of what any relay can reach.
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
		if lanes[i], err = openLane(ctx, o); err != nil {
			return outcome{}, err
		}
		defer lanes[i].close()
	}
	began := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for i, l := range lanes {
		group.Go(func() error { return l.publish(ctx, t, i+1, began.Add(t.For)) })
	}
	err = group.Wait()
	done := outcome{Seconds: time.Since(began).Seconds()}
	for _, l := range lanes {
		done.Rows += l.confirmed
	}
	return done, err
}

// lane is one connection of the bare publisher.
type lane struct {
	conn      *rabbit.Conn
	ch        *amqp.Channel
	returns   <-chan amqp.Return
	confirmed int
}

func openLane(ctx context.Context, o ArmOptions) (*lane, error) {
	conn, err := rabbit.Dial(ctx, o.broker())
	if err != nil {
		return nil, err
	}
	l := &lane{conn: conn}
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

// publish sends the rows from the first on, in steps of the number of connections.
func (l *lane) publish(ctx context.Context, t publishTask, first int, until time.Time) error {
	var window [bareWindow]*amqp.DeferredConfirmation
	body, sent := []byte(payload(t.Bytes)), 0
	for n := first; n <= t.Rows && ctx.Err() == nil; n += t.Connections {
		place := &window[sent%bareWindow]
		if err := l.await(ctx, *place); err != nil {
			return err
		}
		*place = nil
		if sent%bareWindow == 0 && time.Now().After(until) {
			break
		}
		key := fmt.Sprint("k", n%t.Keys)
		msg, err := message.Message{ID: fmt.Sprint("m", n), Type: "order.created", Key: key, Payload: body}.Publishing()
		if err != nil {
			return err
		}
		if *place, err = l.ch.PublishWithDeferredConfirm(t.Exchange, "order.created", true, false, msg); err != nil {
			return err
		}
		sent++
	}
	for i := range window {
		if err := l.await(ctx, window[(sent+i)%bareWindow]); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// await waits for a message to be confirmed and routed.
func (l *lane) await(ctx context.Context, confirm *amqp.DeferredConfirmation) error {
	if confirm == nil {
		return nil
	}
	acked, err := confirm.WaitContext(ctx)
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
	l.confirmed++
	return nil
}
