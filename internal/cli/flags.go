package cli

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

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
	cmd.Flags().BoolVar(&s.dryRun, "dry-run", false, "show what would be done, and do nothing; exits 0 whatever that is")
	cmd.Flags().BoolVarP(&s.yes, "yes", "y", false, "do not ask")
}

// flagError makes a wrong flag a usage error, with the nearest flag that exists.
func flagError(cmd *cobra.Command, err error) error {
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return err
	}
	hint := "see " + cmd.CommandPath() + " --help"
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return usageErrorf(hint, "--%s cannot be %q: %s", invalid.GetFlag().Name, invalid.GetValue(), wanted(invalid))
	}
	if name, ok := strings.CutPrefix(err.Error(), "unknown flag: --"); ok {
		if near := nearestFlag(cmd, name); near != "" {
			hint = "did you mean --" + near + "?"
		}
	}
	return usageErrorf(hint, "%w", err)
}

// wanted says what a flag takes; the errors of Go's own parsers do not say it to people.
func wanted(invalid *pflag.InvalidValueError) string {
	switch kind := invalid.GetFlag().Value.Type(); kind {
	case "int", "int64", "uint":
		return "use a whole number"
	case "float64":
		return "use a number"
	case "bool":
		return "use true or false"
	case "duration":
		return "use a duration with its unit, such as 30s or 5m"
	}
	return errors.Unwrap(invalid).Error()
}

// bound is the value of a flag that bounds how many: a whole number from 1. It has one meaning everywhere, so that 0, which
// some take for none and others for all, is refused.
type bound struct {
	n    *int
	most int
}

// boundFlag gives a command a flag that bounds how many; n holds the default, 0 for no bound. The usage gets the range, unless that has no end.
func boundFlag(flags *pflag.FlagSet, n *int, name string, most int, usage string) {
	if most < math.MaxInt32 {
		usage += fmt.Sprintf(", from 1 to %d", most)
	}
	flags.Var(bound{n, most}, name, usage)
}

// waitFlag gives a command that needs a dead-letter queue for itself its --wait.
func waitFlag(flags *pflag.FlagSet, wait *time.Duration) {
	flags.DurationVar(wait, "wait", 0, "how long to wait while somebody else works on the queue, such as 1m")
}

// String is the flag's text.
func (b bound) String() string {
	if b.n == nil || *b.n == 0 {
		return ""
	}
	return strconv.Itoa(*b.n)
}

// Type names the flag's kind in help.
func (b bound) Type() string { return "count" }

// Set reads the flag.
func (b bound) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > b.most {
		return fmt.Errorf("use a whole number from 1 to %d", b.most)
	}
	*b.n = n
	return nil
}

// sameMeaning are flags that are called otherwise elsewhere.
func sameMeaning(name string) string {
	return map[string]string{"limit": "max", "max": "limit", "event-filter": "type", "force": "yes"}[name]
}

func nearestFlag(cmd *cobra.Command, name string) string {
	if other := sameMeaning(name); cmd.Flags().Lookup(other) != nil {
		return other
	}
	var names []string
	collect := func(flag *pflag.Flag) { names = append(names, flag.Name) }
	cmd.Flags().VisitAll(collect)
	cmd.InheritedFlags().VisitAll(collect)
	slices.Sort(names)
	return config.Nearest(name, slices.Compact(names))
}
