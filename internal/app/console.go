package app

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/console"
	"github.com/surefoot-mq/surefoot/watchdog"
)

func consoleRole() Role {
	return Role{
		Name:       "console",
		Configured: func(c *config.Config) bool { return c.Console.Listen != "" },
		Missing:    "console.listen is not set",
		Early:      true,
		New: func(d Deps) (Runner, error) {
			pool, err := d.Pool("console")
			if err != nil {
				return nil, err
			}
			options, err := ConsoleOptions(d.Config, pool, d.Logger, d.Host, d.Version)
			if err != nil {
				return nil, err
			}
			options.Ready = d.Ready
			options.Listening = func(addr string) {
				d.Logger.Info().Str("addr", addr).Msg("console is served")
				d.ConsoleListening(addr)
			}
			return console.New(options)
		},
	}
}

// ConsoleOptions are the console's options of a configuration, without who acts. What the watchdog watches and what is reconciled is
// looked at, not run.
func ConsoleOptions(c *config.Config, pool *pgxpool.Pool, logger zerolog.Logger, host, version string) (console.Options, error) {
	o := console.Options{
		Listen: c.Console.Listen, Pool: pool, Schema: c.Database.Schema, AMQPURL: c.AMQP.Source.Reveal(), ManagementURL: c.AMQP.ManagementSource.Reveal(),
		Topology: c.Topology, TraceLink: c.Tracing.Link, Logger: logger, Host: host, Version: version,
	}
	if err := consoleAccess(c, &o); err != nil {
		return o, err
	}
	if len(c.Watchdog.Rules) > 0 {
		options := WatchdogOptions(c)
		options.Pool, options.Logger = pool, logger
		var err error
		if o.Sagas, err = watchdog.New(options); err != nil {
			return o, err
		}
	}
	if len(c.Reconcile.Rules) > 0 {
		r, err := NewReconciler(ReconcilerOptions{Config: c, Pool: pool, Host: host, Logger: logger})
		if err != nil {
			return o, err
		}
		o.Reconciler = r.Reconciler
	}
	return o, nil
}
