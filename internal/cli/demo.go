package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/demo"
)

// demoFlags are the flags of demo.
type demoFlags struct {
	timeout time.Duration
	logs    bool
}

func demoCommand(s *session) *cobra.Command {
	var flags demoFlags
	cmd := &cobra.Command{
		Use: "demo", Short: "Show the whole way of an event on real services, and account for every one", Args: cobra.NoArgs,
		Long: "Run 240 sample orders through outbox, relay, queues and the services of a shop, with payments that fail, a\n" +
			"malformed message, a stuck order, dead letters and their redrive; then account for every order and every\n" +
			"event. Exits 1 when anything is unaccounted for. `make demo` starts a local stack for it.\n\n" +
			"It needs PostgreSQL and RabbitMQ and touches only its own there: the schemas " + demo.DefaultPrefix + "* and the vhost\n" +
			demo.DefaultVhost + ", which each run makes anew. What is in them stays, to be looked at.",
		RunE: func(cmd *cobra.Command, _ []string) error { return s.demo(cmd.Context(), flags) },
	}
	cmd.Flags().DurationVar(&flags.timeout, "timeout", demo.DefaultTimeout, "how long to wait for everything to end")
	cmd.Flags().BoolVar(&flags.logs, "logs", false, "also show the log lines of relay, services and watchdog")
	s.outputFlag(cmd)
	return cmd
}

const demoHint = "`make demo` starts a local stack and sets both URLs; `scripts/stack status` tells whether one is up"

func (s *session) demo(ctx context.Context, flags demoFlags) error {
	if s.output == formatName {
		return usageErrorf("use table, json or jsonl", "an account has no names to list")
	}
	if flags.timeout <= 0 {
		return usageErrorf("", "--timeout must be more than 0")
	}
	c, err := s.config(need{database: true, amqp: true})
	if err != nil {
		return usageErrorf(demoHint, "%w", err)
	}
	options, err := s.demoOptions(c, flags)
	if err != nil {
		return err
	}
	d, err := demo.New(options)
	if err != nil {
		return err
	}
	account, err := d.Run(ctx)
	s.demoLive("")
	if err != nil {
		return servicesFailure(err, "no service answers there; "+demoHint)
	}
	if err := s.showAccount(account); err != nil {
		return err
	}
	s.note("Every order and every event is accounted for, in %.1f s.", account.Seconds)
	s.note("\n%s", s.whatToLookAt(c))
	return nil
}

func (s *session) demoOptions(c *config.Config, flags demoFlags) (demo.Options, error) {
	orders, err := s.demoOrders()
	if err != nil {
		return demo.Options{}, err
	}
	who, err := s.operator()
	if err != nil {
		return demo.Options{}, err
	}
	logger := zerolog.Nop()
	if flags.logs {
		if logger, err = s.logger(c.Log); err != nil {
			return demo.Options{}, err
		}
	}
	return demo.Options{
		DatabaseURL: c.Database.URL.Reveal(), AMQPURL: c.AMQP.URL.Reveal(), ManagementURL: c.AMQP.ManagementURL.Reveal(), TLS: c.AMQP.TLS(),
		Orders: orders, Timeout: flags.timeout, Who: who, Host: s.env.Host, Version: s.build().Version, Logger: logger,
		Say: func(line string) { s.demoLive(""); s.note("%s", line) }, Live: s.everySoOften(),
	}, nil
}

// demoFile is in the repository. Elsewhere the same orders are made anew.
const demoFile = "examples/shop/testdata/orders.jsonl"

func (s *session) demoOrders() (io.Reader, error) {
	text, err := s.env.ReadFile(demoFile)
	switch {
	case err == nil:
		s.note("orders      %s", demoFile)
		return bytes.NewReader(text), nil
	case errors.Is(err, fs.ErrNotExist):
		return demo.SampleOrders()
	}
	return nil, fmt.Errorf("read orders: %w", err)
}

// demoLive rewrites the line of progress on a terminal.
func (s *session) demoLive(line string) {
	if s.env.StderrTTY {
		fmt.Fprintf(s.env.Stderr, "\r%s\x1b[K", Escape(line, maxCell))
	}
}

// everySoOften shows progress: on a terminal in place, elsewhere as a line now and then.
func (s *session) everySoOften() func(string) {
	if s.env.StderrTTY {
		return s.demoLive
	}
	told, last := time.Now(), ""
	return func(line string) {
		if time.Since(told) >= newLine && line != last {
			told, last = time.Now(), line
			s.note("            %s", line)
		}
	}
}

// whatToLookAt is the end of a demonstration: RabbitMQ's console, and the commands that show what is left.
func (s *session) whatToLookAt(c *config.Config) string {
	login, local := s.consoleLogin(c)
	binary, amqpURL := "surefoot", "amqp://.../"+demo.DefaultVhost
	if local {
		binary, amqpURL = `eval "$(scripts/stack env)"; bin/surefoot`, `"${SUREFOOT_AMQP_URL}`+demo.DefaultVhost+`"`
	}
	return strings.Join([]string{
		"RabbitMQ's console  " + consoleURL(c) + "/#/queues?vhost=" + url.QueryEscape(demo.DefaultVhost),
		"login               " + login,
		"look at             inventory.orders.dlq: the malformed message, with its reason in the headers sf-error-*",
		"                    notifications.mail.dlq: mails that bounced, which held no order up",
		"                    payments.saga.dlq: empty again, for its letters were redriven; payments.saga.retry: where they waited",
		"                    " + demo.Witness + ": a copy of every event that was published",
		"on the command line " + binary + " dlq show --queue inventory.orders --schema " + demo.DefaultPrefix + " --amqp-url " + amqpURL,
	}, "\n")
}

func consoleURL(c *config.Config) string {
	if u, err := url.Parse(c.AMQP.ManagementURL.Reveal()); err == nil && u.Host != "" {
		u.User, u.RawQuery, u.Fragment = nil, "", ""
		return strings.TrimSuffix(u.String(), "/")
	}
	u, err := url.Parse(c.AMQP.URL.Reveal())
	if err != nil {
		return "(its management page)"
	}
	if u.Scheme == "amqps" {
		return "https://" + net.JoinHostPort(u.Hostname(), "15671")
	}
	return "http://" + net.JoinHostPort(u.Hostname(), "15672")
}

// consoleLogin names the user. The password is shown only when it is the local stack's own, made up for it and of no use
// elsewhere: when the URL is the one that scripts/stack has written down.
func (s *session) consoleLogin(c *config.Config) (login string, local bool) {
	u, err := url.Parse(c.AMQP.URL.Reveal())
	if err != nil {
		return "as in the AMQP URL", false
	}
	user := u.User.Username()
	if user == "" {
		user = "guest"
	}
	lines, err := s.env.ReadFile(filepath.Join(s.stackDir(), "env"))
	if err != nil || !strings.Contains("\n"+string(lines), "\nexport SUREFOOT_AMQP_URL='"+u.String()+"'\n") {
		return user + ", with the password of the AMQP URL", false
	}
	password, _ := u.User.Password()
	return user + " / " + password, true
}
