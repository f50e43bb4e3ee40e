package cli

import (
	"errors"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/deadletter"
)

func dlqLs(s *session) *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use: "ls", Short: "List dead-letter queues with depth, age of the oldest message and owner", Args: cobra.NoArgs,
		Long: "List the dead-letter queues of the configured topology. The age is that of the message at the head: since it\n" +
			"failed last, else since the broker dead-lettered it. A queue that somebody works on is listed without it, with\n" +
			"who that is; its messages include those that are held meanwhile. One that cannot be looked at says why in its note;\n" +
			"exits 3 then.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, who, err := s.deadLetters(cmd.Context())
			if err != nil {
				return err
			}
			depths, err := d.List(cmd.Context(), deadletter.ListRequest{All: all, Who: who})
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
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "every queue of the vhost that ends in .dlq, by the management API")
	s.outputFlag(cmd)
	return cmd
}

func oldestText(d deadletter.Depth) string {
	if d.OldestAt.IsZero() {
		return ""
	}
	return (time.Duration(d.OldestSeconds) * time.Second).String()
}
