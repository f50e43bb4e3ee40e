package cli

import (
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/audit"
)

func auditCommand(s *session) *cobra.Command {
	return noun("audit", "See what operators did: who, from where, when, what, why, and the outcome for each message", auditLs(s))
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
			"each message; all of them share its id. Entries cannot be changed, and are kept for 400 days. -o jsonl is fit for a log sink.",
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
			if len(items) == f.Limit {
				s.note("there may be more: this is the limit of %d", f.Limit)
			}
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
