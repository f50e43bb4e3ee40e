package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/resilience/policy"
	"github.com/surefoot-mq/surefoot/topology"
)

func consumeRole() Role {
	return Role{
		Name:       "consume",
		Configured: func(c *config.Config) bool { return len(targets(c)) > 0 },
		Missing:    "no queue under topology.queues has a target; give one target.exec or target.http",
		New:        newConsumers,
	}
}

// targets are the queues that this binary serves itself.
func targets(c *config.Config) []topology.Queue {
	return slices.DeleteFunc(slices.Clone(c.Topology.Queues), func(q topology.Queue) bool { return q.Target == nil })
}

// consumers work on several queues at once.
type consumers struct {
	all     []*consumer.Consumer
	workers *workers
	logger  zerolog.Logger
}

func newConsumers(d Deps) (Runner, error) {
	queues := targets(d.Config)
	// Shared, so that a message suspected of killing the process runs alone in it.
	solo := consumer.NewSolo()
	ready := &queueReadiness{report: d.Ready, reasons: map[string]error{}}
	all := make([]*consumer.Consumer, len(queues))
	w := &workers{deps: d, policies: map[string]*policy.Policy{}}
	var failed []error
	for i, q := range queues {
		var err error
		if all[i], err = newConsumer(d, q, w, solo, ready.part(q.Name)); err != nil {
			failed = append(failed, fmt.Errorf("queue %s: %w", q.Name, err))
		}
	}
	return &consumers{all, w, d.Logger}, errors.Join(failed...)
}

// newConsumer gives each queue a pool of its own: a slow one must not starve another.
func newConsumer(d Deps, q topology.Queue, w *workers, solo *consumer.Solo, ready func(error)) (*consumer.Consumer, error) {
	pool, err := d.Pool("consume " + q.Name)
	if err != nil {
		return nil, err
	}
	o := consumer.FromSpec(q)
	if err := w.attach(&o, q, pool); err != nil {
		return nil, err
	}
	o.Pool, o.Schema, o.URL, o.ManagementURL = pool, d.Schema, d.AMQPURL, d.ManagementURL
	o.InboxRetention, o.Drain, o.Solo = d.Config.Inbox.Retention, d.Drain, solo
	o.Host, o.Version, o.Logger, o.Metrics, o.Ready = d.Host, d.Version, d.Logger, d.Registerer, ready
	return consumer.New(o)
}

// Run runs all until ctx ends; when one fails the others stop.
func (c *consumers) Run(ctx context.Context) error {
	defer c.workers.run(ctx)()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(c.all))
	var running sync.WaitGroup
	for i, one := range c.all {
		running.Go(func() {
			defer telemetry.FatalOnPanic(c.logger)
			errs[i] = one.Run(ctx)
			if errs[i] != nil {
				cancel()
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// queueReadiness makes one reason out of those of several queues.
type queueReadiness struct {
	mu      sync.Mutex
	report  func(error)
	reasons map[string]error
}

func (r *queueReadiness) part(queue string) func(error) {
	return func(reason error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.reasons, queue)
		if reason != nil {
			r.reasons[queue] = fmt.Errorf("%s: %w", queue, reason)
		}
		var all []error
		for _, name := range slices.Sorted(maps.Keys(r.reasons)) {
			all = append(all, r.reasons[name])
		}
		r.report(errors.Join(all...))
	}
}
