package shop

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/consumer"
)

// Run consumes for the given roles, all when none is given, until ctx ends; then it returns nil. The queues must
// be there: `surefoot topology apply` makes them.
func (s *Shop) Run(ctx context.Context, roles ...string) error {
	consumers, err := s.Consumers(roles...)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range consumers {
		group.Go(func() error { return c.Run(ctx) })
	}
	return group.Wait()
}

// Consumers returns the consumers of the given roles, all when none is given. They share nothing but the pool.
func (s *Shop) Consumers(roles ...string) ([]*consumer.Consumer, error) {
	var consumers []*consumer.Consumer
	var known []string
	solo := consumer.NewSolo()
	for _, role := range s.Roles() {
		known = append(known, role.Name)
		if len(roles) > 0 && !slices.Contains(roles, role.Name) {
			continue
		}
		c, err := s.consumer(role, solo)
		if err != nil {
			return nil, fmt.Errorf("shop: role %s: %w", role.Name, err)
		}
		consumers = append(consumers, c)
	}
	for _, role := range roles {
		if !slices.Contains(known, role) {
			return nil, fmt.Errorf("shop: there is no role %q; there are %s", role, strings.Join(known, ", "))
		}
	}
	return consumers, nil
}

func (s *Shop) consumer(role Role, solo *consumer.Solo) (*consumer.Consumer, error) {
	queue, ok := s.options.Topology.Find(role.Queue)
	if !ok {
		return nil, fmt.Errorf("the topology has no queue %s", role.Queue)
	}
	o := s.options
	return consumer.New(consumer.Options{
		Queue: queue.Name, Name: role.Queue, Handler: role.Handler, URL: o.AMQPURL, ManagementURL: o.ManagementURL, TLS: o.TLS, Pool: o.Pool, Schema: o.Schema,
		Retry: queue.Tiers(), DeadLetters: queue.DLQ(), MaxAttempts: queue.MaxAttempts, Prefetch: queue.Prefetch,
		Concurrency: queue.Concurrency, Timeout: queue.HandlerTimeout, Ordering: consumer.Ordering(queue.Ordering),
		Drain: o.Drain, Solo: solo, Host: o.Host, Version: o.Version, Logger: o.Logger, Metrics: o.Metrics,
		Ready: func(reason error) { o.Ready(role.Name, reason) },
	})
}
