package app

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/console"
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
			options := ConsoleOptions(d.Config, pool, d.Logger, d.Host, d.Version)
			options.Ready = d.Ready
			return console.New(options)
		},
	}
}

// ConsoleOptions are the console's options of a configuration, without who acts.
func ConsoleOptions(c *config.Config, pool *pgxpool.Pool, logger zerolog.Logger, host, version string) console.Options {
	return console.Options{
		Listen: c.Console.Listen, Pool: pool, Schema: c.Database.Schema, AMQPURL: c.AMQP.URL.Reveal(), ManagementURL: c.AMQP.ManagementURL.Reveal(),
		TLS: c.AMQP.TLS(), Topology: c.Topology, Logger: logger, Host: host, Version: version,
	}
}
