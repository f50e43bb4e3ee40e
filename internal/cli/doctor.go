package cli

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/internal/doctor"
)

func doctorCommand(s *session) *cobra.Command {
	var o doctor.Options
	var problems bool
	cmd := &cobra.Command{
		Use: "doctor", Short: "Look for what loses messages, does not work, or will not for long; exits 6 when it finds something", Args: cobra.NoArgs,
		Long: "Look at the configuration, the database and the broker for what loses messages, does not work, or will not for long, each with\n" +
			"what it means and its fix. Changes nothing, and works with a part of the services away: what could not be looked at is listed\n" +
			"as unknown. Exits 6 when something is to be mended; else 5 when a service is out of reach, 3 when something else could not be looked at.",
		RunE: func(cmd *cobra.Command, _ []string) error { return s.doctor(cmd.Context(), o, problems) },
	}
	cmd.Flags().StringSliceVar(&o.Roles, "role", nil, "look at the rights of these `roles` (default: those that are configured)")
	cmd.Flags().StringSliceVar(&o.Skip, "skip", nil, "leave these `checks` out")
	cmd.Flags().DurationVar(&o.ReservationExpiry, "reservation-expiry", 0, "how long what sagas hold lasts; limits of the watchdog must be below (default: not looked at)")
	cmd.Flags().BoolVar(&problems, "problems", false, "leave out what is well")
	s.outputFlag(cmd)
	return cmd
}

func (s *session) doctor(ctx context.Context, o doctor.Options, problems bool) error {
	if o.ReservationExpiry < 0 {
		return usageErrorf("", "--reservation-expiry is negative; use a duration such as 15m")
	}
	c, err := s.config(need{})
	if err != nil {
		return err
	}
	if o.Logger, err = s.logger(c.Log); err != nil {
		return err
	}
	if o.Who, err = s.operator(); err != nil {
		return err
	}
	o.Config, o.Host, o.Version, o.Now = c, s.env.Host, s.build().Version, time.Now
	found, err := doctor.Examine(ctx, o)
	switch {
	case errors.Is(err, doctor.ErrUnknownName):
		return usageErrorf("see `surefoot doctor --help`", "%w", err)
	case err != nil:
		return err
	}
	return s.showFindings(found, problems)
}

func (s *session) showFindings(found []doctor.Finding, problems bool) error {
	shown := found
	count := map[doctor.Severity]int{}
	away := false
	for i, f := range found {
		count[f.Severity]++
		away = away || f.OutOfReach
		if problems && f.Severity == doctor.OK { // the well ones come last
			shown = found[:i]
			break
		}
	}
	if err := render(s, findings(shown)); err != nil {
		return err
	}
	switch {
	case count[doctor.Critical]+count[doctor.Warning] > 0:
		return differs("found: %d critical, %s; %d unknown", count[doctor.Critical], counted(count[doctor.Warning], "warning"), count[doctor.Unknown])
	case away:
		return unreachable(errors.New("a service is out of reach; what could be looked at is well"), "")
	case count[doctor.Unknown] > 0:
		return partly(errors.New("what could be looked at is well; the rest is listed as unknown"))
	}
	return nil
}

func findings(found []doctor.Finding) listing[doctor.Finding] {
	return listing[doctor.Finding]{
		Items: found,
		Empty: "all is well",
		Name:  func(f doctor.Finding) string { return f.Check },
		Columns: []column[doctor.Finding]{
			{"SEVERITY", func(f doctor.Finding) string { return strings.ToUpper(string(f.Severity)) }},
			{"CHECK", func(f doctor.Finding) string { return f.Check }},
			{"ABOUT", func(f doctor.Finding) string { return f.About }},
			{"FOUND", func(f doctor.Finding) string { return f.Found }},
			{"MEANING", func(f doctor.Finding) string { return f.Meaning }},
			{"MEND", func(f doctor.Finding) string { return f.Mend }},
		},
	}
}
