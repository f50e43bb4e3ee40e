package config

import (
	"cmp"
	"slices"
)

// DefaultExchange is that of rows which name none: relay.exchange, else that of the topology. Empty where neither is set.
func (c *Config) DefaultExchange() string { return cmp.Or(c.Relay.Exchange, c.Topology.Exchange) }

// Exchanges are the names of all that rows may go to: of the topology, its queues, the relay, and what the watchdog and reconciliations send.
// Sorted; each once.
func (c *Config) Exchanges() []string {
	names := []string{c.Topology.Exchange, c.Relay.Exchange}
	for _, q := range c.Topology.WithDefaults().Queues {
		names = append(names, q.Exchange)
	}
	for _, rule := range c.Watchdog.Rules {
		names = append(names, rule.Exchange)
	}
	for _, rule := range c.Reconcile.Rules {
		for _, answer := range rule.Answers {
			names = append(names, answer.Exchange)
		}
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
}
