package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/internal/tlsfiles"
)

// Options says what to run.
type Options struct {
	// Config is a checked configuration. Required.
	Config *config.Config
	// Roles are the names of the roles to run. Default: all that are configured.
	Roles []string
	// Available are the roles to choose from. Default: Roles().
	Available []Role
	// Logger takes every line. Default: none are written.
	Logger zerolog.Logger
	// Host names this machine in connections and failure records. Default "unknown".
	Host string
	// Version is this program's version. Default "dev".
	Version string
	// Environ is the environment as NAME=value, for the OTEL_* variables. Default: empty.
	Environ []string
	// Listening is called with the address of the probes once they answer. Default: not called.
	Listening func(addr string)
	// ConsoleListening is called with the console's address whenever it has come to answer. Default: not called.
	ConsoleListening func(addr string)
}

func (o Options) withDefaults() Options {
	if o.Available == nil {
		o.Available = Roles()
	}
	if o.ConsoleListening == nil {
		o.ConsoleListening = func(string) {}
	}
	o.Host, o.Version = cmp.Or(o.Host, "unknown"), cmp.Or(o.Version, "dev")
	return o
}

// poolClose bounds how long a pool may take to close.
const poolClose = 2 * time.Second

// application is one run of the program.
type application struct {
	opts      Options
	config    *config.Config
	logger    zerolog.Logger
	registry  *prometheus.Registry
	readiness telemetry.Readiness
	pools     *telemetry.PoolCollector
	cleanups  cleanups
	// stopBy is when the process must have ended; zero while nobody has asked for it.
	stopBy time.Time
}

// Run starts the chosen roles and blocks until ctx ends or one of them fails for good. It returns nil after
// an orderly stop. A configuration that cannot work is an error, ErrNothingToRun or a *SetupError for each role, before
// anything is opened.
func Run(ctx context.Context, opts Options) error {
	opts = opts.withDefaults()
	defer telemetry.FatalOnPanic(opts.Logger)
	if opts.Config == nil {
		return errors.New("app: Config is missing")
	}
	roles, err := choose(opts.Available, opts.Roles, opts.Config)
	if err != nil {
		return err
	}
	a := &application{
		opts: opts, config: opts.Config, logger: opts.Logger,
		registry: telemetry.NewRegistry(opts.Version), pools: telemetry.NewPoolCollector(),
	}
	err = errors.Join(a.run(ctx, roles), a.close(ctx))
	if err == nil {
		a.logger.Info().Msg("stopped")
	}
	return err
}

// run works until it is time to close. Whatever must be ready is not so before the probes can be asked.
func (a *application) run(ctx context.Context, roles []Role) error {
	a.readiness.Set(databasePart, errStarting)
	for _, role := range roles {
		a.readiness.Set(role.Name, errStarting)
	}
	runners, err := a.build(ctx, roles)
	if err != nil {
		return err
	}
	if err := a.open(ctx); err != nil {
		return err
	}
	running, err := a.start(ctx, roles, runners)
	if err != nil {
		return err
	}
	failed := running.wait(ctx)
	a.stopBy = time.Now().Add(a.config.Shutdown.Timeout)
	a.readiness.Drain()
	a.logger.Info().Err(failed).Stringer("timeout", a.config.Shutdown.Timeout).Msg("stopping")
	return running.stop(a.stopBy.Add(-a.reserve()))
}

// reserve is the part of the shutdown's time that is kept for closing what the roles have used.
func (a *application) reserve() time.Duration {
	return min(3*time.Second, a.config.Shutdown.Timeout/5)
}

// drain is the roles' part, less a margin to return from a cancelled drain.
func (a *application) drain() time.Duration {
	return (a.config.Shutdown.Timeout - a.reserve()) * 4 / 5
}

// open brings up what every role needs: the probes come first and are closed last, after what the roles were built with.
func (a *application) open(ctx context.Context) error {
	a.registry.MustRegister(a.pools, QueueInfo(a.config.Topology))
	stopTracing, err := telemetry.StartTracing(ctx, telemetry.TracingOptions{
		Endpoint: a.config.Tracing.Endpoint, SampleRatio: a.config.Tracing.SampleRatio,
		Version: a.opts.Version, Environ: a.opts.Environ, Logger: a.logger,
	})
	if err != nil {
		return err
	}
	a.cleanups.last("tracing", stopTracing)
	server, err := telemetry.Serve(ctx, telemetry.ServerOptions{
		Listen: a.config.HTTP.Listen, Files: tlsfiles.Files{Cert: a.config.HTTP.CertFile, Key: a.config.HTTP.KeyFile}, Readiness: &a.readiness, Gatherer: a.registry, Logger: a.logger,
	})
	if err != nil {
		return err
	}
	a.cleanups.last("probes", server.Close)
	a.logger.Info().Str("addr", server.Addr()).Str("version", a.opts.Version).Msg("probes are served")
	if a.opts.Listening != nil {
		a.opts.Listening(server.Addr())
	}
	return nil
}

// close undoes open and the pools. It works on after the end of ctx, which is what asked for it.
func (a *application) close(ctx context.Context) error {
	if a.stopBy.IsZero() { // it has not come to running
		a.stopBy = time.Now().Add(a.config.Shutdown.Timeout)
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), a.stopBy)
	defer cancel()
	if err := a.cleanups.run(ctx); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}

// openPool opens a role's pool and closes it after the roles have stopped.
func (a *application) openPool(ctx context.Context, name string) (*pgxpool.Pool, error) {
	pool, err := pg.Open(context.WithoutCancel(ctx), pg.Options{
		URL:              a.config.Database.Source.Reveal(),
		Name:             fmt.Sprintf("surefoot %s %s", name, a.opts.Host),
		MaxConns:         int32(a.config.Database.MaxConns),
		ConnectTimeout:   a.config.Database.ConnectTimeout,
		StatementTimeout: a.config.Database.StatementTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("open pool %s: %w", name, err)
	}
	a.pools.Add(name, pool)
	a.cleanups.add("pool "+name, func(ctx context.Context) error {
		a.closePool(ctx, name, pool)
		return nil
	})
	return pool, nil
}

// closePool waits for connections on which a statement was cut off, but not for a database that does not answer: the
// roles have stopped, so nothing depends on it, and the end of the process closes them too.
func (a *application) closePool(ctx context.Context, name string, pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() { pool.Close(); close(closed) }()
	left := poolClose
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(deadline)*3/4)
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
		a.logger.Warn().Str("pool", name).Msg("connections are still in use or the database does not answer: they end with the process")
	}
}
