package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/resilience"
)

// Fate is what becomes of a message.
type Fate string

// Fates of a message.
const (
	// Done: handled and committed, then acknowledged.
	Done Fate = "done"
	// Duplicate: handled before, so the handler did not run; acknowledged.
	Duplicate Fate = "duplicate"
	// Retried: a counted copy goes to the retry tier.
	Retried Fate = "retry"
	// Dead: a copy with the record of the failure goes to the dead-letter queue.
	Dead Fate = "dead-letter"
	// Held: kept until a dependency is back, and not counted.
	Held Fate = "held"
	// Returned: back to the queue, not counted, because the process stops.
	Returned Fate = "returned"
)

// Rehearsal is what the consumer decided about one delivery.
type Rehearsal struct {
	Fate Fate
	// Class of the failure; empty when there was none.
	Class resilience.Class
	// Err is what the handler, or the consumer around it, failed with.
	Err error
	// Attempts is the count of failed attempts that the copy would carry.
	Attempts int
	// Queue that the copy would go to; empty when there is none.
	Queue string
	// Delay until the next try.
	Delay time.Duration
}

// Rehearse handles one delivery of a message as Run would, without a broker: inbox row, transaction, handler,
// classification and decision are the real ones, only the publish and the acknowledgement are left out. What the
// handler did is committed when Fate is Done. o.URL is not needed. For tests; see package surefoottest.
func Rehearse(ctx context.Context, o Options, m message.Message) (Rehearsal, error) {
	if o.URL == "" {
		o.URL = "amqp://rehearsal.invalid"
	}
	c, err := New(o)
	if err != nil {
		return Rehearsal{}, err
	}
	if err := c.inbox.register(ctx, c.opts); err != nil {
		return Rehearsal{}, err
	}
	d, err := rehearsalDelivery(m)
	if err != nil {
		return Rehearsal{}, err
	}
	j := newJob(nil, d)
	if j.msg.ID == "" && !c.opts.AllowNoID {
		return c.rehearsed(j, ClassNoID, noIDError{}), nil
	}
	class, _, err := c.attempt(outbox.WithSchema(ctx, c.opts.Schema), j)
	switch {
	case err == nil:
		return Rehearsal{Fate: Done, Attempts: j.msg.Attempts}, nil
	case errors.Is(err, errDuplicate):
		return Rehearsal{Fate: Duplicate, Attempts: j.msg.Attempts}, nil
	}
	return c.rehearsed(j, class, err), nil
}

func rehearsalDelivery(m message.Message) (*amqp.Delivery, error) {
	p, err := m.Publishing()
	if err != nil {
		return nil, fmt.Errorf("the message cannot be sent: %w", err)
	}
	if m.Attempts > 0 {
		p.Headers[message.HeaderAttempts] = int64(m.Attempts)
	}
	return &amqp.Delivery{
		Headers: p.Headers, ContentType: p.ContentType, DeliveryMode: p.DeliveryMode, CorrelationId: p.CorrelationId,
		MessageId: p.MessageId, Timestamp: p.Timestamp, Type: p.Type, AppId: p.AppId, Body: p.Body,
		Exchange: m.Exchange, RoutingKey: m.Route(),
	}, nil
}

func (c *Consumer) rehearsed(j *job, class resilience.Class, err error) Rehearsal {
	v := c.decide(j, class, 0, err)
	r := Rehearsal{Class: class, Err: err, Attempts: v.attempts}
	switch v.action {
	case actReturn:
		r.Fate = Returned
	case actHold:
		r.Fate, r.Delay = Held, v.delay
	case actDead:
		r.Fate, r.Queue = Dead, c.opts.DeadLetters
	case actRetry, actDrop, actAck, actSingly, actDiscarded:
		tier, _ := tierFor(c.opts.Retry, v.attempts, v.delay)
		r.Fate, r.Queue, r.Delay = Retried, tier.Queue, max(tier.Delay, v.delay)
	}
	return r
}
