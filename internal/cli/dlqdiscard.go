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

func dlqDiscard(s *session) *cobra.Command {
	var change changeDLQ
	cmd := &cobra.Command{
		Use: "discard --queue QUEUE --reason TEXT", Short: "Drop dead letters, with a reason in the audit", Args: cobra.NoArgs,
		Long: "Drop dead letters. Each is in the audit, with the reason, before it is gone, and whole in an archive for 30 days:\n" +
			"`surefoot dlq restore` puts it back. Messages of a run that has not ended are left to it, also while it is paused or stopped:\n" +
			"resume or cancel it first. Exits 3 when some were left, 1 when all were.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			change.reason = strings.TrimSpace(change.reason)
			err := missing("dlq discard", "`surefoot dlq ls` lists queues; the reason is kept in the audit",
				required{"--queue", change.queue != ""}, required{"--reason", change.reason != ""})
			if err != nil {
				return err
			}
			return s.discard(cmd.Context(), &change)
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

func (s *session) discard(ctx context.Context, change *changeDLQ) error {
	c, err := s.common(change)
	if err != nil {
		return err
	}
	d, who, err := s.deadLetters(ctx)
	if err != nil {
		return err
	}
	c.Who = who
	if !s.yes {
		c.Confirm = func(ctx context.Context, plan deadletter.Result) error {
			return s.confirm(ctx, question{Verb: "discard", Count: plan.Done, Thing: "message", Target: plan.DLQ})
		}
	}
	told := s.progress("discarded")
	c.Progress = func(p deadletter.Progress) { told.reach(p.Done, 0) }
	result, err := d.Discard(ctx, deadletter.DiscardRequest{Common: c})
	told.end()
	if result.DLQ != "" && (err == nil || result.Done > 0) {
		if rendered := s.renderResult(result, "discarded"); rendered != nil {
			return rendered
		}
	}
	s.held(result)
	s.doubtGroup(ctx, d, change.queue, change.fingerprint, result.Done)
	if err := outcomeOf(result, err); err != nil || result.DryRun {
		return err
	}
	return leftToRuns(result)
}

// leftToRuns is the error of an operation that was asked for messages which runs have.
func leftToRuns(r deadletter.Result) error {
	if len(r.HeldBy) == 0 { // none, or their run has ended meanwhile
		return nil
	}
	h := r.HeldBy[0]
	err := fmt.Errorf("%s still in %s: run %s is %s and has them until it is done or cancelled", counted(r.Left.InRun, "message"), r.DLQ, h.Run, h.State)
	code := ExitFailed
	if r.Done > 0 {
		code = ExitPartly
	}
	return &exitError{code: code, err: err, hint: h.Advice()}
}

func (s *session) renderResult(r deadletter.Result, done string) error {
	if r.DryRun {
		done = "would be " + done
	}
	return renderOne(s, r, r.Run.String(), resultColumns(r, done)...)
}

// common reads the flags of a redrive or a discard.
func (s *session) common(change *changeDLQ) (deadletter.Common, error) {
	filter, err := change.filter(time.Now())
	if err != nil {
		return deadletter.Common{}, err
	}
	rate, err := perSecond(change.rate)
	if err != nil {
		return deadletter.Common{}, err
	}
	return deadletter.Common{
		Queue: change.queue, Filter: filter, Max: change.max, Rate: rate, DryRun: s.dryRun, Reason: change.reason,
		Wait: change.wait, Waiting: s.waiting(change.queue),
	}, nil
}
