package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/reconcile"
)

const (
	defaultSuspects = 100
	maxSuspects     = 10_000
)

func reconcileCommand(s *session) *cobra.Command {
	return noun("reconcile", "Ask those who know about rows in doubt, and mend what is wrong", reconcileRun(s), reconcileLs(s))
}

// reconcileRun is the role, and with --once a single cycle.
func reconcileRun(s *session) *cobra.Command {
	run := roleCommand(s, "Reconcile until stopped, or once", need{database: true}, "reconcile")
	run.Long = "Reconcile until stopped: a cycle of each rule at once and then every interval, sooner where a suspect without an answer is due.\n" +
		"With --once one cycle is run, and what it did is told rule by rule; the exit code is 3 when suspects have no answer or could\n" +
		"not be changed. They are asked about again later. With --once --dry-run nobody is asked, and the suspects are listed."
	forever := run.RunE
	var once bool
	var rules []string
	run.RunE = func(cmd *cobra.Command, args []string) error {
		if !once {
			if s.dryRun || len(rules) > 0 || cmd.Flags().Changed("output") {
				return usageErrorf("add --once", "--rule, --dry-run and --output go with --once only")
			}
			return forever(cmd, args)
		}
		return s.reconcileOnce(cmd.Context(), rules)
	}
	run.Flags().BoolVar(&once, "once", false, "run one cycle and tell what it did")
	run.Flags().BoolVar(&s.dryRun, "dry-run", false, "list the suspects, ask nobody and change nothing; exits 0 whatever there is")
	ruleFlag(run, &rules)
	s.outputFlag(run)
	return run
}

func ruleFlag(cmd *cobra.Command, rules *[]string) {
	cmd.Flags().StringSliceVar(rules, "rule", nil, "only this `rule`; may be repeated")
}

// reconciler makes one for a command, which logs to stderr, and closes it when the command ends.
func (s *session) reconciler(ctx context.Context, rules []string) (*app.Reconciler, error) {
	db, err := s.database(ctx)
	if err != nil {
		return nil, err
	}
	if len(db.config.Reconcile.Rules) == 0 {
		return nil, usageErrorf("add one under reconcile.rules in surefoot.yaml", "there are no reconcile rules")
	}
	if err := knownRules(db.config, rules); err != nil {
		return nil, err
	}
	logger, err := s.logger(db.config.Log)
	if err != nil {
		return nil, err
	}
	r, err := app.NewReconciler(app.ReconcilerOptions{Config: db.config, Pool: db.pool, Host: s.env.Host, Logger: logger})
	if err != nil {
		return nil, &app.SetupError{Role: "reconcile", Err: err}
	}
	s.onClose(func() error { r.Close(); return nil })
	return r, nil
}

func knownRules(c *config.Config, rules []string) error {
	var known []string
	for _, rule := range c.Reconcile.Rules {
		known = append(known, rule.Name)
	}
	for _, rule := range rules {
		if !slices.Contains(known, rule) {
			return usageErrorf("the rules are "+strings.Join(known, ", "), "there is no reconcile rule %q", rule)
		}
	}
	return nil
}

func (s *session) reconcileOnce(ctx context.Context, rules []string) error {
	r, err := s.reconciler(ctx, rules)
	if err != nil {
		return err
	}
	if s.dryRun {
		return s.listSuspects(ctx, r, defaultSuspects, rules)
	}
	if _, err := r.Check(ctx); err != nil { // before anybody is asked
		return err
	}
	results, err := r.Once(ctx, rules...)
	if failed := render(s, reconcileResults(results)); failed != nil {
		return failed
	}
	if err != nil {
		return err
	}
	return openSuspects(results)
}

// openSuspects is the error of a cycle that could not settle every suspect.
func openSuspects(results []reconcile.Result) error {
	var unanswered, failed int
	for _, r := range results {
		unanswered, failed = unanswered+r.Unanswered, failed+r.Failed
	}
	if unanswered+failed == 0 {
		return nil
	}
	return partly(fmt.Errorf("no answer about %s, and %s could not be changed; both are tried again later: see `surefoot reconcile ls`",
		counted(unanswered, "suspect"), counted(failed, "row")))
}

func reconcileResults(results []reconcile.Result) listing[reconcile.Result] {
	figure := func(of func(reconcile.Result) int) func(reconcile.Result) string {
		return func(r reconcile.Result) string { return strconv.Itoa(of(r)) }
	}
	return listing[reconcile.Result]{
		Items: results,
		Name:  func(r reconcile.Result) string { return r.Rule },
		Columns: []column[reconcile.Result]{
			{"RULE", func(r reconcile.Result) string { return r.Rule }},
			{"CHECKED", figure(func(r reconcile.Result) int { return r.Checked })},
			{"MISMATCHES", figure(func(r reconcile.Result) int { return r.Mismatches })},
			{"KEPT", figure(func(r reconcile.Result) int { return r.Kept })},
			{"UNANSWERED", figure(func(r reconcile.Result) int { return r.Unanswered })},
			{"LOST", figure(func(r reconcile.Result) int { return r.Lost })},
			{"FAILED", figure(func(r reconcile.Result) int { return r.Failed })},
			{"MORE", func(r reconcile.Result) string { return strconv.FormatBool(r.More) }},
			{"RUN", func(r reconcile.Result) string { return r.Run }},
		},
	}
}

func reconcileLs(s *session) *cobra.Command {
	limit := defaultSuspects
	var runs bool
	var rules []string
	cmd := &cobra.Command{
		Use: "ls", Short: "List what is suspect now, what is due, and what was answered last", Args: cobra.NoArgs,
		Long: "List what is suspect now, those that are due first, with the last answer or why there was none. Nobody is asked, and nothing\n" +
			"changes. With --runs the last runs are listed instead.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := s.reconciler(cmd.Context(), rules)
			if err != nil {
				return err
			}
			if runs {
				return s.listRuns(cmd.Context(), r, limit, rules)
			}
			return s.listSuspects(cmd.Context(), r, limit, rules)
		},
	}
	boundFlag(cmd.Flags(), &limit, "limit", maxSuspects, "the most suspects of each rule, or runs of all")
	cmd.Flags().BoolVar(&runs, "runs", false, "list the last runs, newest first")
	ruleFlag(cmd, &rules)
	s.outputFlag(cmd)
	return cmd
}

func (s *session) listSuspects(ctx context.Context, r *app.Reconciler, limit int, rules []string) error {
	suspects, err := r.List(ctx, limit, rules...)
	if err != nil {
		return err
	}
	return render(s, listing[reconcile.Listed]{
		Items: suspects,
		Empty: "nothing is suspect",
		Name:  func(l reconcile.Listed) string { return l.Key },
		Columns: []column[reconcile.Listed]{
			{"RULE", func(l reconcile.Listed) string { return l.Rule }},
			{"KEY", func(l reconcile.Listed) string { return l.Key }},
			{"STATUS", func(l reconcile.Listed) string { return l.Status }},
			{"SINCE", func(l reconcile.Listed) string { return stampText(l.Since.Time) }},
			{"DUE", func(l reconcile.Listed) string { return strconv.FormatBool(l.Due) }},
			{"NEXT CHECK", func(l reconcile.Listed) string { return timeText(l.NextCheck) }},
			{"CHECKS", func(l reconcile.Listed) string { return strconv.Itoa(l.Checks) }},
			{"LAST ANSWER", func(l reconcile.Listed) string { return l.Answer }},
			{"ERROR", func(l reconcile.Listed) string { return l.Error }},
		},
	})
}

func (s *session) listRuns(ctx context.Context, r *app.Reconciler, limit int, rules []string) error {
	runs, err := r.Runs(ctx, limit, rules...)
	if err != nil {
		return err
	}
	figure := func(of func(reconcile.RunRecord) int) func(reconcile.RunRecord) string {
		return func(r reconcile.RunRecord) string { return strconv.Itoa(of(r)) }
	}
	return render(s, listing[reconcile.RunRecord]{
		Items: runs,
		Empty: "no run is on record",
		Name:  func(r reconcile.RunRecord) string { return r.ID },
		Columns: []column[reconcile.RunRecord]{
			{"RUN", func(r reconcile.RunRecord) string { return r.ID }},
			{"RULE", func(r reconcile.RunRecord) string { return r.Rule }},
			{"HOST", func(r reconcile.RunRecord) string { return r.Host }},
			{"STARTED", func(r reconcile.RunRecord) string { return stampText(r.StartedAt) }},
			{"ENDED", func(r reconcile.RunRecord) string { return timeText(r.EndedAt) }},
			{"CHECKED", figure(func(r reconcile.RunRecord) int { return r.Checked })},
			{"MISMATCHES", figure(func(r reconcile.RunRecord) int { return r.Mismatches })},
			{"UNANSWERED", figure(func(r reconcile.RunRecord) int { return r.Unanswered })},
			{"FAILED", figure(func(r reconcile.RunRecord) int { return r.Failed })},
			{"ERROR", func(r reconcile.RunRecord) string { return r.Error }},
		},
	})
}
