package app

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/consumer/endpoint"
	"github.com/surefoot-mq/surefoot/consumer/program"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
	"github.com/surefoot-mq/surefoot/topology"
)

// workers are what the queues' messages are handed to.
type workers struct {
	deps     Deps
	policies map[string]*policy.Policy // by dependency: places and circuit are counted in it
	close    []func()
}

// attach gives a queue's consumer its handler.
func (w *workers) attach(o *consumer.Options, q topology.Queue, pool *pgxpool.Pool) error {
	if q.Target.HTTP != nil {
		return w.attachEndpoint(o, q, pool)
	}
	options := program.Options{Command: q.Target.Exec, Queue: q.Name}
	if !q.Target.KeepAlive {
		handler, err := program.New(options)
		o.Plain = handler
		return err
	}
	kept, err := program.NewWorkers(options)
	if err != nil {
		return err
	}
	w.close = append(w.close, kept.Close)
	o.Remote = kept.Handle
	return nil
}

func (w *workers) attachEndpoint(o *consumer.Options, q topology.Queue, pool *pgxpool.Pool) error {
	t := q.Target.HTTP
	guard, err := w.policy(cmp.Or(t.Dependency, q.Name), q, pool)
	if err != nil {
		return err
	}
	target, err := endpoint.New(endpoint.Options{
		URL: t.URL, Queue: q.Name, Policy: guard, BearerFile: t.BearerFile, SigningKeyFile: t.SigningKeyFile,
		CAFile: t.CAFile, CertFile: t.CertFile, KeyFile: t.KeyFile, IgnoreAnswer: t.IgnoreAnswer,
	})
	if err != nil {
		return err
	}
	w.close = append(w.close, target.Close)
	o.Remote = target.Handle
	return nil
}

// policy is one per dependency. Without settings of its own a queue's endpoint has the limits of the queue.
func (w *workers) policy(name string, q topology.Queue, pool *pgxpool.Pool) (*policy.Policy, error) {
	if made := w.policies[name]; made != nil {
		return made, nil
	}
	settings, given := w.deps.Config.Dependencies[name]
	if !given {
		filled, _ := topology.Spec{Queues: []topology.Queue{q}}.Find(q.Name)
		settings = resilience.Settings{
			Deadline: filled.HandlerTimeout, Timeout: filled.HandlerTimeout, Retry: resilience.Retry{Attempts: 1},
			Bulkhead: resilience.Bulkhead{Active: filled.Concurrency},
		}
	}
	made, err := policy.New(policy.Options{
		Name: name, Settings: settings, Pool: pool, Schema: w.deps.Schema, Host: w.deps.Host, Logger: w.deps.Logger, Metrics: w.deps.Registerer,
	})
	if err == nil {
		w.policies[name] = made
	}
	return made, err
}

// run writes down the states of the circuits until the returned function is called, which also lets go what the workers hold.
func (w *workers) run(ctx context.Context) (stop func()) {
	stopPolicies := runPolicies(ctx, w.deps.Logger, w.policies)
	return func() {
		stopPolicies()
		for _, end := range w.close {
			end()
		}
	}
}
