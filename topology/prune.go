package topology

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
)

// settle is how long a queue is held before it is deleted: longer than its figures lag (5 s).
const settle = 6 * time.Second

// guardPrefetch is how many messages may arrive while a queue is being deleted and still be saved.
const guardPrefetch = 10_000

// kept says which queue of an earlier spec stays, and why; the others of its work queue stay with it.
type kept struct{ name, why string }

// of says it about one of these queues.
func (k kept) of(queue string) string {
	if k.name == queue {
		return "kept: " + k.why
	}
	return fmt.Sprintf("kept: %s is still there: %s", k.name, k.why)
}

// deleteLeftover deletes a queue of an earlier spec when nothing is in it and nothing can come to it. Its messages' destination goes last,
// and a retry queue goes only with its work queue: whoever still consumes from that needs it.
func (a *applier) deleteLeftover(ctx context.Context, c *Change) error {
	if err := a.lookAhead(ctx, c); err != nil {
		return err
	}
	if k, stays := a.kept[c.work]; stays {
		c.Detail = k.of(c.Name)
		return nil
	}
	why, err := a.deleteEmpty(ctx, c.Name, c.queue)
	if err != nil {
		return err
	}
	if why != "" {
		a.kept[c.work] = kept{c.Name, why}
		c.Detail = a.kept[c.work].of(c.Name)
		return a.restore(ctx, c.work)
	}
	c.Done, c.Detail = true, "was empty and unused"
	if c.queue.Role == RoleRetry && a.leaving[c.work] {
		a.gone[c.work] = append(a.gone[c.work], c)
	}
	return nil
}

// lookAhead keeps a retry queue whose work queue could not be deleted after it.
func (a *applier) lookAhead(ctx context.Context, c *Change) error {
	if _, stays := a.kept[c.work]; stays || c.queue.Role != RoleRetry || !a.leaving[c.work] {
		return nil
	}
	_, why, err := a.look(ctx, c.work)
	if why != "" {
		a.kept[c.work] = kept{c.work, why}
	}
	return err
}

// restore makes the retry queues of a work queue again that was taken into use after they were deleted.
func (a *applier) restore(ctx context.Context, work string) error {
	for _, c := range a.gone[work] {
		if err := a.declareQueue(context.WithoutCancel(ctx), c.Name, c.queue); err != nil {
			return fmt.Errorf("make queue %q again: %w", c.Name, err)
		}
		c.Done, c.Detail = false, a.kept[work].of(c.Name)
	}
	delete(a.gone, work)
	return nil
}

// replace deletes a retry or dead-letter queue, when it is empty and unused, and makes it anew. Meanwhile publishes to it are returned, and the
// publisher keeps the original; dead letters of the broker wait in their queue.
func (a *applier) replace(ctx context.Context, c *Change) error {
	why, err := a.deleteEmpty(ctx, c.Name, c.found)
	if err != nil {
		return err
	}
	if why != "" {
		c.Detail = "not replaced: " + why + "; " + c.Detail
		return nil
	}
	if err := a.declareQueue(ctx, c.Name, c.queue); err != nil {
		return err
	}
	for _, b := range a.wanted.bindingsOf(c.Name) {
		if err := a.bind(ctx, b); err != nil {
			return err
		}
	}
	c.Done, c.Detail = true, "was empty and unused, made anew: "+canonical(c.queue.Arguments)
	return nil
}

// deleteEmpty deletes a queue when it holds nothing and nobody uses it, else it says why not. Quorum queues know no conditional deletion (if-empty,
// if-unused: refused by the broker), so it guards the queue with a consumer of the highest priority: each message that still arrives comes
// here, and nobody else gets one. One that comes before the deletion stops it; one that comes with it is put back into the queue, made again.
func (a *applier) deleteEmpty(ctx context.Context, name string, have QueueState) (why string, err error) {
	there, why, err := a.look(ctx, name)
	if !there || why != "" || err != nil { // not there: another apply was faster
		return why, err
	}
	g, err := newGuard(ctx, a.conn, name)
	if err != nil {
		return "", err
	}
	if why, err := a.quiet(ctx, g); why != "" || err != nil {
		return why, errors.Join(err, g.release(ctx)) // what the guard holds goes back
	}
	late, err := g.delete(ctx)
	if err != nil || len(late) == 0 {
		return "", errors.Join(err, g.release(ctx))
	}
	return "messages arrived while it was being deleted; they were put back", errors.Join(a.putBack(ctx, name, have, late), g.release(ctx))
}

// look says whether a queue is there, and what is in the way of deleting it at first sight.
func (a *applier) look(ctx context.Context, name string) (there bool, why string, err error) {
	ready, consumers, err := a.conn.Inspect(ctx, name)
	switch {
	case rabbit.Code(err) == codeNotFound:
		return false, "", nil
	case err == nil && ready+consumers > 0:
		why = fmt.Sprintf("it has %d messages and %d consumers", ready, consumers)
	}
	return err == nil, why, err
}

// quiet watches the guarded queue until its figures are current, and says what keeps it from being deleted.
func (a *applier) quiet(ctx context.Context, g *guard) (why string, err error) {
	timer := time.NewTimer(a.settle)
	defer timer.Stop()
	select {
	case _, open := <-g.deliveries:
		if !open {
			return "", fmt.Errorf("watch queue %q: subscription ended", g.name)
		}
		return "messages still arrive", nil
	case <-ctx.Done():
		return "", ctx.Err()
	case <-timer.C:
	}
	queue, err := a.management.Queue(ctx, g.name)
	if err != nil {
		return "", err
	}
	if queue.Messages > 0 {
		return fmt.Sprintf("%d messages are held by somebody, unacknowledged", queue.Messages), nil
	}
	_, consumers, err := a.conn.Inspect(ctx, g.name)
	if consumers > 1 {
		return "somebody began to consume from it", err
	}
	return "", err
}

// putBack makes a queue again and publishes what was in it.
func (a *applier) putBack(ctx context.Context, name string, have QueueState, late []amqp.Delivery) error {
	ctx = context.WithoutCancel(ctx)
	if err := a.declareQueue(ctx, name, have); err != nil {
		return fmt.Errorf("make queue %q again: %w", name, err)
	}
	publisher, err := a.conn.Publisher(ctx, rabbit.PublisherOptions{})
	if err != nil {
		return err
	}
	for _, d := range late {
		if err := publisher.PublishConfirmed(ctx, "", name, message.Republishing(&d)); err != nil {
			return fmt.Errorf("put message %q back into queue %q: %w", d.MessageId, name, err)
		}
	}
	return publisher.Close(ctx)
}

// guard is a consumer that comes before all others; quorum queues do not know exclusive ones. It reads the library's own deliveries, which end only when all were received, after the deletion of the queue too.
type guard struct {
	name       string
	channel    *rabbit.Channel
	deliveries <-chan amqp.Delivery
}

func newGuard(ctx context.Context, conn *rabbit.Conn, name string) (*guard, error) {
	channel, err := conn.Channel(ctx)
	if err != nil {
		return nil, err
	}
	g := &guard{name: name, channel: channel}
	err = channel.Do(ctx, "guard queue", func(ch *amqp.Channel) (err error) {
		if err = ch.Qos(guardPrefetch, 0, false); err != nil {
			return err
		}
		first := amqp.Table{"x-priority": int32(math.MaxInt32)}
		g.deliveries, err = ch.Consume(name, "surefoot topology prune", false, false, false, false, first)
		return err
	})
	return g, err
}

// delete deletes the queue and returns what it held after all.
func (g *guard) delete(ctx context.Context) (late []amqp.Delivery, err error) {
	var purged int
	err = g.channel.Do(ctx, "delete queue", func(ch *amqp.Channel) (err error) {
		purged, err = ch.QueueDelete(g.name, false, false, false)
		return err
	})
	if err != nil {
		return nil, err
	}
	for d := range g.deliveries { // ends with the broker's cancel, which the deletion brings
		late = append(late, d)
	}
	if purged > len(late) {
		return late, fmt.Errorf("queue %q was deleted with %d messages, of which %d could be saved", g.name, purged, len(late))
	}
	return late, nil
}

func (g *guard) release(ctx context.Context) error {
	return g.channel.Close(context.WithoutCancel(ctx))
}
