package cli

import (
	"cmp"
	"strings"

	"github.com/spf13/cobra"
)

// commands are all the nouns. Each is in the file of its name.
func commands(s *session) []*cobra.Command {
	return []*cobra.Command{
		runCommand(s),
		migrateCommand(s),
		topologyCommand(s),
		outboxCommand(s),
		relayCommand(s),
		consumeCommand(s),
		workerCommand(s),
		dlqCommand(s),
		watchdogCommand(s),
		reconcileCommand(s),
		messageCommand(s),
		circuitsCommand(s),
		auditCommand(s),
		consoleCommand(s),
		doctorCommand(s),
		initCommand(s),
		devCommand(s),
		demoCommand(s),
		drillCommand(s),
		benchCommand(s),
		versionCommand(s),
	}
}

func newRoot(s *session) *cobra.Command {
	root := &cobra.Command{
		Use:           "surefoot",
		Short:         "From COMMIT to effect, once: outbox, relay, workers and dead letters between PostgreSQL and RabbitMQ",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          unknownVerb,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(s.env.Stdin)
	root.SetOut(s.env.Stdout)
	root.SetErr(s.env.Stderr)
	root.SetFlagErrorFunc(flagError)
	s.globalFlags(root.PersistentFlags())
	root.AddCommand(commands(s)...)
	root.SetHelpCommand(helpCommand(root))
	root.SetHelpFunc(s.helpFunc(root.HelpFunc()))
	root.Version = cmp.Or(s.build().Version, "unknown")
	root.SetVersionTemplate("{{.Version}}\n")
	explainArgs(root)
	s.completions(root)
	s.markStart(root)
	return root
}

// noun is a command that only has verbs.
func noun(name, short string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: name, Short: short, Args: unknownVerb,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageErrorf("see "+cmd.CommandPath()+" --help", "%s needs one of: %s", name, strings.Join(verbNames(cmd), ", "))
		},
	}
	cmd.AddCommand(verbs...)
	return cmd
}

// unknownVerb refuses a word that is no command, with the nearest that is.
func unknownVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := "see " + cmd.CommandPath() + " --help"
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return usageErrorf(hint, "unknown command %q for %s", args[0], cmd.CommandPath())
}

func verbNames(cmd *cobra.Command) []string {
	var names []string
	for _, verb := range cmd.Commands() {
		if verb.IsAvailableCommand() {
			names = append(names, verb.Name())
		}
	}
	return names
}

// markStart notes in the session when a command's own code begins: an error before that is a wrong use.
func (s *session) markStart(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			s.started = true
			return s.suggest(cmd, run(cmd, args))
		}
	}
	for _, child := range cmd.Commands() {
		s.markStart(child)
	}
}
