package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/watchdog"
)

func watchdogCommand(s *session) *cobra.Command {
	run := roleCommand(s, "Watch until stopped: one cycle at once and one each watchdog.interval", need{database: true}, "watchdog")
	return noun("watchdog", "End sagas that got stuck in one status", run, watchdogOnce(s), watchdogLs(s),
		watchdogExtend(s), watchdogCancel(s), watchdogSkip(s))
}

// watchdog makes one for a command, which logs to stderr.
func (s *session) watchdog(ctx context.Context) (*watchdog.Watchdog, error) {
	db, err := s.database(ctx)
	if err != nil {
		return nil, err
	}
	if len(db.config.Watchdog.Rules) == 0 {
		return nil, usageErrorf("add one under watchdog.rules in surefoot.yaml", "there are no watchdog rules")
	}
	logger, err := s.logger(db.config.Log)
	if err != nil {
		return nil, err
	}
	options := app.WatchdogOptions(db.config)
	options.Pool, options.Logger = db.pool, logger
	return watchdog.New(options)
}

func watchdogOnce(s *session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "once", Short: "Run one cycle and tell what it did; exits 3 when rows failed", Args: cobra.NoArgs,
		Long: "Run one cycle and tell what it did, rule by rule. Rows that failed are recorded and tried again later;\n" +
			"then the exit code is 3. With --dry-run nothing changes, and the overdue rows are listed.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			w, err := s.watchdog(cmd.Context())
			if err != nil {
				return err
			}
			if s.dryRun {
				due := watchdog.Filter{States: overdue, Limit: defaultSagas}
				return s.listSagas(cmd.Context(), w, due)
			}
			if _, err := w.Check(cmd.Context()); err != nil { // before any row is changed
				return err
			}
			results, err := w.Once(cmd.Context())
			if failed := render(s, cycleResults(results)); failed != nil {
				return failed
			}
			if err != nil {
				return err
			}
			return failedRows(results)
		},
	}
	cmd.Flags().BoolVar(&s.dryRun, "dry-run", false, "list what is overdue, and change nothing; exits 0 whatever that is")
	s.outputFlag(cmd)
	return cmd
}

// failedRows is the error of a cycle that could not change every row.
func failedRows(results []watchdog.Result) error {
	failed := 0
	for _, r := range results {
		failed += r.Failed
	}
	if failed > 0 {
		return partly(fmt.Errorf("failed and tried again later: %s; see `surefoot watchdog ls`", counted(failed, "row")))
	}
	return nil
}

func cycleResults(results []watchdog.Result) listing[watchdog.Result] {
	return listing[watchdog.Result]{
		Items: results,
		Name:  func(r watchdog.Result) string { return r.Rule },
		Columns: []column[watchdog.Result]{
			{"RULE", func(r watchdog.Result) string { return r.Rule }},
			{"CANCELLED", func(r watchdog.Result) string { return strconv.Itoa(r.Cancelled) }},
			{"FAILED", func(r watchdog.Result) string { return strconv.Itoa(r.Failed) }},
			{"MORE", func(r watchdog.Result) string { return strconv.FormatBool(r.More) }},
		},
	}
}
