package cli

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/resilience"
)

func auditCommand(s *session) *cobra.Command {
	return noun("audit", "See what operators did: who, from where, when, what, why, and the outcome for each message", auditLs(s), auditFollow(s))
}

// maxAudit is the most entries of one list.
const maxAudit = 100_000

func auditLs(s *session) *cobra.Command {
	var (
		f                audit.Filter
		operation, since string
	)
	f.Limit = 100
	cmd := &cobra.Command{
		Use: "ls", Short: "List entries of the audit, the newest first", Args: cobra.NoArgs,
		Long: "List entries of the audit, the newest first. An operation has entries of its own, for its start and its end, and one for\n" +
			"each message; all of them share its id. Entries cannot be changed, and are kept for 400 days. See\n" +
			"`surefoot audit follow` for a log sink.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if operation != "" {
				id, err := deadletter.OperationOf(operation)
				if err != nil {
					return badRequest(err)
				}
				f.Operation = uuid.NullUUID{UUID: id, Valid: true}
			}
			var err error
			if f.Since, err = sinceTime(since, time.Now()); err != nil {
				return err
			}
			db, err := s.database(cmd.Context())
			if err != nil {
				return err
			}
			items, err := audit.List(cmd.Context(), db.pool, db.schema, f)
			if err != nil {
				return err
			}
			s.noteLimit(len(items), f.Limit)
			return render(s, auditRows(items))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&operation, "operation", "", "only this operation, by its `id`")
	flags.StringVar(&f.MessageID, "message", "", "only this message, by its `id`")
	flags.StringVar(&f.Who, "who", "", "only what this `operator` did")
	flags.StringVar(&f.Action, "action", "", "only this `command`, such as \"dlq redrive\", or all of a noun, such as dlq")
	flags.StringVar(&f.Target, "target", "", "only what was done to this `target`, such as orders.saga.dlq")
	flags.StringVar(&since, "since", "", "only what was done at this `time` or later: RFC 3339, or an age such as 2h")
	flags.BoolVar(&f.Operations, "operations", false, "leave out the entries of single messages")
	boundFlag(flags, &f.Limit, "limit", maxAudit, "the most entries")
	s.outputFlag(cmd)
	return cmd
}

func auditRows(items []audit.Item) listing[audit.Item] {
	return listing[audit.Item]{
		Items: items,
		Empty: "no entry matches",
		Name:  func(i audit.Item) string { return i.Operation.String() },
		Columns: []column[audit.Item]{
			{"AT", func(i audit.Item) string { return stampText(i.At) }},
			{"WHO", func(i audit.Item) string { return i.Who }},
			{"FROM", func(i audit.Item) string { return i.Origin }},
			{"ACTION", func(i audit.Item) string { return i.Action }},
			{"TARGET", func(i audit.Item) string { return i.Target }},
			{"MESSAGE", func(i audit.Item) string { return i.MessageID }},
			{"OUTCOME", func(i audit.Item) string { return i.Outcome }},
			{"REASON", func(i audit.Item) string { return i.Reason }},
			{"OPERATION", func(i audit.Item) string { return i.Operation.String() }},
			{"DETAIL", func(i audit.Item) string { return jsonText(i.Detail) }},
		},
	}
}

const (
	// followEvery is how long a follower waits when nothing is new.
	followEvery = time.Second
	// followAgain is how long it waits for a database that is away.
	followAgain = 5 * time.Second
)

func auditFollow(s *session) *cobra.Command {
	var (
		since string
		after int64
	)
	cmd := &cobra.Command{
		Use: "follow", Short: "Print entries as JSON lines as they are written, for a log sink", Args: cobra.NoArgs,
		Long: "Print entries of the audit as JSON lines on standard output as they become visible, each once, until it is interrupted: for a log\n" +
			"sink. A database that is away is waited for. Who goes on after an end passes the id of the last line that has arrived by --after.",
		Example: "surefoot audit follow --after 8812 >> /var/log/surefoot/audit.jsonl",
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, err := sinceTime(since, time.Now())
			if err != nil {
				return err
			}
			if after < 0 {
				return usageErrorf("give the id of an entry, as `surefoot audit ls -o jsonl` shows it", "--after must not be negative")
			}
			db, err := s.database(cmd.Context())
			if err != nil {
				return err
			}
			if !cmd.Flags().Changed("after") {
				if after, err = audit.Start(cmd.Context(), db.pool, db.schema, from); err != nil {
					return err
				}
			}
			return s.follow(cmd.Context(), audit.NewFollower(db.pool, db.schema, after, followEvery))
		},
	}
	cmd.Flags().StringVar(&since, "since", "", "begin with what was done at this `time` or later: RFC 3339, or an age such as 2h; default: now")
	cmd.Flags().Int64Var(&after, "after", 0, "begin behind the entry of this `id`")
	cmd.MarkFlagsMutuallyExclusive("since", "after")
	return cmd
}

// follow prints until ctx ends.
func (s *session) follow(ctx context.Context, f *audit.Follower) error {
	for {
		items, err := f.Next(ctx)
		for _, i := range items {
			if err := writeJSON(s.env.Stdout, i, ""); err != nil {
				return err
			}
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !pg.IsUnavailable(err) && !resilience.IsNetwork(err):
			return err
		case err != nil:
			s.note("the database is away, waiting: %v", err)
			if !pause.For(ctx, followAgain) {
				return context.Cause(ctx)
			}
		}
	}
}
