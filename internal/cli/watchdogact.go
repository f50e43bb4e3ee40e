package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/watchdog"
)

// watchdogAct is what the commands on single sagas share.
type watchdogAct struct {
	session *session
	verb    string
	reason  string
	all     bool
	choose  sagaFlags
	// states are those of --all without --state.
	states func() []watchdog.State
	// needs are what this verb alone cannot do without; nil: nothing.
	needs func() []required
	do    func(context.Context, *watchdog.Watchdog, watchdog.Act) ([]watchdog.Acted, error)
}

// overdue are the states of rows that the next cycles change; open are those and the ones to come.
var (
	overdue = []watchdog.State{watchdog.StateOverdue, watchdog.StateFailing}                        //nolint:gochecknoglobals // a constant
	open    = []watchdog.State{watchdog.StateOverdue, watchdog.StateFailing, watchdog.StateDueSoon} //nolint:gochecknoglobals // a constant
)

func watchdogExtend(s *session) *cobra.Command {
	by := time.Duration(0)
	a := &watchdogAct{session: s, verb: "extend", states: func() []watchdog.State { return open }}
	a.do = func(ctx context.Context, w *watchdog.Watchdog, act watchdog.Act) ([]watchdog.Acted, error) {
		return w.Extend(ctx, act, by)
	}
	cmd := a.command("Give sagas more time; needs --by and --reason",
		"The time counts from the row's limit, from the end of an earlier extension, or from now, whatever is latest. The watched\n"+
			"table is not touched.")
	cmd.Flags().DurationVar(&by, "by", 0, "how much more `time`, such as 30m (required)")
	a.needs = func() []required { return []required{{"--by", by != 0}} }
	return cmd
}

func watchdogCancel(s *session) *cobra.Command {
	early := false
	a := &watchdogAct{session: s, verb: "cancel", states: func() []watchdog.State {
		if early {
			return open
		}
		return overdue
	}}
	a.do = func(ctx context.Context, w *watchdog.Watchdog, act watchdog.Act) ([]watchdog.Acted, error) {
		return w.Cancel(ctx, act, early)
	}
	cmd := a.command("Do now what the watchdog does to an overdue saga, with its event; needs --reason",
		"The row gets the rule's new status, and the event goes into the outbox, in one transaction; the event has the id that it would have\n"+
			"had by the watchdog. A row that failed is tried at once, and one that is held is held no more.")
	cmd.Flags().BoolVar(&early, "early", false, "also rows that are within their limit")
	return cmd
}

func watchdogSkip(s *session) *cobra.Command {
	lift := false
	a := &watchdogAct{session: s, verb: "skip", states: func() []watchdog.State {
		if lift {
			return []watchdog.State{watchdog.StateHeld}
		}
		return open
	}}
	a.do = func(ctx context.Context, w *watchdog.Watchdog, act watchdog.Act) ([]watchdog.Acted, error) {
		if lift {
			return w.Lift(ctx, act)
		}
		return w.Skip(ctx, act)
	}
	cmd := a.command("Keep the watchdog from sagas for as long as they stay as they are; needs --reason",
		"A row that leaves its status, or gets a new clock, is a case of its own again. A skip ends after 400 days. --lift takes a skip or an\n"+
			"extension away.")
	cmd.Flags().BoolVar(&lift, "lift", false, "have the watchdog deal with the rows again")
	return cmd
}

func (a *watchdogAct) command(short, long string) *cobra.Command {
	cmd := &cobra.Command{
		Use: a.verb + " [KEY...]", Short: short,
		Long: short + ".\n" + long + "\n\nChoose rows of one rule by their keys, or with --all those that `surefoot watchdog ls` lists with the same --rule, --state\n" +
			"and --soon; held ones only where that makes sense. --rule may be left out where there is only one. Each row is dealt with, and audited, in a transaction of its\n" +
			"own; exits 3 when something was left undone.",
		RunE: func(cmd *cobra.Command, keys []string) error { return a.run(cmd, keys) },
	}
	a.choose.add(cmd.Flags())
	cmd.Flags().BoolVar(&a.all, "all", false, "all rows of the rule that are listed, instead of keys")
	cmd.Flags().StringVar(&a.reason, "reason", "", "why, for the audit (required)")
	a.session.changeFlags(cmd)
	a.session.outputFlag(cmd)
	return cmd
}

func (a *watchdogAct) run(cmd *cobra.Command, keys []string) error {
	ctx, s := cmd.Context(), a.session
	filter, err := a.check(cmd, keys)
	if err != nil {
		return err
	}
	who, err := s.operator()
	if err != nil {
		return err
	}
	w, err := s.watchdog(ctx)
	if err != nil {
		return err
	}
	act := watchdog.Act{Rule: filter.Rule, Keys: keys, Who: who, Reason: a.reason, Origin: s.origin()}
	if act.Rule == "" {
		if act.Rule, err = onlyRule(w.RuleNames()); err != nil {
			return err
		}
	}
	if a.all {
		if filter.Rule = act.Rule; filter.States == nil {
			filter.States = a.states()
		}
		if act.Keys, err = a.listed(ctx, w, filter); err != nil {
			return err
		}
	}
	if len(act.Keys) == 0 {
		s.note("no rows match; nothing to do")
		return render(s, actedRows(nil))
	}
	return a.carryOut(ctx, w, act)
}

func (a *watchdogAct) check(cmd *cobra.Command, keys []string) (watchdog.Filter, error) {
	filter, err := a.choose.filter()
	a.reason = strings.TrimSpace(a.reason)
	switch {
	case err != nil:
		return filter, err
	case a.all && len(keys) > 0:
		return filter, usageErrorf("see `surefoot watchdog ls`", "choose rows by their keys, or by --all")
	case !a.all && (cmd.Flags().Changed("state") || cmd.Flags().Changed("soon")):
		return filter, usageErrorf("add --all, or leave them out", "--state and --soon choose rows only together with --all")
	}
	return filter, a.lacking(filter, keys)
}

// lacking names all that is missing at once, a rule too where there are several.
func (a *watchdogAct) lacking(filter watchdog.Filter, keys []string) error {
	c, err := a.session.config(need{database: true})
	if err != nil {
		return err
	}
	needed := []required{{"keys or --all", a.all || len(keys) > 0}, {"--rule", filter.Rule != "" || len(c.Watchdog.Rules) < 2}}
	if a.needs != nil {
		needed = append(needed, a.needs()...)
	}
	needed = append(needed, required{"--reason", a.reason != ""})
	return missing("watchdog "+a.verb, "`surefoot watchdog ls` lists rows and their rules; a reason is such as --reason \"provider is down, ticket 4711\"", needed...)
}

// onlyRule is the rule of a configuration that has one.
func onlyRule(names []string) (string, error) {
	if len(names) == 1 {
		return names[0], nil
	}
	return "", usageErrorf("use one of "+strings.Join(names, ", "), "there are several rules: --rule is missing")
}

// listed are the keys of what is listed; one more than the limit is too many: a part of what was asked for would pass as the whole.
func (a *watchdogAct) listed(ctx context.Context, w *watchdog.Watchdog, filter watchdog.Filter) ([]string, error) {
	limit := filter.Limit
	filter.Limit++
	sagas, err := w.List(ctx, filter)
	if err != nil {
		return nil, err
	}
	if len(sagas) > limit {
		return nil, usageErrorf("narrow the choice, or raise --limit", "more than %d rows match", limit)
	}
	keys := make([]string, len(sagas))
	for i, saga := range sagas {
		keys[i] = saga.Key
	}
	return keys, nil
}

// carryOut looks first, asks, and then does it.
func (a *watchdogAct) carryOut(ctx context.Context, w *watchdog.Watchdog, act watchdog.Act) error {
	s := a.session
	act.DryRun = true
	plan, err := a.do(ctx, w, act)
	if err != nil {
		return badAct(err)
	}
	would := 0
	for _, one := range plan {
		if one.Done {
			would++
		}
	}
	if s.dryRun {
		s.note("would %s %s; nothing was changed", a.verb, counted(would, "row"))
		return render(s, actedRows(plan))
	}
	if err := s.confirm(ctx, question{Verb: a.verb, Count: would, Thing: "row", Target: "rule " + act.Rule}); err != nil {
		return err
	}
	act.DryRun = false
	acted, err := a.do(ctx, w, act)
	if rendered := render(s, actedRows(acted)); rendered != nil {
		return rendered
	}
	return a.judge(acted, err)
}

// judge turns what became of the rows into the command's own result.
func (a *watchdogAct) judge(acted []watchdog.Acted, err error) error {
	done := 0
	for _, one := range acted {
		if one.Done {
			done++
		}
	}
	switch {
	case err != nil && done > 0:
		return partly(fmt.Errorf("%s done, then: %w", counted(done, "row"), err))
	case err != nil:
		return badAct(err)
	case done == 0:
		return fmt.Errorf("nothing was done: %s", acted[0].Outcome)
	case done < len(acted):
		return partly(fmt.Errorf("%d of %d rows were left as they are", len(acted)-done, len(acted)))
	}
	return nil
}

func badAct(err error) error {
	if errors.Is(err, watchdog.ErrBadRequest) {
		return usageErrorf("", "%w", err)
	}
	return err
}

func actedRows(acted []watchdog.Acted) listing[watchdog.Acted] {
	return listing[watchdog.Acted]{
		Items: acted,
		Name:  func(o watchdog.Acted) string { return o.Key },
		Columns: []column[watchdog.Acted]{
			{"RULE", func(o watchdog.Acted) string { return o.Rule }},
			{"KEY", func(o watchdog.Acted) string { return o.Key }},
			{"OUTCOME", func(o watchdog.Acted) string { return o.Outcome }},
			{"EVENT", func(o watchdog.Acted) string { return o.EventID }},
		},
	}
}
