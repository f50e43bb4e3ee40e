package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/topology"
)

// minDeliveryLimit is the lowest delivery limit with which a queue may be looked at: each look counts as a delivery.
const minDeliveryLimit = 100_000

// safe refuses to receive from a queue that loses or reorders what is given back: a quorum queue counts every look as
// a delivery and drops letters at its limit, which is 20 from RabbitMQ 4.0 if none is set; one without a limit puts
// what is given back at its end before 4.0 (measured). Without the management API, queues of the configured topology
// are taken to be as the topology made them.
func (d *DeadLetters) safe(ctx context.Context, conn *rabbit.Conn, n names) error {
	if _, err := inspect(ctx, conn, n.dlq); err != nil {
		return missing(err, n.dlq, ErrNoDLQ)
	}
	if d.management == nil {
		return d.unchecked(n, errors.New("no management URL is set"))
	}
	q, err := d.management.Queue(ctx, n.dlq)
	if err != nil {
		return d.unchecked(n, err)
	}
	policies, err := d.management.Policies(ctx)
	if err != nil {
		return d.unchecked(n, err)
	}
	return Safe(q, policies, conn.ServerVersion())
}

func (d *DeadLetters) unchecked(n names, cause error) error {
	if slices.ContainsFunc(d.opts.Queues, func(q Queue) bool { return q.Name == n.work }) {
		d.opts.Logger.Debug().Err(cause).Str("dlq", n.dlq).Msg("delivery limit not checked: taken as the topology declares it")
		return nil
	}
	return fmt.Errorf("%w: %s is not in the configured topology, and its delivery limit could not be checked: %w", ErrUnsafe, n.dlq, cause)
}

// Safe says what is wrong with a dead-letter queue's settings, as an error that wraps [ErrUnsafe], nil when nothing is. It is pure.
func Safe(q rabbit.Queue, policies []rabbit.Policy, v rabbit.Version) error {
	const mend = `set one first: rabbitmqctl set_policy -p VHOST --apply-to queues dlq-limit '\.dlq$' '{"delivery-limit":1000000}'`
	limit, _, set := topology.StateOf(q, policies).Number(q.Name, "x-delivery-limit")
	unlimited := set && limit < 0 && v.AtLeast(4, 0)
	switch {
	case q.Type == amqp.QueueTypeClassic || unlimited:
		return nil
	case q.Type != amqp.QueueTypeQuorum:
		return fmt.Errorf("%w: %s is a queue of type %q; only quorum and classic queues can be dead-letter queues here", ErrUnsafe, q.Name, q.Type)
	case !set && v.DefaultsDeliveryLimit():
		return fmt.Errorf("%w: %s has the broker's delivery limit of 20, so that looking would empty it; %s", ErrUnsafe, q.Name, mend)
	case !set:
		return fmt.Errorf("%w: %s has no delivery limit, and this broker would reorder it; %s", ErrUnsafe, q.Name, mend)
	case limit < minDeliveryLimit:
		return fmt.Errorf("%w: %s has a delivery limit of %d, and each look counts; %s", ErrUnsafe, q.Name, limit, mend)
	}
	return nil
}
