package consumer

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// backlogInterval is how often the queue is looked at; two looks in a row must agree.
const backlogInterval = 15 * time.Second

// watchBacklog reports a consumer whose queue has messages while it gets none although it could hold more. It looks
// on the consuming connection, which never publishes and so is never blocked.
func (c *Consumer) watchBacklog(ctx context.Context, conn *rabbit.Conn) {
	defer c.health.set(partBacklog, nil)
	for sleep(ctx, c.backlogInterval) {
		before := c.deliveries.Load()
		ready, err := depth(ctx, conn, c.opts.Queue)
		if err != nil {
			if ctx.Err() == nil {
				c.log.Debug().Err(err).Msg("queue not looked at")
			}
			continue
		}
		starving := ready > 0 && !c.pauses.paused() && len(c.slots) == 0
		if !starving || !sleep(ctx, c.backlogInterval) {
			c.health.set(partBacklog, nil)
			continue
		}
		if c.deliveries.Load() == before && len(c.slots) == 0 {
			c.health.set(partBacklog, fmt.Errorf("queue %s has %d messages ready, but none arrives here", c.opts.Queue, ready))
			continue
		}
		c.health.set(partBacklog, nil)
	}
}

// depth counts the messages that are ready.
func depth(ctx context.Context, conn *rabbit.Conn, queue string) (int, error) {
	ch, err := conn.Channel(ctx)
	if err != nil {
		return 0, err
	}
	ready := 0
	err = ch.Do(context.WithoutCancel(ctx), fmt.Sprintf("look at queue %q", queue), func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		ready = q.Messages
		return err
	})
	if closing := ch.Close(context.WithoutCancel(ctx)); err == nil {
		err = closing
	}
	return ready, err
}
