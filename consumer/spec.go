package consumer

import "github.com/surefoot-mq/surefoot/topology"

// FromSpec returns the options that a queue's specification decides. Handler, connections and the rest are the
// caller's to set.
func FromSpec(q topology.Queue) Options {
	q, _ = topology.Spec{Queues: []topology.Queue{q}}.Find(q.Name) // with its defaults
	path := q.Path()
	retry := make([]Tier, len(path.Retry))
	for i, tier := range path.Retry {
		retry[i] = Tier{Queue: tier.Queue, Delay: tier.Delay}
	}
	return Options{
		Queue: q.Name, Retry: retry, DeadLetters: path.DeadLetters, MaxAttempts: q.MaxAttempts, Prefetch: q.Prefetch,
		Concurrency: q.Concurrency, Timeout: q.HandlerTimeout, Ordering: Ordering(q.Ordering),
	}
}
