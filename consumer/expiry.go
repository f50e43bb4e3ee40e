package consumer

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// expiryOf is when a message expires. Whoever redrives it after that wants it handled all the same.
func expiryOf(m message.Message, h amqp.Table) time.Time {
	if redriven := message.Time(h, message.HeaderReprocess); redriven.After(m.ExpiresAt) {
		return time.Time{}
	}
	return m.ExpiresAt
}

// untilExpiry cuts a handler's time where its message expires. That is compared with the database's clock, since it was set by one.
// What was handled before it expired stays handled.
func (c *Consumer) untilExpiry(ctx context.Context, j *job) (context.Context, context.CancelFunc, error) {
	if j.expires.IsZero() {
		return ctx, func() {}, nil
	}
	now, err := c.databaseTime(ctx)
	if err != nil {
		return ctx, func() {}, &databaseError{"ask for the time", err, true}
	}
	if left := j.expires.Sub(now); left >= resilience.MinAttempt {
		limited, release := resilience.WithBudget(ctx, left)
		return limited, release, nil
	}
	return ctx, func() {}, c.expired(ctx, j)
}

func (c *Consumer) expired(ctx context.Context, j *job) error {
	if err := c.unhandled(ctx, j); err != nil {
		return err
	}
	return expiredError{j.expires}
}
