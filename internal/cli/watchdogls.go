package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/surefoot-mq/surefoot/watchdog"
)

const (
	defaultSagas = 100
	defaultSoon  = 5 * time.Minute
)

// sagaFlags choose sagas.
type sagaFlags struct {
	rule   string
	states []string
	soon   time.Duration
	limit  int
}

func (f *sagaFlags) add(flags *pflag.FlagSet) {
	f.limit = defaultSagas
	flags.StringVar(&f.rule, "rule", "", "only this `rule`")
	flags.StringSliceVar(&f.states, "state", nil, "only rows in this `state`: overdue, failing, due-soon or held; may be repeated")
	flags.DurationVar(&f.soon, "soon", defaultSoon, "how long before its limit a row is due soon")
	boundFlag(flags, &f.limit, "limit", watchdog.MaxKeys, "the most rows of each rule, oldest first")
}

func (f *sagaFlags) filter() (watchdog.Filter, error) {
	filter := watchdog.Filter{Rule: f.rule, Soon: f.soon, Limit: f.limit}
	if f.soon < 0 {
		return filter, usageErrorf("", "--soon must not be negative")
	}
	for _, text := range f.states {
		state := watchdog.State(text)
		if !slices.Contains(watchdog.States(), state) {
			return filter, usageErrorf("use overdue, failing, due-soon or held", "--state cannot be %q", text)
		}
		filter.States = append(filter.States, state)
	}
	return filter, nil
}

func watchdogLs(s *session) *cobra.Command {
	var choose sagaFlags
	var keys []string
	cmd := &cobra.Command{
		Use: "ls", Short: "List sagas that are overdue, failing with their errors, due soon, or held", Args: cobra.NoArgs,
		Long: "List rows of the watched tables, the oldest of each rule first. overdue: the next cycle changes it; failing: it could not be\n" +
			"changed, and is tried again at its next try; due-soon: over its limit within --soon; held: extended or skipped by an\n" +
			"operator, and left alone until then. OVER is the time over the limit, negative for what is left of it.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := choose.filter()
			if err != nil {
				return err
			}
			filter.Keys = keys
			w, err := s.watchdog(cmd.Context())
			if err != nil {
				return err
			}
			return s.listSagas(cmd.Context(), w, filter)
		},
	}
	choose.add(cmd.Flags())
	cmd.Flags().StringArrayVar(&keys, "key", nil, "only the row of this `key`; may be repeated")
	s.outputFlag(cmd)
	return cmd
}

func (s *session) listSagas(ctx context.Context, w *watchdog.Watchdog, f watchdog.Filter) error {
	sagas, err := w.List(ctx, f)
	if err != nil {
		return err
	}
	s.noteLimit(len(sagas), f.Limit)
	empty := "nothing is overdue"
	if f.Soon > 0 {
		empty = "nothing is overdue, due soon or held"
	}
	return render(s, listing[watchdog.Saga]{
		Items: sagas,
		Empty: empty,
		Name:  func(o watchdog.Saga) string { return o.Key },
		Columns: []column[watchdog.Saga]{
			{"RULE", func(o watchdog.Saga) string { return o.Rule }},
			{"KEY", func(o watchdog.Saga) string { return o.Key }},
			{"STATE", func(o watchdog.Saga) string { return string(o.State) }},
			{"STATUS", func(o watchdog.Saga) string { return o.Status }},
			{"SINCE", func(o watchdog.Saga) string { return stampText(o.Since.Time) }},
			{"OVER", func(o watchdog.Saga) string { return o.Over.Round(time.Second).String() }},
			{"TRIES", func(o watchdog.Saga) string { return strconv.Itoa(o.Tries) }},
			{"NEXT TRY", func(o watchdog.Saga) string { return timeText(o.NextTry) }},
			{"ERROR", func(o watchdog.Saga) string { return o.Error }},
			{"HELD", heldText},
		},
	})
}

func heldText(o watchdog.Saga) string {
	if o.Hold == nil {
		return ""
	}
	until := "skipped"
	if o.Hold.Until != nil {
		until = "until " + timeText(o.Hold.Until)
	}
	return strings.Join([]string{until, "by " + o.Hold.Who + ":", o.Hold.Reason}, " ")
}
