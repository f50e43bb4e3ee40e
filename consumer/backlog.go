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

// watchBacklog reports a consumer whose queue has messages while it gets none although it could hold more, and has it subscribe anew. It looks
// on the consuming connection, which never publishes and so is never blocked.
//
// A subscription can be lost without a word, see renewsAfter.
func (c *Consumer) watchBacklog(ctx context.Context, conn *rabbit.Conn) {
	defer c.health.set(partBacklog, nil)
	var told telemetry.Reminder
	last, silent := c.deliveries.Load(), 0
	for pause.For(ctx, c.backlogInterval) {
		ready, consumers, err := inspect(ctx, conn, c.opts.Queue)
		if err != nil {
			if ctx.Err() == nil {
				c.log.Debug().Err(err).Msg("queue not looked at")
			}
			continue
		}
		before := last
		last = c.deliveries.Load()
		if last != before || c.busy.Load() || len(c.slots) > 0 || c.pauses.paused() {
			silent = 0
			c.fed(&told)
			continue
		}
		silent++
		switch {
		case ready == 0:
			c.fed(&told)
		case silent > 1:
			c.health.set(partBacklog, fmt.Errorf("queue %s has %d messages ready, but none arrives here", c.opts.Queue, ready))
			if told.Due("", time.Now()) {
				c.log.Warn().Int("ready", ready).Msg("messages are ready, but none arrives here")
			}
		}
		if silent%renewsAfter(ready, consumers) == 0 {
			select {
			case c.renewals <- struct{}{}:
			default:
			}
		}
	}
}

// renewsAfter is how many silent looks in a row make a subscription suspect. A quorum queue that is deleted and declared again at once tells the
// consumers of the former one nothing (RabbitMQ 3.10: 116 of 120 tries; 4.0 and 4.3: none of 60). They get no message, but the new queue may well count them, and hold
// messages for them: that cannot be told from a queue without work.
func renewsAfter(ready, consumers int) int {
	if ready > 0 || consumers == 0 {
		return 2
	}
	return 4
}

// fed notes that the consumer gets messages, or that there are none.
func (c *Consumer) fed(told *telemetry.Reminder) {
	if told.Over() {
		c.log.Info().Msg("messages arrive again")
	}
	c.health.set(partBacklog, nil)
}

// inspect counts the messages that are ready, and the consumers. The request is not cancelled with ctx: that would cost the connection.
func inspect(ctx context.Context, conn *rabbit.Conn, queue string) (ready, consumers int, err error) {
	return conn.Inspect(context.WithoutCancel(ctx), queue)
}
