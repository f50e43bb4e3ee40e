package cli

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

func migrateCommand(s *session) *cobra.Command {
	return noun("migrate", "Bring Surefoot's schema in the database up to this program's version", migrateUp(s), migrateStatus(s))
}

func migrateUp(s *session) *cobra.Command {
	to := 0
	cmd := &cobra.Command{
		Use: "up", Short: "Apply the migrations that are missing", Args: cobra.NoArgs,
		Long: "Apply the migrations that are missing, and create the schema when it is not there. Several may run at\n" +
			"once: one works and the others wait. Prints what was applied; nothing when there was nothing to do.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.config(need{database: true})
			if err != nil {
				return err
			}
			target := pg.MigrateOptions{URL: c.Database.URL.Reveal(), Schema: c.Database.Schema, To: int64(to)}
			var steps []pg.Migration
			if s.dryRun {
				steps, err = pending(cmd, target)
			} else {
				steps, err = pg.Migrate(cmd.Context(), target)
			}
			if err != nil {
				return err
			}
			return render(s, migrations(steps, "schema "+c.Database.Schema+" is up to date"))
		},
	}
	boundFlag(cmd.Flags(), &to, "to", int(pg.Version()), "the last `version` to apply, to take steps one by one (programs need all of theirs)")
	cmd.Flags().BoolVar(&s.dryRun, "dry-run", false, "show what would be applied, and apply nothing; exits 0 whatever that is, unlike status")
	s.outputFlag(cmd)
	return cmd
}

func pending(cmd *cobra.Command, target pg.MigrateOptions) ([]pg.Migration, error) {
	all, err := pg.Status(cmd.Context(), target)
	if err != nil {
		return nil, err
	}
	var missing []pg.Migration
	for _, step := range all {
		if !step.Applied && (target.To == 0 || step.Version <= target.To) {
			missing = append(missing, step)
		}
	}
	return missing, nil
}

func migrateStatus(s *session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "List the migrations; exits 6 when some are missing", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.config(need{database: true})
			if err != nil {
				return err
			}
			all, err := pg.Status(cmd.Context(), pg.MigrateOptions{URL: c.Database.URL.Reveal(), Schema: c.Database.Schema})
			if err != nil {
				return err
			}
			if err := render(s, migrations(all, "")); err != nil {
				return err
			}
			return missingError(all, c.Database.Schema)
		},
	}
	s.outputFlag(cmd)
	return cmd
}

func missingError(all []pg.Migration, schema string) error {
	missing := 0
	for _, step := range all {
		if !step.Applied {
			missing++
		}
	}
	if missing > 0 {
		return differs("%d of %s missing in schema %s: run `surefoot migrate up`", missing, counted(len(all), "migration"), schema)
	}
	return nil
}

func migrations(steps []pg.Migration, empty string) listing[pg.Migration] {
	return listing[pg.Migration]{
		Items: steps,
		Empty: empty,
		Name:  func(m pg.Migration) string { return strconv.FormatInt(m.Version, 10) },
		Columns: []column[pg.Migration]{
			{"VERSION", func(m pg.Migration) string { return strconv.FormatInt(m.Version, 10) }},
			{"NAME", func(m pg.Migration) string { return m.Name }},
			{"APPLIED", func(m pg.Migration) string { return stampText(m.At) }},
		},
	}
}
