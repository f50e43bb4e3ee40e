package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// backlogInterval is how often the queue is looked at; two looks in a row must agree.
const backlogInterval = 15 * time.Second

// watchBacklog reports a consumer whose queue has messages while it gets none although it could hold more. It looks
// on the consuming connection, which never publishes and so is never blocked.
func (c *Consumer) watchBacklog(ctx context.Context, conn *rabbit.Conn) {
	defer c.health.set(partBacklog, nil)
	var told telemetry.Reminder
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
			c.fed(&told)
			continue
		}
		if c.deliveries.Load() == before && len(c.slots) == 0 {
			c.health.set(partBacklog, fmt.Errorf("queue %s has %d messages ready, but none arrives here", c.opts.Queue, ready))
			if told.Due("", time.Now()) {
				c.log.Warn().Int("ready", ready).Msg("messages are ready, but none arrives here")
			}
			continue
		}
		c.fed(&told)
	}
}

// fed notes that the consumer gets messages, or that there are none.
func (c *Consumer) fed(told *telemetry.Reminder) {
	if told.Over() {
		c.log.Info().Msg("messages arrive again")
	}
	c.health.set(partBacklog, nil)
}

// inspect counts the messages that are ready. The request is not cancelled with ctx: that would cost the connection.
func inspect(ctx context.Context, conn *rabbit.Conn, queue string) (int, error) {
	ready, _, err := conn.Inspect(context.WithoutCancel(ctx), queue)
	return ready, err
}
