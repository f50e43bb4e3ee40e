package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/drill"
)

func drillCommand(s *session) *cobra.Command {
	return noun("drill", "Run failures for real and check that each pattern does what it is for", drillLs(s), drillRun(s), drillAct(s))
}

func drillLs(s *session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "ls", Short: "List the drills with their settings", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return render(s, listing[drill.Drill]{
				Items: drill.All(), Name: func(d drill.Drill) string { return d.Name },
				Columns: []column[drill.Drill]{
					{"NAME", func(d drill.Drill) string { return d.Name }},
					{"ARMS", func(d drill.Drill) string { return strings.Join(d.ArmNames(), ", ") }},
					{"ALONE", func(d drill.Drill) string { return map[bool]string{true: "stops a service"}[d.Alone] }},
					{"SETTINGS", func(d drill.Drill) string { return d.SettingsText() }},
					{"PROVES", func(d drill.Drill) string { return d.Proves }},
				},
			})
		},
	}
	s.outputFlag(cmd)
	return cmd
}

// drillFlags are the flags of drill run.
type drillFlags struct {
	all     bool
	arm     string
	set     []string
	reports string
}

func drillRun(s *session) *cobra.Command {
	var f drillFlags
	cmd := &cobra.Command{
		Use: "run [NAME...]", Short: "Run drills, write reports, and exit 0 only when every check holds", Args: cobra.ArbitraryArgs,
		Long: "Run drills on real services, one after the other. Each arm has schemas and a vhost of its own, which go when it\n" +
			"ends; drills that stop a service do so only on the local stack (scripts/stack). `make drills` starts one and runs all.\n\n" +
			"Reports are written as text and JSON under <report>/<drill>/, never over another one. Exits 1 when a check does not\n" +
			"hold, 3 when all hold but a drill was refused.",
		RunE: func(cmd *cobra.Command, args []string) error { return s.drill(cmd.Context(), args, f) },
	}
	cmd.Flags().BoolVar(&f.all, "all", false, "run every drill")
	cmd.Flags().StringVar(&f.arm, "arm", "", "play only this `arm`: before (the pattern is off), after (it is on), or one that drill ls names")
	cmd.Flags().StringArrayVar(&f.set, "set", nil, "change a setting, `NAME=VALUE`, for the drills that have it; seed=N draws the same random numbers")
	cmd.Flags().StringVar(&f.reports, "report", "reports", "`directory` of the reports")
	s.outputFlag(cmd)
	return cmd
}

// drillAct is a process of a drill. It is not for people.
func drillAct(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "act NAME", Short: "A process of a drill, which reads its task from stdin", Args: cobra.ExactArgs(1), Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.config(need{database: true, amqp: true})
			if err != nil {
				return err
			}
			logger, err := s.logger(c.Log)
			if err != nil {
				return err
			}
			return drill.Act(cmd.Context(), drill.ActOptions{
				Name: args[0], Task: s.env.Stdin, DatabaseURL: c.Database.URL.Reveal(), Schema: c.Database.Schema, AMQPURL: c.AMQP.URL.Reveal(),
				TLS: c.AMQP.TLS(), Host: s.env.Host, Version: s.build().Version, Logger: logger,
			})
		},
	}
}

const drillHint = "`make drills` starts a local stack and sets the URLs; `scripts/stack status` tells whether one is up"

func (s *session) drill(ctx context.Context, names []string, f drillFlags) error {
	if s.output == formatName {
		return usageErrorf("use table, json or jsonl", "a report has no names to list")
	}
	drills, err := chosenDrills(names, f)
	if err != nil {
		return err
	}
	options, err := s.drillOptions(f, drills)
	if err != nil {
		return err
	}
	runner, err := drill.New(options)
	if err != nil {
		return err
	}
	reports, err := runner.Run(ctx, drills)
	if s.output == formatJSON && (err == nil || len(reports) > 0) {
		err = errors.Join(err, writeJSON(s.env.Stdout, reports, "  "))
	}
	if err != nil {
		return servicesFailure(err, "no service answers there; "+drillHint)
	}
	return s.drillVerdict(reports)
}

// chosenDrills are those that names and --all choose and that have the arm, in the order in which they were named.
func chosenDrills(names []string, f drillFlags) ([]drill.Drill, error) {
	var drills []drill.Drill
	switch {
	case f.all && len(names) > 0:
		return nil, usageErrorf("leave out the names, or --all", "--all runs every drill")
	case f.all:
		drills = drill.All()
	case len(names) == 0:
		return nil, usageErrorf("surefoot drill ls lists them; --all runs every one", "name the drills to run")
	}
	for _, name := range names {
		d, found := drill.Find(name)
		if !found {
			return nil, unknownDrill(name)
		}
		drills = append(drills, d)
	}
	if f.arm == "" {
		return drills, nil
	}
	with := slices.DeleteFunc(slices.Clone(drills), func(d drill.Drill) bool { return !slices.Contains(d.ArmNames(), f.arm) })
	if len(with) == 0 {
		var arms []string
		for _, d := range drills {
			arms = append(arms, d.ArmNames()...)
		}
		slices.Sort(arms)
		return nil, usageErrorf("there is "+strings.Join(slices.Compact(arms), ", "), "no chosen drill has an arm %.100q", f.arm)
	}
	return with, nil
}

func unknownDrill(name string) error {
	var known []string
	for _, d := range drill.All() {
		known = append(known, d.Name)
	}
	hint := "surefoot drill ls lists them"
	if near := config.Nearest(name, known); near != "" {
		hint = "did you mean " + near + "?"
	}
	return usageErrorf(hint, "there is no drill %.100q", name)
}

func (s *session) drillOptions(f drillFlags, drills []drill.Drill) (drill.Options, error) {
	assigned, err := drill.ParseAssignments(f.set)
	if err != nil {
		return drill.Options{}, usageErrorf("surefoot drill ls lists the settings", "%w", err)
	}
	for _, a := range assigned {
		if err := a.Check(drills); err != nil {
			return drill.Options{}, usageErrorf("surefoot drill ls lists the settings", "%w", err)
		}
	}
	c, err := s.config(need{database: true, amqp: true})
	if err != nil {
		return drill.Options{}, usageErrorf(drillHint, "%w", err)
	}
	binary, err := os.Executable()
	if err != nil {
		return drill.Options{}, fmt.Errorf("find this program: %w", err)
	}
	return drill.Options{
		DatabaseURL: c.Database.URL.Reveal(), AMQPURL: c.AMQP.URL.Reveal(), ManagementURL: c.AMQP.ManagementURL.Reveal(),
		TLS: c.AMQP.TLS(), CAFile: c.AMQP.CAFile, Binary: binary, Environ: s.env.Environ, Stack: s.localStack(), Arm: f.arm, Set: assigned,
		Reports: f.reports, Host: s.env.Host, Version: s.build().Version, Commit: s.build().Commit,
		Say: func(line string) { s.note("%s", line) }, Done: s.drillDone,
	}, nil
}

// stackScript keeps the local stack. It is in the repository.
const stackScript = "scripts/stack"

// stackDir is where the local stack keeps what is its own: the script's default is in the working directory.
func (s *session) stackDir() string { return cmp.Or(s.env.getenv("SUREFOOT_STACK_DIR"), ".stack") }

// localStack is what is known of the stack of stackDir.
func (s *session) localStack() drill.Stack {
	script, err := filepath.Abs(stackScript)
	if _, missing := s.env.ReadFile(stackScript); err != nil || missing != nil {
		return drill.Stack{}
	}
	dir, err := filepath.Abs(s.stackDir())
	if err != nil {
		return drill.Stack{}
	}
	lines, _ := s.env.ReadFile(filepath.Join(dir, "env")) // none: never started
	return drill.Stack{Script: script, Dir: dir, Env: string(lines)}
}

// maxReport bounds a report on the terminal, in bytes.
const maxReport = 1 << 20

// drillDone shows a report as soon as its drill has ended.
func (s *session) drillDone(r *drill.Report) error {
	switch s.output {
	case formatLines:
		return writeJSON(s.env.Stdout, r, "")
	case formatTable:
		var text bytes.Buffer
		if err := r.Text(&text); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(s.env.Stdout, EscapeBlock(text.String(), maxReport)); err != nil {
			return fmt.Errorf("write output: %w", err)
		}
	case formatJSON, formatName: // all in one at the end
	}
	if len(r.Files) > 0 {
		s.note("report    %s", r.Files[0])
	}
	return nil
}

// drillVerdict sums up and turns what did not pass into an exit code.
func (s *session) drillVerdict(reports []*drill.Report) error {
	named := map[drill.Verdict][]string{}
	for _, r := range reports {
		named[r.Verdict] = append(named[r.Verdict], r.Drill)
	}
	s.note("%s passed, %d failed, %d refused", counted(len(named[drill.Passed]), "drill"), len(named[drill.Failed]), len(named[drill.Refused]))
	if failed := named[drill.Failed]; len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	if refused := named[drill.Refused]; len(refused) > 0 {
		return partly(fmt.Errorf("refused: %s", strings.Join(refused, ", ")))
	}
	return nil
}
