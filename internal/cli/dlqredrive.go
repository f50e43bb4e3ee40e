package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/deadletter"
)

// redriver is one `dlq redrive`.
type redriver struct {
	session   *session
	change    changeDLQ
	repeaters bool
	reprocess bool
	plan      string
	ramp      string
	settle    time.Duration
	failures  int
}

func dlqRedrive(s *session) *cobra.Command {
	r := &redriver{session: s}
	cmd := &cobra.Command{
		Use: "redrive --queue QUEUE", Short: "Move dead letters back into their work queue, the oldest first, as a run that survives everything", Args: cobra.NoArgs,
		Long: "Move dead letters back into their work queue. What is chosen is fixed and counted before anything moves, and exactly that is\n" +
			"moved, oldest first, each let go only after the broker has confirmed its copy. Attempts start at 0 again. Left out are\n" +
			"messages that the inbox knows as processed, those redriven three times before, and those that died before what the inbox\n" +
			"remembers, for whether they were processed is not known.\n\n" +
			"--dry-run writes the plan down and prints its id; --plan ID does exactly that plan. --ramp 1,5,50 moves waves of these sizes\n" +
			"first: all of the first must be processed before the second begins, and each must have settled before the next; then the\n" +
			"rest follows. The run stops when more than --max-failures come back with the same failure. Ctrl-C pauses it, see\n" +
			"`surefoot dlq runs`. When this process dies, any replica of `surefoot run` goes on. Exits 3 when a part could\n" +
			"not be moved, the run was halted, or a part belongs to another run that has not ended, 1 when all do; messages that are left out as\n" +
			"above do not count, even all of them.",
		RunE: func(cmd *cobra.Command, _ []string) error { return r.run(cmd) },
	}
	r.change.add(s, cmd)
	flags := cmd.Flags()
	flags.BoolVar(&r.repeaters, "include-repeaters", false, fmt.Sprintf("also what was redriven %d times or more", deadletter.MaxRedrives))
	flags.BoolVar(&r.reprocess, "allow-reprocess", false, "also what died before what the inbox remembers: it may be processed a second time")
	flags.StringVar(&r.plan, "plan", "", "carry out the plan of this `id`, that --dry-run has made, and nothing else")
	flags.StringVar(&r.ramp, "ramp", "", "`sizes` of the first waves, such as 1,5,50; the first is the canary")
	flags.DurationVar(&r.settle, "settle", 10*time.Minute, "how long a wave of the ramp may take until each message is processed or dead again, its retries included; then the run pauses")
	flags.IntVar(&r.failures, "max-failures", -1, "stop when more than this come back with the same failure; default no limit, with --ramp 0")
	return cmd
}

func (r *redriver) run(cmd *cobra.Command) error {
	ctx, s := cmd.Context(), r.session
	if r.plan != "" {
		return r.carryOut(cmd)
	}
	request, err := r.request(cmd)
	if err != nil {
		return err
	}
	d, who, err := s.deadLetters(ctx)
	if err != nil {
		return err
	}
	request.Who = who
	run, err := d.Plan(ctx, request)
	if err != nil {
		return badRequest(err)
	}
	result, err := d.RunResult(ctx, run)
	if err != nil {
		return err
	}
	if s.dryRun || result.Done == 0 {
		return r.planned(ctx, d, result)
	}
	if err := r.ask(ctx, result); err != nil {
		return errors.Join(err, d.DropPlan(ctx, run.ID))
	}
	return s.drive(ctx, d, deadletter.DriveRequest{Run: run.ID, Who: who}, deadletter.RunPlanned)
}

// planned shows a plan that is not carried out now.
func (r *redriver) planned(ctx context.Context, d *deadletter.DeadLetters, result deadletter.Result) error {
	s := r.session
	result.DryRun = s.dryRun
	if err := s.renderResult(result, "redriven"); err != nil {
		return err
	}
	s.held(result)
	s.doubtGroup(ctx, d, result.Queue, r.change.fingerprint, result.Done)
	if result.Done == 0 {
		if err := d.DropPlan(ctx, result.Run); err != nil || s.dryRun {
			return err
		}
		return leftToRuns(result)
	}
	for _, p := range result.Problems {
		s.note("%s  %s", orDash(p.ID), p.Reason)
	}
	run, err := d.GetRun(ctx, result.Run)
	if err != nil {
		return err
	}
	s.note("%s", pace(run))
	s.note("this is plan %s, good for a day: surefoot dlq redrive --plan %s", result.Run, result.Run)
	return nil
}

// pace says how a plan will be carried out.
func pace(run deadletter.Run) string {
	text := "all at once"
	if len(run.Ramp) > 0 {
		text = "in waves of " + rampText(run) + ", then the rest; each has " + run.Settle.String() + " to settle"
	}
	if run.Rate > 0 {
		text += fmt.Sprintf("; at most %g a second", run.Rate)
	}
	if run.MaxFailures == nil {
		return "it would move " + text + "; failures do not stop it"
	}
	return fmt.Sprintf("it would move %s; it stops when more than %d come back with the same failure", text, *run.MaxFailures)
}

// held says how to get what was left out.
func (s *session) held(result deadletter.Result) {
	if n := result.Left.Repeaters; n > 0 {
		s.note("held back, because redriven %d times before: %s; --include-repeaters moves these too", deadletter.MaxRedrives, counted(n, "message"))
	}
	if n := result.Left.Expired; n > 0 {
		s.note("held back, because they died before what the inbox remembers: %s; --allow-reprocess moves these too", counted(n, "message"))
	}
	for _, h := range result.HeldBy {
		s.note("held back, because run %s is %s and has them: %s; %s", h.Run, h.State, counted(h.Count, "message"), h.Advice())
	}
	if n := result.Left.InRun; n > 0 && len(result.HeldBy) == 0 {
		s.note("held back, because another run had them: %s; see `surefoot dlq runs ls`", counted(n, "message"))
	}
	if n := result.Left.Processed; n > 0 {
		s.note("skipped, because the inbox has them as processed: %s; `surefoot dlq discard` drops them", counted(n, "message"))
	}
}

func (r *redriver) ask(ctx context.Context, result deadletter.Result) error {
	return r.session.confirm(ctx, question{
		Verb: "redrive", Count: result.Done, Thing: "message", Target: result.DLQ + " to " + result.Queue,
	})
}

// carryOut does a plan that was made before.
func (r *redriver) carryOut(cmd *cobra.Command) error {
	ctx, s := cmd.Context(), r.session
	for _, name := range []string{"queue", "type", "error-class", "error-contains", "fingerprint", "where", "id", "since", "max", "rate", "ramp", "settle", "include-repeaters", "allow-reprocess"} {
		if cmd.Flags().Changed(name) {
			return usageErrorf("make another plan with --dry-run", "--%s cannot change a plan", name)
		}
	}
	d, who, err := s.deadLetters(ctx)
	if err != nil {
		return err
	}
	run, err := s.findRun(ctx, d, r.plan)
	if err != nil {
		return err
	}
	id := run.ID
	if run.State != deadletter.RunPlanned {
		return usageErrorf("see `surefoot dlq runs show "+id.String()+"`", "plan %s was started already: it is %s", id, run.State)
	}
	result, err := d.RunResult(ctx, run)
	if err != nil {
		return err
	}
	if s.dryRun {
		return r.planned(ctx, d, result)
	}
	if err := r.ask(ctx, result); err != nil {
		return err
	}
	request := deadletter.DriveRequest{Run: id, Who: who}
	if cmd.Flags().Changed("max-failures") {
		request.MaxFailures = &r.failures
	}
	return s.drive(ctx, d, request, run.State)
}

func (r *redriver) request(cmd *cobra.Command) (deadletter.PlanRequest, error) {
	common, err := r.session.common(&r.change)
	if err != nil {
		return deadletter.PlanRequest{}, err
	}
	request := deadletter.PlanRequest{
		Common: common, IncludeRepeaters: r.repeaters, AllowReprocess: r.reprocess,
		RunSettings: deadletter.RunSettings{Settle: r.settle, MaxFailures: r.failures},
	}
	for size := range strings.SplitSeq(r.ramp, ",") {
		if r.ramp == "" {
			break
		}
		n, err := strconv.Atoi(strings.TrimSpace(size))
		if err != nil || n < 1 {
			return request, usageErrorf("write sizes from 1, such as --ramp 1,5,50", "--ramp cannot be %q", r.ramp)
		}
		request.Ramp = append(request.Ramp, n)
	}
	if len(request.Ramp) > 0 && !cmd.Flags().Changed("max-failures") {
		request.MaxFailures = 0
	}
	return request, nil
}

// drive drives a run from this process, and pauses it when it is interrupted.
func (s *session) drive(ctx context.Context, d *deadletter.DeadLetters, request deadletter.DriveRequest, from deadletter.RunState) error {
	told := s.progress("redriven")
	request.Progress = func(r deadletter.Run) { told.reach(r.Moved, r.Chosen) }
	request.Waiting = func(h deadletter.Holder) { s.note("waiting for %s (%s)", h.Who, h.Action) }
	var run deadletter.Run
	var err error
	if from == deadletter.RunRunning {
		run, err = d.DriveRun(ctx, request)
	} else {
		run, err = d.StartRun(ctx, request, from != deadletter.RunPlanned)
	}
	told.end()
	if run.ID == uuid.Nil || errors.Is(err, deadletter.ErrRunOwned) {
		return badRequest(err)
	}
	if ctx.Err() != nil && run.State == deadletter.RunRunning {
		if paused := d.PauseRun(ctx, run.ID, request.Who, "interrupted"); paused != nil {
			return errors.Join(err, paused)
		}
		s.note("the run is paused with %d of %d moved; go on with `surefoot dlq runs resume %s`", run.Moved, run.Chosen, run.ID)
		return err
	}
	result, unread := d.RunResult(context.WithoutCancel(ctx), run)
	if unread != nil {
		return errors.Join(err, unread)
	}
	if err == nil || result.Done > 0 {
		if rendered := s.renderResult(result, "redriven"); rendered != nil {
			return rendered
		}
	}
	s.held(result)
	if open := run.Moved - run.Processed - run.Failed; err == nil && run.State == deadletter.RunDone && open > 0 {
		s.note("back in %s and not yet processed: %s; `surefoot dlq runs show %s` says what becomes of them", run.Queue, counted(open, "message"), run.ID)
	}
	if err := ended(run, result, err); err != nil {
		return err
	}
	return leftToRuns(result)
}

// ended turns the end of a run into the command's error, and so into its exit code.
func ended(run deadletter.Run, result deadletter.Result, err error) error {
	switch {
	case err != nil && run.State == deadletter.RunRunning:
		err = fmt.Errorf("%w; the run goes on when a replica of `surefoot run` takes it up, or with `surefoot dlq runs resume %s`", err, run.ID)
		if result.Done > 0 {
			return partly(err)
		}
		return err
	case err != nil, run.State == deadletter.RunDone:
		return outcomeOf(result, err)
	}
	err = fmt.Errorf("the run is %s, %d of %d moved: %s", run.State, run.Moved, run.Chosen, run.Note)
	hint := "`surefoot dlq runs show " + run.ID.String() + "`, then `surefoot dlq runs resume` or cancel; what is not moved is held for it"
	if run.State == deadletter.RunStopped && run.Wave == 1 && len(run.Ramp) > 0 { // a canary that failed stops it again, whatever is allowed
		hint = "`surefoot dlq runs show " + run.ID.String() + "`, then `surefoot dlq runs cancel " + run.ID.String() +
			"`, which frees what is not moved; redrive anew when the cause is gone"
	}
	return &exitError{code: ExitPartly, err: err, hint: hint}
}
