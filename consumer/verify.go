package consumer

import (
	"context"
	"fmt"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/topology"
)

// newManagement is nil without a URL.
func newManagement(o Options) (*rabbit.Management, error) {
	if o.ManagementURL == "" {
		return nil, nil
	}
	m, err := rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: o.URL, URL: o.ManagementURL, TLS: o.TLS})
	if err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	return m, nil
}

// verify refuses to consume from a queue whose retry or dead-letter path is missing or, as far as the management API
// tells, lossy.
func (c *Consumer) verify(ctx context.Context, conn *rabbit.Conn) error {
	if c.opts.Unverified {
		return nil
	}
	report, err := topology.Verify(ctx, conn, c.management, topology.Path{
		Queue: c.opts.Queue, DeadLetters: c.opts.DeadLetters, Retry: c.opts.Retry,
	})
	if err != nil {
		return err
	}
	if err := report.Err(); err != nil {
		return err
	}
	for _, unchecked := range report.Unchecked {
		c.log.Debug().Str("unchecked", unchecked).Msg("topology not checked completely")
	}
	return nil
}
