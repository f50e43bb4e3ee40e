package consumer

import "github.com/surefoot-mq/surefoot/topology"

// FromSpec returns the options that a queue's specification decides. Handler, connections and the rest are the
// caller's to set.
func FromSpec(q topology.Queue) Options {
	q, _ = topology.Spec{Queues: []topology.Queue{q}}.Find(q.Name) // with its defaults
	return Options{
		Queue: q.Name, Retry: q.Tiers(), DeadLetters: q.DLQ(), MaxAttempts: q.MaxAttempts, Prefetch: q.Prefetch,
		Concurrency: q.Concurrency, Timeout: q.HandlerTimeout, Ordering: Ordering(q.Ordering),
	}
}
