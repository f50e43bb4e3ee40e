package cli

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/deadletter"
)

func dlqRedrive(s *session) *cobra.Command {
	var change changeDLQ
	repeaters := false
	cmd := &cobra.Command{
		Use: "redrive --queue QUEUE", Short: "Move dead letters back into their work queue, the oldest first", Args: cobra.NoArgs,
		Long: "Move dead letters back into their work queue: only those that were there at the start, oldest first, each let go only\n" +
			"after the broker has confirmed its copy. Attempts start at 0 again. Messages redriven three times before are held\n" +
			"back. What is interrupted loses nothing: run it again to go on. Exits 3 when a part could not be moved.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.changeLetters(cmd.Context(), &change, "redrive", func(d *deadletter.DeadLetters, c deadletter.Common) (deadletter.Result, error) {
				return d.Redrive(cmd.Context(), deadletter.RedriveRequest{Common: c, IncludeRepeaters: repeaters})
			})
		},
	}
	change.add(s, cmd)
	cmd.Flags().BoolVar(&repeaters, "include-repeaters", false, fmt.Sprintf("also what was redriven %d times or more", deadletter.MaxRedrives))
	return cmd
}

func dlqDiscard(s *session) *cobra.Command {
	var change changeDLQ
	cmd := &cobra.Command{
		Use: "discard --queue QUEUE --reason TEXT", Short: "Drop dead letters, with a reason in the audit", Args: cobra.NoArgs,
		Long: "Drop dead letters. Each is in the audit, with the reason, before it is gone, and whole in an archive for 30 days:\n" +
			"`surefoot dlq restore` puts it back.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if change.reason = strings.TrimSpace(change.reason); change.reason == "" {
				return usageErrorf("", "--reason is required: it is kept in the audit")
			}
			return s.changeLetters(cmd.Context(), &change, "discard", func(d *deadletter.DeadLetters, c deadletter.Common) (deadletter.Result, error) {
				return d.Discard(cmd.Context(), deadletter.DiscardRequest{Common: c})
			})
		},
	}
	change.add(s, cmd)
	return cmd
}

// changeDLQ are the flags of commands that empty a dead-letter queue.
type changeDLQ struct {
	chooseFlags
	max    int
	rate   string
	reason string
}

func (c *changeDLQ) add(s *session, cmd *cobra.Command) {
	c.chooseFlags.add(cmd.Flags())
	boundFlag(cmd.Flags(), &c.max, "max", math.MaxInt32, "the most messages, oldest first, from 1; default all")
	cmd.Flags().StringVar(&c.rate, "rate", "", "the most messages a second, such as `50/s`; default no limit")
	cmd.Flags().StringVar(&c.reason, "reason", "", "why, for the audit")
	s.changeFlags(cmd)
	s.outputFlag(cmd)
}

func (s *session) changeLetters(
	ctx context.Context, change *changeDLQ, verb string, do func(*deadletter.DeadLetters, deadletter.Common) (deadletter.Result, error),
) error {
	c, err := s.common(change, verb)
	if err != nil {
		return err
	}
	d, who, err := s.deadLetters(ctx)
	if err != nil {
		return err
	}
	c.Who = who
	told := s.progress(map[string]string{"redrive": "redriven", "discard": "discarded"}[verb], 0)
	done := 0
	c.Progress = func(p deadletter.Progress) { told.add(p.Done - done); done = p.Done }
	result, err := do(d, c)
	told.end()
	if result.DLQ != "" && (err == nil || result.Done > 0) {
		if rendered := s.renderResult(result, verb); rendered != nil {
			return rendered
		}
	}
	if result.Left.Repeaters > 0 {
		s.note("held back, because redriven %d times before: %s; --include-repeaters moves these too", deadletter.MaxRedrives, counted(result.Left.Repeaters, "message"))
	}
	return outcomeOf(result, err)
}

func (s *session) renderResult(r deadletter.Result, verb string) error {
	done := map[string]string{"redrive": "redriven", "discard": "discarded"}[verb]
	if r.DryRun {
		done = "would be " + done
	}
	return renderOne(s, r, r.Run.String(), resultColumns(r, done)...)
}

// common reads the flags of a redrive or a discard.
func (s *session) common(change *changeDLQ, verb string) (deadletter.Common, error) {
	filter, err := change.filter(time.Now())
	if err != nil {
		return deadletter.Common{}, err
	}
	rate, err := perSecond(change.rate)
	if err != nil {
		return deadletter.Common{}, err
	}
	c := deadletter.Common{
		Queue: change.queue, Filter: filter, Max: change.max, Rate: rate, DryRun: s.dryRun, Reason: change.reason,
		Wait: change.wait, Waiting: s.waiting(change.queue),
	}
	if !s.yes {
		c.Confirm = func(ctx context.Context, plan deadletter.Result) error {
			target := plan.DLQ
			if verb == "redrive" {
				target += " to " + plan.Queue
			}
			return s.confirm(ctx, question{Verb: verb, Count: plan.Done, Thing: "message", Target: target})
		}
	}
	return c, nil
}
