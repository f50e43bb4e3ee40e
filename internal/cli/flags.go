package cli

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/surefoot-mq/surefoot/internal/config"
)

// configFlags are the global flags that set a key of the configuration.
func configFlags() []struct{ name, key, usage string } {
	return []struct{ name, key, usage string }{
		{"database-url", "database.url", "PostgreSQL `URL` (SUREFOOT_DATABASE_URL)"},
		{"amqp-url", "amqp.url", "RabbitMQ `URL` (SUREFOOT_AMQP_URL)"},
		{"management-url", "amqp.management_url", "`URL` of RabbitMQ's management plugin (SUREFOOT_MANAGEMENT_URL)"},
		{"schema", "database.schema", "`name` of Surefoot's schema in the database (SUREFOOT_SCHEMA)"},
		{"log-level", "log.level", "trace, debug, info, warn or error (SUREFOOT_LOG_LEVEL)"},
		{"log-format", "log.format", "json, pretty or auto (SUREFOOT_LOG_FORMAT)"},
	}
}

func (s *session) globalFlags(flags *pflag.FlagSet) {
	flags.StringVar(&s.configPath, "config", "", "configuration `file` (SUREFOOT_CONFIG; default surefoot.yaml if there)")
	for _, flag := range configFlags() {
		flags.String(flag.name, "", flag.usage)
	}
	flags.StringVar(&s.as, "as", "", "`who` acts, for the audit (SUREFOOT_OPERATOR; default user@host)")
	s.flags = flags
}

// givenFlags are those of the configFlags that stand on the command line.
func (s *session) givenFlags() []config.Flag {
	var given []config.Flag
	for _, flag := range configFlags() {
		if set := s.flags.Lookup(flag.name); set.Changed {
			given = append(given, config.Flag{Name: "--" + flag.name, Key: flag.key, Text: set.Value.String()})
		}
	}
	return given
}

// outputFlag gives a command that prints data its -o.
func (s *session) outputFlag(cmd *cobra.Command) {
	cmd.Flags().VarP(&s.output, "output", "o", "table, json, jsonl or name")
}

// changeFlags gives a command that changes something its --dry-run and --yes.
func (s *session) changeFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.dryRun, "dry-run", false, "show what would be done, and do nothing")
	cmd.Flags().BoolVarP(&s.yes, "yes", "y", false, "do not ask")
}

// flagError makes a wrong flag a usage error, with the nearest flag that exists.
func flagError(cmd *cobra.Command, err error) error {
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return err
	}
	hint := "see " + cmd.CommandPath() + " --help"
	if name, ok := strings.CutPrefix(err.Error(), "unknown flag: --"); ok {
		if near := nearestFlag(cmd, name); near != "" {
			hint = "did you mean --" + near + "?"
		}
	}
	return usageErrorf(hint, "%w", err)
}

func nearestFlag(cmd *cobra.Command, name string) string {
	var names []string
	collect := func(flag *pflag.Flag) { names = append(names, flag.Name) }
	cmd.Flags().VisitAll(collect)
	cmd.InheritedFlags().VisitAll(collect)
	slices.Sort(names)
	return config.Nearest(name, slices.Compact(names))
}
