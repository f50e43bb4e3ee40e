package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/consumer"
)

func consumeCommand(s *session) *cobra.Command {
	run := roleCommand(s, "Hand messages to the programs of topology.queues[].target until stopped", need{database: true, amqp: true}, "consume")
	pause := &consumeChange{
		session: s, verb: "pause", does: consumer.PauseQueue,
		done: "queue %s is paused: its consumers start nothing more within 5 s", idle: "queue %s was paused already; see `surefoot consume ls`",
	}
	resume := &consumeChange{
		session: s, verb: "resume", does: consumer.ResumeQueue,
		done: "queue %s is resumed: its consumers go on within 5 s", idle: "queue %s was not paused",
	}
	return noun("consume", "Work on queues with programs, and pause the consumers of any queue", run,
		pause.command("Have every consumer of a queue hold what it has and start nothing, across restarts"),
		resume.command("End a pause"), consumeLs(s))
}

// consumeChange is what pause and resume share.
type consumeChange struct {
	session     *session
	verb        string
	does        func(ctx context.Context, db consumer.Database, schema, queue, who, reason string) (bool, error)
	done, idle  string
	queue, text string
}

func (c *consumeChange) command(short string) *cobra.Command {
	cmd := &cobra.Command{
		Use: c.verb + " --queue Q", Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	cmd.Flags().StringVar(&c.queue, "queue", "", "the work `queue` (required)")
	cmd.Flags().StringVar(&c.text, "reason", "", "why, for the audit and for readiness")
	c.session.changeFlags(cmd)
	return cmd
}

func (c *consumeChange) run(ctx context.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	who, err := c.session.operator()
	if err != nil {
		return err
	}
	db, err := c.session.database(ctx)
	if err != nil {
		return err
	}
	if err := knownQueue(ctx, db, c.queue); err != nil {
		return err
	}
	if c.session.dryRun {
		c.session.note("would %s queue %s; nothing was changed", c.verb, c.queue)
		return nil
	}
	if err := c.session.confirm(ctx, question{Verb: c.verb, Count: 1, Target: "queue " + c.queue}); err != nil {
		return err
	}
	changed, err := c.does(ctx, db.pool, db.schema, c.queue, who, c.text)
	if err != nil {
		return err
	}
	text := c.done
	if !changed {
		text = c.idle
	}
	c.session.note(text, c.queue)
	return nil
}

func (c *consumeChange) check() error {
	c.text = strings.TrimSpace(c.text)
	switch {
	case c.queue == "" || !plain(c.queue, 255):
		return usageErrorf("see `surefoot consume ls`", "%s needs --queue, a name of 1 to 255 bytes of plain text", c.verb)
	case !plain(c.text, maxReason):
		return usageErrorf("", "--reason must be at most %d bytes of plain text", maxReason)
	}
	return nil
}

// knownQueue refuses a name that was mistyped: a pause of it would hold nothing back.
func knownQueue(ctx context.Context, db *database, queue string) error {
	if _, configured := db.config.Topology.Find(queue); configured {
		return nil
	}
	known, err := consumer.Queues(ctx, db.pool, db.schema, queue)
	if err != nil {
		return err
	}
	if len(known) == 0 {
		names := queueNames(db.config.Topology)
		had, _ := consumer.Queues(ctx, db.pool, db.schema, "") // without them fewer are proposed
		for _, q := range had {
			names = append(names, q.Queue)
		}
		return usageErrorf(near(queue, names, "see `surefoot consume ls`"), "queue %s is not in surefoot.yaml, and no consumer of it was ever started", queue)
	}
	return nil
}
