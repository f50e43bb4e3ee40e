package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// backlogInterval is how often the queue is looked at; two looks in a row must agree.
const backlogInterval = 15 * time.Second

// watchBacklog reports a consumer whose queue has messages while it gets none although it could hold more. It looks
// on the consuming connection, which never publishes and so is never blocked.
func (c *Consumer) watchBacklog(ctx context.Context, conn *rabbit.Conn) {
	defer c.health.set(partBacklog, nil)
	for pause.For(ctx, c.backlogInterval) {
		before := c.deliveries.Load()
		ready, err := inspect(ctx, conn, c.opts.Queue)
		if err != nil {
			if ctx.Err() == nil {
				c.log.Debug().Err(err).Msg("queue not looked at")
			}
			continue
		}
		starving := ready > 0 && !c.pauses.paused() && len(c.slots) == 0
		if !starving || !pause.For(ctx, c.backlogInterval) {
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

// inspect counts the messages that are ready. The request is not cancelled with ctx: that would cost the connection.
func inspect(ctx context.Context, conn *rabbit.Conn, queue string) (int, error) {
	ready, _, err := conn.Inspect(context.WithoutCancel(ctx), queue)
	return ready, err
}
