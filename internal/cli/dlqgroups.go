package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/deadletter"
)

func dlqGroups(s *session) *cobra.Command {
	g := &groupLister{session: s, limit: 100}
	cmd := &cobra.Command{
		Use: "groups", Short: "Group dead letters by cause: how many, since when, and whether it gets worse", Args: cobra.NoArgs,
		Long: "Group the dead letters by queue, type, error class and cause, by the index that consumers fill; the largest first.\n" +
			"Ids and numbers in an error's text make no group of their own. LAST HOUR counts what died in the last hour, and in\n" +
			"the hour before. Nothing is looked at in the queues, unless --scan brings the index into line with them first: what the\n" +
			"broker itself or another program has dead-lettered is in the index only after a scan. `surefoot run` scans by itself.",
		RunE: func(cmd *cobra.Command, _ []string) error { return g.run(cmd.Context()) },
	}
	cmd.Flags().StringVar(&g.queue, "queue", "", "only this work `queue`, or its dead-letter queue")
	boundFlag(cmd.Flags(), &g.limit, "limit", deadletter.MaxGroups, "the most groups")
	cmd.Flags().BoolVar(&g.scan, "scan", false, "first bring the index into line with the queue, or with all of the configuration, by a look that changes nothing")
	cmd.Flags().DurationVar(&g.wait, "wait", 0, "with --scan how long to wait while somebody else works on a queue, such as 1m")
	s.outputFlag(cmd)
	return cmd
}

type groupLister struct {
	session *session
	queue   string
	limit   int
	scan    bool
	wait    time.Duration
}

func (g *groupLister) run(ctx context.Context) error {
	d, who, err := g.session.deadLetters(ctx)
	if err != nil {
		return err
	}
	var unscanned error
	if g.scan {
		if unscanned, err = g.scanAll(ctx, d, who); err != nil {
			return badRequest(err)
		}
	}
	groups, scanned, err := d.Groups(ctx, deadletter.GroupsRequest{Queue: g.queue, Limit: g.limit})
	if err != nil {
		return badRequest(err)
	}
	g.session.doubtQueue(ctx, g.queue, len(groups))
	g.tell(groups, scanned)
	err = render(g.session, listing[deadletter.FailureGroup]{
		Items: groups,
		Empty: "no dead letters are indexed",
		Name:  func(f deadletter.FailureGroup) string { return strconv.FormatInt(f.ID, 10) },
		Columns: []column[deadletter.FailureGroup]{
			{"GROUP", func(f deadletter.FailureGroup) string { return strconv.FormatInt(f.ID, 10) }},
			{"QUEUE", func(f deadletter.FailureGroup) string { return f.Queue }},
			{"TYPE", func(f deadletter.FailureGroup) string { return f.Type }},
			{"CLASS", func(f deadletter.FailureGroup) string { return f.ErrorClass }},
			{"FINGERPRINT", func(f deadletter.FailureGroup) string { return f.Fingerprint }},
			{"MESSAGES", messagesText},
			{"FIRST", func(f deadletter.FailureGroup) string { return stampText(f.FirstDead) }},
			{"LAST", func(f deadletter.FailureGroup) string { return stampText(f.LastDead) }},
			{"LAST HOUR", func(f deadletter.FailureGroup) string { return fmt.Sprintf("%d (before %d)", f.LastHour, f.HourBefore) }},
			{"VERSION", func(f deadletter.FailureGroup) string { return f.Version }},
			{"ERROR", func(f deadletter.FailureGroup) string { return firstLine(f.ErrorMessage) }},
			{"NOTE", func(f deadletter.FailureGroup) string { return f.Note }},
		},
	})
	if err == nil && unscanned != nil {
		err = partly(unscanned)
	}
	return err
}

// scanAll scans the queue that was named, or all; what keeps one from it keeps no other.
func (g *groupLister) scanAll(ctx context.Context, d *deadletter.DeadLetters, who string) (unscanned, err error) {
	queues := []string{g.queue}
	if g.queue == "" {
		queues = nil
		for _, q := range d.Queues() {
			queues = append(queues, q.Name)
		}
	}
	var failed []error
	for _, queue := range queues {
		_, err := d.Scan(ctx, deadletter.ScanRequest{Queue: queue, Who: who, Stays: true, Wait: g.wait, Waiting: g.session.waiting(queue)})
		if err != nil {
			if len(queues) == 1 || ctx.Err() != nil {
				return nil, err
			}
			failed = append(failed, fmt.Errorf("not scanned: %s: %w", deadletter.DLQ(queue), err))
		}
	}
	return errors.Join(failed...), nil
}

// tell says on stderr how far the index can be believed.
func (g *groupLister) tell(groups []deadletter.FailureGroup, scanned []deadletter.Scanned) {
	for _, q := range scanned {
		switch {
		case q.At == nil:
			g.session.note("%s was never scanned: only what its consumers have indexed is known; --scan looks", deadletter.DLQ(q.Queue))
		case q.Note != "":
			g.session.note("%s was last scanned at %s; since then: %s", deadletter.DLQ(q.Queue), stampText(*q.At), q.Note)
		case time.Since(*q.At) > 2*time.Hour:
			g.session.note("%s was last scanned at %s; --scan looks again", deadletter.DLQ(q.Queue), stampText(*q.At))
		}
	}
	g.session.noteLimit(len(groups), g.limit)
}

func messagesText(f deadletter.FailureGroup) string {
	if f.Copies > f.Messages {
		return fmt.Sprintf("%d (%d copies)", f.Messages, f.Copies)
	}
	return strconv.Itoa(f.Messages)
}

func dlqNote(s *session) *cobra.Command {
	remove := false
	cmd := &cobra.Command{
		Use: "note GROUP [TEXT]", Short: "Write on a group what is known of it, for whoever comes next", Args: cobra.RangeArgs(1, 2),
		Long: "Write a note on a group of `surefoot dlq groups`: who works on it, the ticket, what to do. It stays with the cause,\n" +
			"also when its messages have gone and come again. A new note replaces the one before it; all are in the audit, and so it asks nothing.",
		RunE: func(cmd *cobra.Command, args []string) error {
			group, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return usageErrorf("see the first column of `surefoot dlq groups`", "%q is not the number of a group", args[0])
			}
			text := strings.TrimSpace(strings.Join(args[1:], " "))
			if (text == "") != remove {
				return usageErrorf("", "give the note's text, or --remove without one")
			}
			d, who, err := s.deadLetters(cmd.Context())
			if err != nil {
				return err
			}
			if s.dryRun {
				s.note("would note on group %d: %s", group, text)
				return nil
			}
			return badRequest(d.Note(cmd.Context(), deadletter.NoteRequest{Group: group, Text: text, Who: who}))
		},
	}
	cmd.Flags().BoolVar(&remove, "remove", false, "remove the note")
	s.changeFlags(cmd)
	return cmd
}
