package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// explainArgs has every command say what is wrong with its arguments in the words of its own usage line.
func explainArgs(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if _, explained := err.(*exitError); err == nil || explained { //nolint:errorlint // made here, never wrapped
				return err
			}
			return argsError(cmd, args)
		}
	}
	for _, child := range cmd.Commands() {
		explainArgs(child)
	}
}

// argsError is the error of a command that was given other arguments than its usage line names.
func argsError(cmd *cobra.Command, args []string) error {
	names, path := positionals(cmd.Use), strings.TrimPrefix(cmd.CommandPath(), "surefoot ")
	if len(args) < len(names) {
		return usageErrorf("see "+cmd.CommandPath()+" --help", "%s needs %s", path, strings.Join(names[len(args):], " and "))
	}
	hint := "see " + cmd.CommandPath() + " --help"
	surplus := args[len(names)]
	if len(names) == 0 && cmd.Flags().Lookup("queue") != nil {
		hint = "give the queue with --queue " + surplus
	}
	return usageErrorf(hint, "%s does not take %q", path, surplus)
}

// positionals are the names in a usage line that stand for themselves and not for a flag's value: of "show ID --wait T"
// that is ID.
func positionals(use string) []string {
	var names []string
	ofFlag := true // the first word is the command
	for word := range strings.FieldsSeq(use) {
		flag := strings.HasPrefix(strings.TrimPrefix(word, "["), "-")
		if !ofFlag && !flag && !strings.HasPrefix(word, "[") {
			names = append(names, word)
		}
		ofFlag = flag
	}
	return names
}

// helpCommand replaces cobra's, which answers an unknown name with the help of the whole program and exit 0.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Show the help of a command",
		RunE: func(_ *cobra.Command, args []string) error {
			target, rest, err := root.Find(args)
			if err == nil {
				err = unknownVerb(target, rest)
			}
			if err != nil {
				return err
			}
			target.InitDefaultHelpFlag()
			return target.Help()
		},
	}
}

// helpFunc refuses the help of a command that does not exist: `surefoot nope --help`.
func (s *session) helpFunc(show func(*cobra.Command, []string)) func(*cobra.Command, []string) {
	return func(cmd *cobra.Command, args []string) {
		if cmd.HasSubCommands() {
			if s.misuse = unknownVerb(cmd, cmd.Flags().Args()); s.misuse != nil {
				return
			}
		}
		show(cmd, args)
	}
}
