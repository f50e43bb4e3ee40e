package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/topology"
)

func topologyCommand(s *session) *cobra.Command {
	return noun("topology", "Compare, make, check and export the queues and exchanges of surefoot.yaml", topologyPlan(s), topologyApply(s), topologyVerify(s), topologyExport(s))
}

// topology makes what the topology commands work with.
func (s *session) topology() (*topology.Topology, topology.Spec, error) {
	c, err := s.config(need{amqp: true})
	if err != nil {
		return nil, topology.Spec{}, err
	}
	if len(c.Topology.Queues) == 0 {
		return nil, topology.Spec{}, usageErrorf("add one under topology.queues in surefoot.yaml", "there are no queues")
	}
	logger, err := s.logger(c.Log)
	if err != nil {
		return nil, topology.Spec{}, err
	}
	t, err := topology.New(topology.Options{
		Spec: c.Topology, URL: c.AMQP.URL.Reveal(), ManagementURL: c.AMQP.ManagementURL.Reveal(), TLS: c.AMQP.TLS(),
		Host: s.env.Host, Version: s.build().Version, Logger: logger,
	})
	return t, c.Topology, err
}

func topologyPlan(s *session) *cobra.Command {
	var prune bool
	cmd := &cobra.Command{
		Use: "plan", Short: "Show what apply would change; exits 6 if something would", Args: cobra.NoArgs,
		Long: "Show what apply would change, and what stands in its way, with the way out. Exits 6 if apply would\n" +
			"change something or cannot. What only apply --prune removes is shown, and counts with --prune.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, _, err := s.topology()
			if err != nil {
				return err
			}
			text, err := s.showPlan(cmd.Context(), t, prune)
			if err == nil && text != "" {
				err = differs("surefoot.yaml and the broker differ: %s", text)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&prune, "prune", false, "count what apply --prune removes as changes, too")
	s.outputFlag(cmd)
	return cmd
}

// showPlan prints the plan and says in a few words what an apply would do, nothing if it would do nothing.
func (s *session) showPlan(ctx context.Context, t *topology.Topology, prune bool) (text string, err error) {
	plan, err := t.Plan(ctx)
	if err != nil {
		return "", err
	}
	if err := render(s, changes(plan)); err != nil {
		return "", err
	}
	pending, conflicts := plan.Pending(prune), plan.Conflicts()
	if left := plan.Pending(true) - pending; left > 0 {
		s.note("%d of these only with --prune", left)
	}
	if pending > 0 || conflicts > 0 {
		text = "apply would make " + counted(pending, "change")
	}
	if conflicts > 0 {
		text += "; in its way, with other properties: " + counted(conflicts, "thing")
	}
	return text, nil
}

func changes(plan topology.Plan) listing[topology.Change] {
	return listing[topology.Change]{
		Items: plan.Changes,
		Empty: "the broker is as surefoot.yaml wants it",
		Name:  func(c topology.Change) string { return c.Name },
		Columns: []column[topology.Change]{
			{"ACTION", func(c topology.Change) string { return string(c.Action) }},
			{"KIND", func(c topology.Change) string { return string(c.Kind) }},
			{"NAME", func(c topology.Change) string { return c.Name }},
			{"STATE", changeState},
			{"DETAIL", func(c topology.Change) string { return c.Detail }},
		},
	}
}

func changeState(c topology.Change) string {
	switch {
	case c.Done:
		return "done"
	case c.Prune:
		return "with --prune"
	}
	return ""
}

func topologyApply(s *session) *cobra.Command {
	var prune bool
	cmd := &cobra.Command{
		Use: "apply", Short: "Make what is missing; exits 3 when something could not be made", Args: cobra.NoArgs,
		Long: "Make what is missing, in a safe order. Nothing that exists is changed, and nothing removed but with\n" +
			"--prune: bindings and queues that are no longer wanted, and retry and dead-letter queues with other\n" +
			"properties, which are made anew; queues only when they are empty and unused.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, spec, err := s.topology()
			if err != nil {
				return err
			}
			if s.dryRun {
				text, err := s.showPlan(cmd.Context(), t, prune)
				if text != "" {
					s.note("%s; nothing was changed", text)
				}
				return err
			}
			if err := s.confirmApply(cmd.Context(), t, spec, prune); err != nil {
				return err
			}
			return s.apply(cmd.Context(), t, prune)
		},
	}
	cmd.Flags().BoolVar(&prune, "prune", false, "also remove what is not in surefoot.yaml any more")
	s.changeFlags(cmd)
	s.outputFlag(cmd)
	return cmd
}

// confirmApply asks with the number of changes. Without the management API that is not known, and everything is declared.
func (s *session) confirmApply(ctx context.Context, t *topology.Topology, spec topology.Spec, prune bool) error {
	if s.yes {
		return nil
	}
	plan, err := t.Plan(ctx)
	if errors.Is(err, topology.ErrManagement) && !prune {
		s.note("what is there cannot be seen: %s", err)
		return s.confirm(ctx, question{Verb: "declare", Count: len(spec.Queues), Thing: "queue", Target: "surefoot.yaml, with their retry and dead-letter queues"})
	}
	if err != nil {
		return err
	}
	return s.confirm(ctx, question{Verb: "make", Count: plan.Pending(prune), Thing: "change", Target: "the broker's topology"})
}

func (s *session) apply(ctx context.Context, t *topology.Topology, prune bool) error {
	plan, err := t.Apply(ctx, topology.ApplyOptions{Prune: prune})
	if len(plan.Changes) > 0 || err == nil {
		if failed := render(s, changes(plan)); failed != nil {
			return failed
		}
	}
	switch {
	case errors.Is(err, topology.ErrConflicts):
		return partly(err)
	case err != nil:
		return err
	case plan.Pending(prune) > 0:
		return partly(fmt.Errorf("not made yet: %s; the details say why", counted(plan.Pending(prune), "change")))
	}
	return nil
}

// verdict is one finding about a queue, or that it is safe.
type verdict struct {
	Queue   string `json:"queue"`
	Safe    bool   `json:"safe"`
	About   string `json:"about"`
	Problem string `json:"problem"`
	Mend    string `json:"mend"`
}

func topologyVerify(s *session) *cobra.Command {
	var queue string
	cmd := &cobra.Command{
		Use: "verify", Short: "Check that no message can be lost on its way; exits 6 when one could", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, spec, err := s.topology()
			if err != nil {
				return err
			}
			if _, known := spec.Find(queue); queue != "" && !known {
				return usageErrorf(near(queue, queueNames(spec), "see topology.queues in surefoot.yaml"), "queue %q is not configured", queue)
			}
			return s.verify(cmd.Context(), t, spec, queue)
		},
	}
	cmd.Flags().StringVar(&queue, "queue", "", "only this work `queue`")
	s.outputFlag(cmd)
	return cmd
}

func queueNames(spec topology.Spec) []string {
	names := make([]string, len(spec.Queues))
	for i, q := range spec.Queues {
		names[i] = q.Name
	}
	return names
}

func (s *session) verify(ctx context.Context, t *topology.Topology, spec topology.Spec, only string) error {
	var verdicts []verdict
	unsafe := 0
	for _, q := range spec.Queues {
		if only != "" && q.Name != only {
			continue
		}
		report, err := t.Verify(ctx, q.Name)
		if err != nil {
			return fmt.Errorf("verify queue %s: %w", q.Name, err)
		}
		for _, unchecked := range report.Unchecked {
			s.note("not checked: %s", unchecked)
		}
		for _, f := range report.Findings {
			verdicts = append(verdicts, verdict{q.Name, false, f.Queue, f.Problem, f.Mend})
		}
		if len(report.Findings) == 0 {
			verdicts = append(verdicts, verdict{Queue: q.Name, Safe: true})
			continue
		}
		unsafe++
	}
	if err := render(s, verdictList(verdicts)); err != nil {
		return err
	}
	if unsafe > 0 {
		return differs("not safe to consume from: %s", counted(unsafe, "queue"))
	}
	return nil
}

func verdictList(verdicts []verdict) listing[verdict] {
	return listing[verdict]{
		Items: verdicts,
		Name:  func(v verdict) string { return v.Queue },
		Columns: []column[verdict]{
			{"QUEUE", func(v verdict) string { return v.Queue }},
			{"SAFE", func(v verdict) string {
				if v.Safe {
					return "yes"
				}
				return "no"
			}},
			{"ABOUT", func(v verdict) string { return v.About }},
			{"PROBLEM", func(v verdict) string { return v.Problem }},
			{"MEND", func(v verdict) string { return v.Mend }},
		},
	}
}
