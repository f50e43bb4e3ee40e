package cli

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/deadletter"
)

func dlqLs(s *session) *cobra.Command {
	var (
		choose chooseFlags
		limit  = 100
		all    bool
	)
	cmd := &cobra.Command{
		Use: "ls", Short: "List dead-letter queues with depth, age and owner, or with --queue the messages of one", Args: cobra.NoArgs,
		Long: "List the dead-letter queues of the configured topology. The age is that of the message at the head: since it\n" +
			"failed last, else since the broker dead-lettered it. A queue that somebody works on is listed without it, with\n" +
			"who that is; its messages include those that are held meanwhile. One that cannot be looked at says why in its note;\n" +
			"exits 3 then.\n\n" +
			"With --queue, list the messages in that dead-letter queue, the oldest first, one line each. Nothing is changed.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if choose.queue != "" {
				return s.listLetters(cmd.Context(), &choose, limit)
			}
			if choose.chooses() || cmd.Flags().Changed("limit") {
				return usageErrorf("name one of `surefoot dlq ls`", "messages are chosen in one queue: --queue is missing")
			}
			return s.listQueues(cmd.Context(), all)
		},
	}
	choose.add(cmd.Flags())
	cmd.Flags().Lookup("queue").Usage = "list the messages of this work `queue`'s dead-letter queue"
	boundFlag(cmd.Flags(), &limit, "limit", deadletter.MaxShow, "with --queue the most messages")
	cmd.Flags().BoolVar(&all, "all", false, "every queue of the vhost that ends in .dlq, by the management API")
	s.outputFlag(cmd)
	return cmd
}

func (s *session) listQueues(ctx context.Context, all bool) error {
	d, who, err := s.deadLetters(ctx)
	if err != nil {
		return err
	}
	depths, err := d.List(ctx, deadletter.ListRequest{All: all, Who: who})
	unseen, partial := errors.AsType[*deadletter.UnseenError](err)
	if err != nil && !partial {
		return badRequest(err)
	}
	err = render(s, listing[deadletter.Depth]{
		Items: depths,
		Empty: "the configuration names no queues; --all lists every queue that ends in .dlq",
		Name:  func(d deadletter.Depth) string { return d.DLQ },
		Columns: []column[deadletter.Depth]{
			{"QUEUE", func(d deadletter.Depth) string { return d.DLQ }},
			{"MESSAGES", func(d deadletter.Depth) string { return strconv.Itoa(d.Letters) }},
			{"OLDEST", oldestText},
			{"OWNER", func(d deadletter.Depth) string { return d.Owner }},
			{"RUNBOOK", func(d deadletter.Depth) string { return d.Runbook }},
			{"NOTE", func(d deadletter.Depth) string { return d.Note }},
		},
	})
	if err == nil && partial {
		err = partly(unseen)
	}
	return err
}

// listLetters lists without bodies; `dlq show` has everything.
func (s *session) listLetters(ctx context.Context, choose *chooseFlags, limit int) error {
	filter, err := choose.filter(time.Now())
	if err != nil {
		return err
	}
	d, who, err := s.deadLetters(ctx)
	if err != nil {
		return err
	}
	letters, err := d.Show(ctx, deadletter.ShowRequest{
		Queue: choose.queue, Filter: filter, Limit: limit, Preview: -1, Who: who, Wait: choose.wait, Waiting: s.waiting(choose.queue),
	})
	if err != nil {
		return badRequest(err)
	}
	s.noteLimit(len(letters), limit)
	return render(s, listing[deadletter.Letter]{
		Items: letters,
		Empty: "no message matches",
		Name:  func(l deadletter.Letter) string { return l.ID },
		Columns: []column[deadletter.Letter]{
			{"MESSAGE", func(l deadletter.Letter) string { return l.ID }},
			{"TYPE", func(l deadletter.Letter) string { return l.Type }},
			{"KEY", func(l deadletter.Letter) string { return l.Key }},
			{"DIED", func(l deadletter.Letter) string { return stampText(l.DiedAt.Time) }},
			{"CLASS", func(l deadletter.Letter) string { return l.ErrorClass }},
			{"REDRIVES", func(l deadletter.Letter) string { return strconv.FormatInt(l.Redrives, 10) }},
			{"FINGERPRINT", func(l deadletter.Letter) string { return l.Fingerprint }},
			{"ERROR", errorText},
		},
	})
}

func errorText(l deadletter.Letter) string {
	if l.Failure == nil {
		return ""
	}
	return firstLine(l.Failure.Message)
}

func oldestText(d deadletter.Depth) string {
	if d.OldestAt.IsZero() {
		return ""
	}
	return (time.Duration(d.OldestSeconds) * time.Second).String()
}
