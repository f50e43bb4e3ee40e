package cli

import (
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/resilience/policy"
)

func circuitsCommand(s *session) *cobra.Command {
	return noun("circuits", "See what the processes know of the services that they call", circuitsLs(s))
}

func circuitsLs(s *session) *cobra.Command {
	var dependency string
	var open bool
	cmd := &cobra.Command{
		Use: "ls", Short: "List the circuits that processes have told of: closed, half-open or open, since when, why, and the calls in hand", Args: cobra.NoArgs,
		Long: "List the circuits that processes have told of in the database, at each transition and else every 30 s: one line per dependency,\n" +
			"instance and host. SEEN is when a process last told; one that has ended leaves its last words for 7 days. -o json has the limits\n" +
			"too. A process decides by its own circuits and never by what is listed here.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			db, err := s.database(cmd.Context())
			if err != nil {
				return err
			}
			list, err := policy.Snapshots(cmd.Context(), db.pool, db.schema)
			if err != nil {
				return err
			}
			list = slices.DeleteFunc(list, func(c policy.Snapshot) bool {
				return dependency != "" && c.Dependency != dependency || open && c.State == policy.Closed.String()
			})
			return render(s, circuitRows(list))
		},
	}
	cmd.Flags().StringVar(&dependency, "dependency", "", "only those to this `service`")
	cmd.Flags().BoolVar(&open, "open", false, "only those that are not closed")
	s.outputFlag(cmd)
	return cmd
}

func circuitRows(list []policy.Snapshot) listing[policy.Snapshot] {
	optional := func(text *string) string {
		if text == nil {
			return ""
		}
		return *text
	}
	return listing[policy.Snapshot]{
		Items: list,
		Empty: "no process has told of such a circuit",
		Name:  func(c policy.Snapshot) string { return c.Dependency },
		Columns: []column[policy.Snapshot]{
			{"DEPENDENCY", func(c policy.Snapshot) string { return c.Dependency }},
			{"INSTANCE", func(c policy.Snapshot) string { return c.Instance }},
			{"HOST", func(c policy.Snapshot) string { return c.Host }},
			{"STATE", func(c policy.Snapshot) string { return c.State }},
			{"SINCE", func(c policy.Snapshot) string { return timeText(c.Since) }},
			{"OPEN UNTIL", func(c policy.Snapshot) string { return timeText(c.OpenUntil) }},
			{"FAILURES", func(c policy.Snapshot) string { return strconv.Itoa(c.Failures) }},
			{"ACTIVE", func(c policy.Snapshot) string { return strconv.Itoa(c.Active) }},
			{"QUEUED", func(c policy.Snapshot) string { return strconv.Itoa(c.Queued) }},
			{"SEEN", func(c policy.Snapshot) string { return stampText(c.UpdatedAt) }},
			{"REASON", func(c policy.Snapshot) string { return optional(c.Reason) }},
		},
	}
}
