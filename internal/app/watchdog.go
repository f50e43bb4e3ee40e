package app

import (
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/watchdog"
)

func watchdogRole() Role {
	return Role{
		Name:       "watchdog",
		Configured: func(c *config.Config) bool { return len(c.Watchdog.Rules) > 0 },
		Missing:    "there are no watchdog rules; add one under watchdog.rules",
		New: func(d Deps) (Runner, error) {
			pool, err := d.Pool("watchdog")
			if err != nil {
				return nil, err
			}
			options := WatchdogOptions(d.Config)
			options.Pool, options.Logger, options.Registerer, options.Ready = pool, d.Logger, d.Registerer, d.Ready
			options.DrainTimeout = d.Drain
			return watchdog.New(options)
		},
	}
}

// WatchdogOptions are the watchdog's options of a configuration, without what a process adds: the pool, the
// logger, the metrics.
func WatchdogOptions(c *config.Config) watchdog.Options {
	rules := make([]watchdog.Rule, len(c.Watchdog.Rules))
	for i, r := range c.Watchdog.Rules {
		rules[i] = watchdog.Rule{
			Name: r.Name, Table: r.Table, Key: r.Key, Status: r.Status, Stuck: r.Stuck, Clock: r.Clock, Limit: r.Limit,
			NewStatus: r.NewStatus, Reason: r.Reason, EventType: r.EventType, Exchange: r.Exchange,
			ReasonColumn: r.ReasonColumn, ChangedColumn: r.ChangedColumn, Payload: r.Payload,
		}
	}
	return watchdog.Options{
		Schema: c.Database.Schema, Rules: rules, Interval: c.Watchdog.Interval, Batch: c.Watchdog.Batch,
	}
}
