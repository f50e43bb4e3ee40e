package consumer

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// verify refuses to consume from a queue whose retry or dead-letter queues are missing.
func (c *Consumer) verify(ctx context.Context, conn *rabbit.Conn) error {
	if c.opts.Unverified {
		return nil
	}
	queues := []string{c.opts.Queue, c.opts.DeadLetters}
	for _, tier := range c.opts.Retry {
		queues = append(queues, tier.Queue)
	}
	for _, queue := range queues {
		if err := exists(ctx, conn, queue); err != nil {
			return err
		}
	}
	return nil
}

func exists(ctx context.Context, conn *rabbit.Conn, queue string) error {
	_, err := depth(ctx, conn, queue)
	if rabbit.Code(err) == amqp.NotFound {
		return fmt.Errorf("queue %s does not exist; run `surefoot topology apply`: %w", queue, err)
	}
	return err
}
