package app

import (
	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/config"
)

// deadLettersRole looks after the dead letters of the configured topology. It has no command of its own: it runs wherever
// `surefoot run` does.
func deadLettersRole() Role {
	return Role{
		Name:       "dlq",
		Configured: func(c *config.Config) bool { return len(c.Topology.Queues) > 0 },
		Missing:    "no queues under topology.queues",
		New: func(d Deps) (Runner, error) {
			pool, err := d.Pool("dlq")
			if err != nil {
				return nil, err
			}
			letters, err := deadletter.New(deadletter.Options{
				Pool: pool, Schema: d.Schema, AMQPURL: d.AMQPURL, ManagementURL: d.ManagementURL,
				Queues: DeadLetterQueues(d.Config), Logger: d.Logger, Host: d.Host, Version: d.Version,
			})
			if err != nil {
				return nil, err
			}
			return deadletter.NewKeeper(deadletter.KeeperOptions{
				DeadLetters: letters, Who: "keeper@" + d.Host, Registerer: d.Registerer, Ready: d.Ready,
			})
		},
	}
}

// DeadLetterQueues are the queues of the configured topology.
func DeadLetterQueues(c *config.Config) []deadletter.Queue {
	queues := make([]deadletter.Queue, len(c.Topology.Queues))
	for i, q := range c.Topology.Queues {
		queues[i] = deadletter.Queue{Name: q.Name, Owner: q.Owner, Runbook: q.Runbook}
	}
	return queues
}
