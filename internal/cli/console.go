package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/console"
	"github.com/surefoot-mq/surefoot/internal/pg"
)

func consoleCommand(s *session) *cobra.Command {
	listen := ""
	cmd := &cobra.Command{
		Use: "console", Short: "Serve the operators' page to browsers, until stopped", Args: cobra.NoArgs,
		Long: "Serve the operators' page: what flows, what is stuck and why, dead letters, redrives. Without a login it listens on loopback\n" +
			"addresses only; from elsewhere take a tunnel: ssh -L 9465:" + console.DefaultListen + " HOST. console.login has people log in, and then it\n" +
			"listens anywhere, with TLS or behind a trusted proxy. Changes are in the audit, by the person who is logged in; without a login by\n" +
			"--as, else SUREFOOT_OPERATOR, else console@host. Database and broker may be away: the page says what it lacks.\n\n" +
			"`surefoot run` serves it too, where console.listen is set.",
		RunE: func(cmd *cobra.Command, _ []string) error { return s.console(cmd.Context(), listen) },
	}
	cmd.Flags().StringVar(&listen, "listen", "", "`host:port` to listen on; port 0 takes a free one (default console.listen, else "+console.DefaultListen+")")
	cmd.AddCommand(consoleHashPassword(s))
	return cmd
}

func (s *session) console(ctx context.Context, listen string) error {
	c, err := s.config(need{database: true, amqp: true})
	if err != nil {
		return err
	}
	listen = cmp.Or(listen, c.Console.Listen, console.DefaultListen)
	who := ""
	if s.as != "" || s.env.getenv("SUREFOOT_OPERATOR") != "" {
		if who, err = s.operator(); err != nil {
			return err
		}
	}
	options, err := s.consoleOptions(ctx, c)
	if err != nil {
		return err
	}
	options.Listen, options.Who = listen, who
	options.Listening = func(addr string) {
		s.note("the console is on %s; Ctrl-C ends it", consoleAddress(c.Console, addr))
	}
	served, err := console.New(options)
	if err == nil {
		err = served.Run(ctx)
	}
	if errors.Is(err, console.ErrListen) {
		return usageErrorf("", "%w", err)
	}
	return err
}

// consoleAddress is where browsers find it.
func consoleAddress(c config.Console, addr string) string {
	switch {
	case c.PublicURL != "":
		return strings.TrimSuffix(c.PublicURL, "/") + "/, listening on " + addr
	case c.CertFile != "":
		return "https://" + addr + "/"
	}
	return "http://" + addr + "/ for browsers of this machine"
}

// consoleOptions opens a pool without asking whether the database is there: the page tells.
func (s *session) consoleOptions(ctx context.Context, c *config.Config) (console.Options, error) {
	logger, err := s.logger(c.Log)
	if err != nil {
		return console.Options{}, err
	}
	pool, err := pg.Open(ctx, pg.Options{
		URL: c.Database.Source.Reveal(), Name: "surefoot console " + s.env.Host, MaxConns: int32(c.Database.MaxConns),
		ConnectTimeout: c.Database.ConnectTimeout, StatementTimeout: c.Database.StatementTimeout,
	})
	if err != nil {
		return console.Options{}, fmt.Errorf("open the database: %w", err)
	}
	s.onClose(func() error { pool.Close(); return nil })
	return app.ConsoleOptions(c, pool, logger, s.env.Host, s.build().Version)
}
