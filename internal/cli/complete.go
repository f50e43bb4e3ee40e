package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/access"
	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/doctor"
)

// completeLimit is how long the services may keep somebody waiting who has pressed the tab key.
const completeLimit = time.Second

// completer proposes words for what is being typed; what it cannot find out it leaves out, silently.
type completer func(ctx context.Context, cmd *cobra.Command) []string

// completions gives the flags and arguments of all commands their words: those that the services know now, or a fixed list. The flags of
// one name mean the same everywhere.
func (s *session) completions(cmd *cobra.Command) {
	words := map[string]completer{
		"queue": s.completeQueues, "fingerprint": s.completeFingerprints, "dependency": s.completeDependencies,
		"log-level": fixed("trace", "debug", "info", "warn", "error"), "log-format": fixed("auto", "json", "pretty"),
	}
	if cmd.Name() == "doctor" {
		words["role"], words["skip"] = s.completeRoles, fixed(doctor.Checks()...)
	}
	if cmd.Name() == "hash-password" {
		words["role"] = completeAccess
	}
	complete := func(flag *pflag.Flag) {
		propose, known := words[flag.Name]
		if flag.Value.Type() == s.output.Type() {
			propose, known = fixed("table", "json", "jsonl", "name"), true
		}
		if known {
			_ = cmd.RegisterFlagCompletionFunc(flag.Name, proposed(propose)) // fails for a flag that is not there, or twice
		}
	}
	cmd.LocalFlags().VisitAll(complete)
	if cmd.HasAvailableSubCommands() {
		for _, child := range cmd.Commands() {
			s.completions(child)
		}
		return
	}
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	if slices.Equal(positionals(cmd.Use), []string{"GROUP"}) {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return proposed(s.completeGroups)(cmd, args, typed)
		}
	}
}

// proposed makes what cobra wants of a completer: bounded in time, and without a word that could harm a terminal, for names come from anywhere.
func proposed(propose completer) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeLimit)
		defer cancel()
		words := slices.DeleteFunc(propose(ctx, cmd), func(word string) bool {
			name, told, _ := strings.Cut(word, "\t")
			return !strings.HasPrefix(name, typed) || Escape(name, maxCell) != name || Escape(told, maxCell) != told
		})
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

func fixed(words ...string) completer {
	return func(context.Context, *cobra.Command) []string { return slices.Clone(words) }
}

// completeQueues proposes the work queues of the configuration and, of the vhost, those that have a dead-letter queue.
func (s *session) completeQueues(ctx context.Context, _ *cobra.Command) []string {
	c, err := s.config(need{})
	if err != nil {
		return nil
	}
	names := map[string]bool{}
	for _, q := range c.Topology.Queues {
		names[q.Name] = true
	}
	if m, err := s.management(c); err == nil {
		queues, _ := m.Queues(ctx) // what is configured must do without it
		for _, q := range queues {
			if name, is := strings.CutSuffix(q.Name, deadletter.Suffix); is && name != "" {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// groups of dead letters, of the queue that has been named already, if one has.
func (s *session) groups(ctx context.Context, cmd *cobra.Command) []deadletter.FailureGroup {
	d, _, err := s.deadLetters(ctx)
	if err != nil {
		return nil
	}
	queue := ""
	if flag := cmd.Flags().Lookup("queue"); flag != nil {
		queue = flag.Value.String()
	}
	groups, _, _ := d.Groups(ctx, deadletter.GroupsRequest{Queue: queue, Limit: 100})
	return groups
}

func (s *session) completeFingerprints(ctx context.Context, cmd *cobra.Command) []string {
	return groupWords(s.groups(ctx, cmd), func(g deadletter.FailureGroup) string { return g.Fingerprint })
}

func (s *session) completeGroups(ctx context.Context, cmd *cobra.Command) []string {
	return groupWords(s.groups(ctx, cmd), func(g deadletter.FailureGroup) string { return strconv.FormatInt(g.ID, 10) })
}

// groupWords are words with what they stand for, which shells show beside them.
func groupWords(groups []deadletter.FailureGroup, word func(deadletter.FailureGroup) string) []string {
	words := make([]string, len(groups))
	for i, g := range groups {
		words[i] = word(g) + "\t" + Escape(fmt.Sprintf("%s: %d %s, %s: %s", g.Queue, g.Messages, orDash(g.Type), orDash(g.ErrorClass), firstLine(g.ErrorMessage)), maxCell)
	}
	return words
}

func (s *session) completeDependencies(context.Context, *cobra.Command) []string {
	c, err := s.config(need{})
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(c.Dependencies))
}

// completeAccess proposes what people may be in the console.
func completeAccess(context.Context, *cobra.Command) []string {
	var names []string
	for _, role := range access.Roles() {
		names = append(names, role.String())
	}
	return names
}

func (s *session) completeRoles(context.Context, *cobra.Command) []string {
	var names []string
	for _, role := range app.Roles() {
		names = append(names, role.Name)
	}
	return names
}
