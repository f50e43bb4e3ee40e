package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/deadletter"
)

func dlqRuns(s *session) *cobra.Command {
	return noun("runs", "Look after redrives: list, show, pause, resume, cancel", runsLs(s), runsShow(s), runsPause(s), runsResume(s), runsCancel(s))
}

func runsLs(s *session) *cobra.Command {
	queue, plans, limit := "", false, 50
	cmd := &cobra.Command{
		Use: "ls", Short: "List redrives, the newest first", Args: cobra.NoArgs,
		Long: "List redrives, the newest first. A run without an owner that is running has lost its process: a replica of `surefoot run`\n" +
			"goes on with it. Messages of a run that is running, paused or stopped belong to it until it is done or cancelled: no other run, no\n" +
			"discard and no edit takes them. HOLDS counts them.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, _, err := s.deadLetters(cmd.Context())
			if err != nil {
				return err
			}
			runs, err := d.Runs(cmd.Context(), queue, plans, limit)
			if err != nil {
				return badRequest(err)
			}
			s.doubtQueue(cmd.Context(), queue, len(runs))
			for _, r := range runs {
				if waiting := r.State == deadletter.RunPaused || r.State == deadletter.RunStopped; waiting {
					h := deadletter.Holding{Run: r.ID, State: r.State}
					s.note("run %s is %s and holds its %s: %s", r.ID, r.State, counted(r.Holds, "message"), h.Advice())
				}
			}
			return render(s, listing[deadletter.Run]{
				Items: runs, Empty: emptyRuns(plans), Name: func(r deadletter.Run) string { return r.ID.String() },
				Columns: []column[deadletter.Run]{
					{"RUN", func(r deadletter.Run) string { return r.ID.String() }},
					{"QUEUE", func(r deadletter.Run) string { return r.Queue }},
					{"STATE", func(r deadletter.Run) string { return string(r.State) }},
					{"CREATED", func(r deadletter.Run) string { return stampText(r.CreatedAt) }},
					{"WHO", func(r deadletter.Run) string { return r.Who }},
					{"CHOSEN", func(r deadletter.Run) string { return strconv.Itoa(r.Chosen) }},
					{"MOVED", func(r deadletter.Run) string { return strconv.Itoa(r.Moved) }},
					{"FAILED", func(r deadletter.Run) string { return strconv.Itoa(r.Failed) }},
					{"PENDING", func(r deadletter.Run) string { return strconv.Itoa(r.Pending) }},
					{"HOLDS", func(r deadletter.Run) string { return strconv.Itoa(r.Holds) }},
					{"OWNER", func(r deadletter.Run) string { return r.Owner }},
					{"NOTE", func(r deadletter.Run) string { return r.Note }},
				},
			})
		},
	}
	cmd.Flags().StringVar(&queue, "queue", "", "only this work `queue`, or its dead-letter queue")
	cmd.Flags().BoolVar(&plans, "plans", false, "also plans that were not started")
	boundFlag(cmd.Flags(), &limit, "limit", 10_000, "the most runs")
	s.outputFlag(cmd)
	return cmd
}

func emptyRuns(plans bool) string {
	if plans {
		return "no redrives and no plans"
	}
	return "no redrives; --plans also lists plans that were not started"
}

// letterStates are what can become of a message of a run.
var letterStates = []string{"ineligible", "pending", "moving", "moved", "processed", "failed", "missing", "left"} //nolint:gochecknoglobals // a constant

func runsShow(s *session) *cobra.Command {
	state, limit := "", 1000
	cmd := &cobra.Command{
		Use: "show RUN", Short: "Show a redrive: what was asked for, and what became of its messages", Args: cobra.ExactArgs(1),
		Long: "Show a redrive with what became of its messages: processed ones are in the inbox, failed ones are dead again. With\n" +
			"--state list those messages: " + strings.Join(letterStates, ", ") + ".",
		RunE: func(cmd *cobra.Command, args []string) error {
			if state != "" && !slices.Contains(letterStates, state) {
				return usageErrorf("use one of "+strings.Join(letterStates, ", "), "--state cannot be %q", state)
			}
			d, _, err := s.deadLetters(cmd.Context())
			if err != nil {
				return err
			}
			run, err := s.findRun(cmd.Context(), d, args[0])
			if err != nil {
				return err
			}
			if state == "" {
				return renderOne(s, run, run.ID.String(), runColumns(run)...)
			}
			letters, err := d.RunLetters(cmd.Context(), run.ID, state, limit)
			if err != nil {
				return err
			}
			return render(s, listing[deadletter.RunLetter]{
				Items: letters, Empty: "no message of the run is " + state, Name: func(l deadletter.RunLetter) string { return l.MessageID },
				Columns: []column[deadletter.RunLetter]{
					{"MESSAGE", func(l deadletter.RunLetter) string { return l.MessageID }},
					{"TYPE", func(l deadletter.RunLetter) string { return l.Type }},
					{"CLASS", func(l deadletter.RunLetter) string { return l.ErrorClass }},
					{"WAVE", func(l deadletter.RunLetter) string { return strconv.Itoa(l.Wave) }},
					{"STATE", func(l deadletter.RunLetter) string { return l.State }},
					{"REASON", func(l deadletter.RunLetter) string { return l.Reason }},
				},
			})
		},
	}
	cmd.Flags().StringVar(&state, "state", "", "list the messages in this `state`")
	boundFlag(cmd.Flags(), &limit, "limit", 1_000_000, "with --state the most messages")
	s.outputFlag(cmd)
	return cmd
}

func runColumns(run deadletter.Run) []column[deadletter.Run] {
	count := func(title string, n int) column[deadletter.Run] {
		return column[deadletter.Run]{title, func(deadletter.Run) string { return strconv.Itoa(n) }}
	}
	text := func(title, value string) column[deadletter.Run] {
		return column[deadletter.Run]{title, func(deadletter.Run) string { return value }}
	}
	most := "no limit"
	if run.MaxFailures != nil {
		most = strconv.Itoa(int(*run.MaxFailures))
	}
	return []column[deadletter.Run]{
		text("run", run.ID.String()), text("queue", run.Queue), text("state", string(run.State)), text("note", run.Note),
		text("who", run.Who), text("reason", run.Reason), text("created", stampText(run.CreatedAt)), text("started", timeText(run.StartedAt)),
		text("ended", timeText(run.EndedAt)), text("owner", run.Owner), text("lease until", timeText(run.LeaseUntil)), text("filter", jsonText(run.Filter)), text("ramp", rampText(run)),
		text("max failures", most), count("wave", run.Wave), count("found", run.Found), count("not matching", run.NotMatching),
		count("ineligible", run.Ineligible), count("chosen", run.Chosen), count("pending", run.Pending), count("moved", run.Moved),
		count("processed", run.Processed), count("failed again", run.Failed), count("of these with the same failure", run.FailedSame),
		count("missing", run.Missing), count("left", run.Left), text("holds", holdsText(run)),
	}
}

func rampText(run deadletter.Run) string {
	sizes := make([]string, len(run.Ramp))
	for i, size := range run.Ramp {
		sizes[i] = strconv.Itoa(int(size))
	}
	return strings.Join(sizes, ", ")
}

// holdsText says which messages are the run's own, and until when.
func holdsText(run deadletter.Run) string {
	if run.Holds == 0 {
		return "nothing"
	}
	return counted(run.Holds, "message") + ": " + deadletter.Holding{Run: run.ID, State: run.State}.Advice()
}

func runsPause(s *session) *cobra.Command {
	return runVerb(s, "pause", "Keep a redrive from moving anything more, until it is resumed",
		"What is on its way is finished, which takes up to a second or two. Its messages still belong to the run. It asks nothing: there is nothing\n"+
			"that resume does not undo.",
		func(ctx context.Context, d *deadletter.DeadLetters, r runChange) error {
			if err := d.PauseRun(ctx, r.run.ID, r.who, r.reason); err != nil {
				return err
			}
			s.note("run %s of %s is paused; `surefoot dlq runs resume %s` goes on", r.run.ID, r.run.Queue, r.run.ID)
			return nil
		})
}

func runsCancel(s *session) *cobra.Command {
	return runVerb(s, "cancel", "End a redrive for good; what it has moved stays moved",
		"The messages that it has not moved stay in the dead-letter queue, and are free for another run.",
		func(ctx context.Context, d *deadletter.DeadLetters, r runChange) error {
			if err := d.CancelRun(ctx, r.run.ID, r.who, r.reason); err != nil {
				return err
			}
			s.note("run %s of %s is cancelled", r.run.ID, r.run.Queue)
			return nil
		})
}

func runsResume(s *session) *cobra.Command {
	failures := -1
	var cmd *cobra.Command
	cmd = runVerb(s, "resume", "Go on with a redrive that was paused or stopped, or whose process has gone",
		"It goes on in this process, like `surefoot dlq redrive`; not while another has its lease, which lasts for 30 s after that process has\n"+
			"died: `surefoot dlq runs show` tells until when. A run that stopped for its failures stops again at once, unless --max-failures\n"+
			"allows more; a negative number takes the limit away. One whose first wave of a ramp failed goes no further, whatever is allowed:\n"+
			"cancel it, and redrive anew when the cause is gone.",
		func(ctx context.Context, d *deadletter.DeadLetters, r runChange) error {
			request := deadletter.DriveRequest{Run: r.run.ID, Who: r.who}
			if cmd.Flags().Changed("max-failures") {
				request.MaxFailures = &failures
			}
			return s.drive(ctx, d, request, r.run.State)
		})
	cmd.Flags().IntVar(&failures, "max-failures", -1, "stop when more than this have come back with the same failure, all that came before included; default that of the run")
	return cmd
}

// runChange is what a verb of a run works on.
type runChange struct {
	run         deadletter.Run
	who, reason string
}

func runVerb(s *session, verb, short, long string, do func(context.Context, *deadletter.DeadLetters, runChange) error) *cobra.Command {
	reason := ""
	cmd := &cobra.Command{
		Use: verb + " RUN", Short: short, Long: short + ". " + long, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, who, err := s.deadLetters(cmd.Context())
			if err != nil {
				return err
			}
			run, err := s.findRun(cmd.Context(), d, args[0])
			if err != nil {
				return err
			}
			id := run.ID
			if s.dryRun {
				s.note("would %s run %s of %s: %s, %d of %d moved", verb, id, run.Queue, run.State, run.Moved, run.Chosen)
				return nil
			}
			target := fmt.Sprintf("run %s of %s, with %d pending", id, run.Queue, run.Pending)
			if verb != "pause" { // the brake
				if err := s.confirm(cmd.Context(), question{Verb: verb, Count: 1, Target: target}); err != nil {
					return err
				}
			}
			return badRequest(do(cmd.Context(), d, runChange{run: run, who: who, reason: strings.TrimSpace(reason)}))
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit")
	s.changeFlags(cmd)
	s.outputFlag(cmd)
	return cmd
}
