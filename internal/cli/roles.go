package cli

import (
	"context"
	"errors"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/resilience"
)

// runCommand runs every role of the configuration.
func runCommand(s *session) *cobra.Command {
	return roleCommand(s, "Run every role that is configured", need{database: true, amqp: true})
}

// roleCommand is a command that runs roles of package app until a signal comes; without names it runs those
// that are configured.
func roleCommand(s *session, short string, n need, roles ...string) *cobra.Command {
	return &cobra.Command{
		Use: "run", Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.config(n)
			if err != nil {
				return s.fatal(cmd.Context(), s.crashLogger(), err)
			}
			logger, err := s.logger(c.Log)
			if err != nil {
				return err
			}
			err = app.Run(cmd.Context(), app.Options{
				Config: c, Roles: roles, Logger: logger, Host: s.env.Host, Version: s.build().Version, Environ: s.env.Environ,
			})
			return s.fatal(cmd.Context(), logger, err)
		},
	}
}

// fatal reports why a role ends, as a log line where logs are lines of JSON: whoever collects them must not
// have to parse prose. The error keeps its exit code.
func (s *session) fatal(ctx context.Context, logger zerolog.Logger, err error) error {
	if err == nil || s.env.StderrTTY {
		return err
	}
	event := logger.WithLevel(zerolog.FatalLevel)
	if faults, ok := errors.AsType[config.FaultsError](err); ok {
		lines := make([]string, len(faults))
		for i, fault := range faults {
			lines[i] = fault.String()
		}
		event.Strs("faults", lines).Msg("the configuration is not usable")
	} else {
		event.Err(err).Str(telemetry.FieldErrorClass, string(resilience.Classify(err))).Msg("stopped by an error")
	}
	return reported(ctx, err)
}
