package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/console"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/topology"
)

func devCommand(s *session) *cobra.Command {
	reset := false
	cmd := &cobra.Command{
		Use: "dev", Short: "Start everything for development: stack, schema, queues, all roles, the console", Args: cobra.NoArgs,
		Long: "Start everything for development and stay until Ctrl-C: the services, Surefoot's tables, the queues, and every role with the\n" +
			"console. It says where things are and what to try.\n\n" +
			"Services: those of SUREFOOT_DATABASE_URL and SUREFOOT_AMQP_URL. Where one is missing, the local stack of the checkout around the\n" +
			"working directory is started (scripts/stack), and stopped again at the end unless it ran before. Data stay; --reset deletes\n" +
			"those of the local stack first. Services on other machines are asked about before anything is made there.\n\n" +
			"Queues: those of surefoot.yaml. Where it has none there is one to practise with, " + practiceQueue + ", whose worker fails on demand, see\n" +
			"`surefoot worker practice`.",
		RunE: func(cmd *cobra.Command, _ []string) error { return (&developer{session: s}).run(cmd.Context(), reset) },
	}
	cmd.Flags().BoolVar(&reset, "reset", false, "first delete all data of the local stack")
	s.changeFlags(cmd)
	return cmd
}

// developer is one `surefoot dev`.
type developer struct {
	session  *session
	config   *config.Config
	stack    *devStack // nil: all services are given
	program  string    // this one's path
	practice string    // the file that mends the practice worker; empty: the queues are the configuration's
}

func (d *developer) run(ctx context.Context, reset bool) (err error) {
	s := d.session
	if d.config, err = s.config(need{}); err != nil {
		return err
	}
	if d.stack, err = s.devStack(d.config); err != nil {
		return err
	}
	if s.dryRun {
		return d.preview(reset)
	}
	if err := d.reset(ctx, reset); err != nil {
		return err
	}
	if d.stack != nil {
		defer func() { err = errors.Join(err, d.stack.stop(ctx)) }()
		if err := d.stack.up(ctx); err != nil {
			return err
		}
	}
	if err := d.configure(); err != nil {
		return err
	}
	if err := d.ask(ctx); err != nil {
		return err
	}
	if err := d.prepare(ctx); err != nil {
		return err
	}
	return d.work(ctx)
}

// preview is what --dry-run says.
func (d *developer) preview(reset bool) error {
	s := d.session
	if reset && d.stack != nil {
		s.note("would delete all data of the local stack of %s", d.stack.root)
	}
	if d.stack != nil {
		s.note("would start the local stack of %s, where it is not up: %s", d.stack.root, strings.Join(d.stack.wanted, ", "))
	}
	if err := d.fill(); err != nil {
		return err
	}
	s.note("would migrate schema %s, make the topology of %s, and run all roles; nothing was changed",
		d.config.Database.Schema, counted(len(d.config.Topology.Queues), "queue"))
	return nil
}

func (d *developer) reset(ctx context.Context, wanted bool) error {
	switch {
	case !wanted:
		return nil
	case d.stack == nil:
		return usageErrorf("drop the schema and delete the queues by hand", "--reset is for the local stack, and both services are given by their URLs")
	}
	if err := d.session.confirm(ctx, question{Verb: "delete", Count: 1, Target: "all data of the local stack of " + d.stack.root}); err != nil {
		return err
	}
	return d.stack.reset(ctx)
}

// configure reads the configuration once the URLs are known.
func (d *developer) configure() (err error) {
	if d.config, err = d.session.config(need{database: true, amqp: true}); err != nil {
		return err
	}
	return d.fill()
}

// fill gives the configuration what a machine for development wants: all on loopback, a console, something to practise with.
func (d *developer) fill() error {
	c := d.config
	c.Console.Listen = cmp.Or(c.Console.Listen, console.DefaultListen)
	if c.HTTP.Listen == config.Default().HTTP.Listen {
		c.HTTP.Listen = "127.0.0.1" + c.HTTP.Listen
	}
	c.HTTP.CertFile, c.HTTP.KeyFile = "", "" // on this machine, for whoever is at it
	var err error
	if d.program, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if len(c.Topology.Queues) > 0 {
		return nil
	}
	if d.practice, err = filepath.Abs(practiceFile); err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	exchange := c.Topology.Exchange
	c.Topology = practiceSpec(d.program, d.practice)
	c.Topology.Exchange = cmp.Or(exchange, c.Topology.Exchange)
	return nil
}

// ask is for services that are not this machine's own: others may work there.
func (d *developer) ask(ctx context.Context) error {
	var there []string
	for _, at := range []config.URL{d.config.Database.URL, d.config.AMQP.URL} {
		if host := foreignHost(at.Reveal()); host != "" && !slices.Contains(there, host) {
			there = append(there, host)
		}
	}
	if len(there) == 0 {
		return nil
	}
	return d.session.confirm(ctx, question{
		Verb: "make", Count: 1, Target: fmt.Sprintf("schema %s and the topology of %s on %s",
			d.config.Database.Schema, counted(len(d.config.Topology.Queues), "queue"), strings.Join(there, ", ")),
	})
}

// foreignHost is the host of a URL unless it is this machine; of what is not plainly a URL of this machine it is all that may be shown.
func foreignHost(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return "services whose URL names no single host"
	}
	switch u.Hostname() {
	case "localhost", "127.0.0.1", "::1":
		return ""
	}
	return u.Host
}

// prepare makes tables and queues.
func (d *developer) prepare(ctx context.Context) error {
	s, c := d.session, d.config
	steps, err := pg.Migrate(ctx, pg.MigrateOptions{URL: c.Database.URL.Reveal(), Schema: c.Database.Schema})
	if err != nil {
		return err
	}
	s.note("schema      %s, %s applied now", c.Database.Schema, counted(len(steps), "migration"))
	t, err := topology.New(topology.Options{ // no logger: what it makes is told below, in one line
		Spec: c.Topology, URL: c.AMQP.URL.Reveal(), ManagementURL: c.AMQP.ManagementURL.Reveal(), TLS: c.AMQP.TLS(),
		Host: s.env.Host, Version: s.build().Version,
	})
	if err != nil {
		return err
	}
	plan, err := t.Apply(ctx, topology.ApplyOptions{})
	if errors.Is(err, topology.ErrConflicts) {
		return usageErrorf("`surefoot topology plan` says what stands in the way, docs/upgrading.md what to do", "make the queues: %w", err)
	}
	if err != nil {
		return fmt.Errorf("make the queues: %w", err)
	}
	made := 0
	for _, change := range plan.Changes {
		if change.Done {
			made++
		}
	}
	s.note("topology    %s, %s made now", counted(len(c.Topology.Queues), "queue"), counted(made, "thing"))
	return nil
}

// work runs every role until ctx ends.
func (d *developer) work(ctx context.Context) error {
	s, c := d.session, d.config
	logger, err := telemetry.NewLogger(telemetry.LoggerOptions{
		Writer: s.env.Stderr, Level: c.Log.Level, NoColor: !s.env.color(), Pretty: c.Log.Format != "json",
		Without: []string{telemetry.FieldRole, telemetry.FieldRequestID, "version", "prefetch", "concurrency", "timeout"},
	})
	if err != nil {
		return err
	}
	logger = logger.Hook(zerolog.HookFunc(func(e *zerolog.Event, _ zerolog.Level, message string) {
		if strings.HasPrefix(message, "shard ") { // taken and released, once for each: of interest where there are several relays
			e.Discard()
		}
	}))
	guide := newGuide(d, logger)
	stop, err := guide.start(ctx)
	if err != nil {
		return err
	}
	defer stop()
	err = app.Run(ctx, app.Options{
		Config: c, Logger: logger, Host: s.env.Host, Version: s.build().Version, Environ: s.env.Environ,
		Listening: guide.probes, ConsoleListening: guide.consoleAt,
	})
	return s.fatal(ctx, logger, err)
}
