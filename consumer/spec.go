package consumer

import (
	"cmp"
	"fmt"
	"os"

	"github.com/rs/zerolog"
	"golang.org/x/term"

	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/topology"
)

// FromConfig returns the options of a queue from the configuration that the command surefoot reads, so that retry delays
// and limits are written once: the file at path with the SUREFOOT_* variables over it, as strictly; every fault is in the
// error. An empty path is SUREFOOT_CONFIG, else surefoot.yaml in the working directory. Handler, Pool and the
// rest are the caller's to set; the configuration gives the queue's own options, URL, ManagementURL, Schema,
// InboxRetention, and a Logger that writes to standard error as `log` says: a consumer that waits for something tells it there. Host is this host's name.
func FromConfig(path, queue string) (Options, error) {
	c, err := config.Load(config.Sources{Path: path, Environ: os.Environ(), ReadFile: os.ReadFile})
	if err != nil {
		return Options{}, fmt.Errorf("consumer: %w", err)
	}
	for _, q := range c.Topology.Queues {
		if q.Name != queue {
			continue
		}
		o := FromSpec(q)
		o.URL, o.ManagementURL = c.AMQP.Source.Reveal(), c.AMQP.ManagementSource.Reveal()
		o.Schema, o.InboxRetention = c.Database.Schema, c.Inbox.Retention
		o.Host, _ = os.Hostname() // without one the default holds
		if o.Logger, err = logger(c.Log); err != nil {
			return Options{}, fmt.Errorf("consumer: %w", err)
		}
		return o, nil
	}
	return Options{}, fmt.Errorf("consumer: queue %q is not under topology.queues in %s", message.Clip(queue, message.MaxShortString), cmp.Or(path, "the configuration"))
}

// logger is that of the command surefoot: the first program of everybody must say why it does not consume.
func logger(c config.Log) (zerolog.Logger, error) {
	return telemetry.NewLogger(telemetry.LoggerOptions{
		Writer: os.Stderr, Level: c.Level, NoColor: true,
		Pretty: c.Format == "pretty" || c.Format == "auto" && term.IsTerminal(int(os.Stderr.Fd())),
	})
}

// FromSpec returns the options that a queue's specification decides. Handler, connections and the rest are the
// caller's to set. A concurrency that the specification leaves out is left to [New], which knows the pool.
func FromSpec(q topology.Queue) Options {
	concurrency := q.Concurrency
	q, _ = topology.Spec{Queues: []topology.Queue{q}}.Find(q.Name) // with its defaults
	return Options{
		Queue: q.Name, Retry: q.Tiers(), DeadLetters: q.DLQ(), MaxAttempts: q.MaxAttempts, Prefetch: q.Prefetch,
		Concurrency: concurrency, Timeout: q.HandlerTimeout, Ordering: Ordering(q.Ordering),
	}
}
