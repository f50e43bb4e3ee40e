package topology

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// ApplyOptions of one apply.
type ApplyOptions struct {
	// Prune also removes bindings and queues that the spec does not want any more, queues only when empty and unused. It takes some seconds for
	// each queue. Default: false.
	Prune bool
}

// Apply makes what is missing, in an order in which no message can arrive before its way out is there. It is idempotent, and several may run at once. It returns
// the plan with what was done; conflicts stay, and make the error wrap ErrConflicts. Without the management API it can only declare everything, without
// pruning: then the plan lists that, and an error that wraps ErrConflicts names what the broker refused.
func (t *Topology) Apply(ctx context.Context, opts ApplyOptions) (plan Plan, err error) {
	conn, err := rabbit.Dial(ctx, t.connection())
	if err != nil {
		return Plan{}, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if v := conn.ServerVersion(); v != (rabbit.Version{}) && !v.Supported() {
		return Plan{}, fmt.Errorf("topology: RabbitMQ %s cannot dead-letter at least once; use 3.10 or newer", v)
	}
	plan, err = t.Plan(ctx)
	if err != nil && (opts.Prune || ctx.Err() != nil) {
		return plan, err
	}
	if err != nil {
		t.opts.Logger.Warn().Err(err).Msg("topology is declared without knowing what is there")
		plan = Diff(Desired(t.spec), newState())
	}
	a := applier{
		conn: conn, management: t.management, log: t.opts.Logger, wanted: Desired(t.spec), settle: t.settle,
		leaving: map[string]bool{}, kept: map[string]kept{}, gone: map[string][]*Change{},
	}
	return a.apply(ctx, plan, opts.Prune)
}

type applier struct {
	conn       *rabbit.Conn
	management *rabbit.Management
	log        zerolog.Logger
	wanted     State
	settle     time.Duration

	// By work queue, of leftovers:
	leaving map[string]bool      // it is to be deleted
	kept    map[string]kept      // it, or a queue of it, could not be deleted yet
	gone    map[string][]*Change // its retry queues that were deleted
}

func (a *applier) apply(ctx context.Context, plan Plan, prune bool) (Plan, error) {
	for _, c := range plan.Changes {
		if c.Action == ActionDelete && c.queue.Role == RoleWork {
			a.leaving[c.Name] = true
		}
	}
	for i := range plan.Changes {
		c := &plan.Changes[i]
		if c.Prune && !prune {
			continue
		}
		if err := a.change(ctx, c); err != nil {
			return plan, fmt.Errorf("topology: %s %s %s: %w", c.Action, c.Kind, c.Name, err)
		}
		if c.Done {
			a.log.Info().Str("action", string(c.Action)).Str("kind", string(c.Kind)).Str("name", c.Name).Msg("topology changed")
		}
	}
	if n := plan.Conflicts(); n > 0 {
		return plan, fmt.Errorf("%w (%d)", ErrConflicts, n)
	}
	return plan, nil
}

// change makes one change and marks it done, or says in its detail why it was not.
func (a *applier) change(ctx context.Context, c *Change) error {
	switch c.Action {
	case ActionCreate:
		return a.create(ctx, c)
	case ActionBind:
		return a.done(c, a.bind(ctx, c.binding))
	case ActionUnbind:
		return a.done(c, a.unbind(ctx, c.binding, c.bindingKey))
	case ActionDelete:
		return a.deleteLeftover(ctx, c)
	case ActionReplace:
		return a.replace(ctx, c)
	case ActionConflict:
	}
	return nil
}

func (a *applier) done(c *Change, err error) error {
	c.Done = err == nil
	return err
}

// create declares. That somebody else made it otherwise meanwhile, or before, is a conflict.
func (a *applier) create(ctx context.Context, c *Change) error {
	var err error
	if c.Kind == KindExchange {
		err = a.declareExchange(ctx, c.Name, c.exchange)
	} else {
		err = a.declareQueue(ctx, c.Name, c.queue)
	}
	if rabbit.Code(err) == amqp.PreconditionFailed {
		c.Action, c.Detail = ActionConflict, fmt.Sprintf("exists with other properties, which cannot be changed: %s; `surefoot topology plan` says what to do", err)
		return nil
	}
	return a.done(c, err)
}

func (a *applier) declareExchange(ctx context.Context, name string, want ExchangeState) error {
	return a.do(ctx, "declare exchange", func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(name, want.Type, want.Durable, want.AutoDelete, want.Internal, false, nil)
	})
}

func (a *applier) declareQueue(ctx context.Context, name string, want QueueState) error {
	return a.do(ctx, "declare queue", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, want.Durable, want.AutoDelete, false, false, want.Arguments)
		return err
	})
}

func (a *applier) bind(ctx context.Context, b Binding) error {
	return a.do(ctx, "bind queue", func(ch *amqp.Channel) error {
		return ch.QueueBind(b.Queue, b.RoutingKey, b.Exchange, false, nil)
	})
}

func (a *applier) unbind(ctx context.Context, b Binding, key string) error {
	return a.management.Unbind(ctx, rabbit.Binding{Source: b.Exchange, Destination: b.Queue, DestinationType: "queue", RoutingKey: b.RoutingKey, PropertiesKey: key})
}

// do runs one request on a channel of its own, for an error closes it.
func (a *applier) do(ctx context.Context, op string, request func(*amqp.Channel) error) error {
	channel, err := a.conn.Channel(ctx)
	if err != nil {
		return err
	}
	return errors.Join(channel.Do(ctx, op, request), channel.Close(context.WithoutCancel(ctx)))
}
