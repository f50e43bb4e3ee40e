package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/resilience"
)

// Waits between starts of a role that failed with an error which will pass.
const (
	firstRestart = 200 * time.Millisecond
	lastRestart  = 10 * time.Second
)

// running is a set of roles at work.
type running struct {
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	failed  chan error
	mu      sync.Mutex
	working map[string]bool
	errs    []error
}

var errStarting = errors.New("starting")

// build makes every role before anything works, so that every fault of a configuration is found at once.
func (a *application) build(ctx context.Context, roles []Role) ([]Runner, error) {
	runners := make([]Runner, len(roles))
	var failed []error
	for i, role := range roles {
		var err error
		if runners[i], err = role.New(a.deps(ctx, role)); err != nil {
			failed = append(failed, &SetupError{Role: role.Name, Err: err})
		}
	}
	return runners, errors.Join(failed...)
}

// start runs the roles once the database is there.
func (a *application) start(ctx context.Context, roles []Role, runners []Runner) (*running, error) {
	gate, err := a.newGate(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &running{cancel: cancel, failed: make(chan error, len(roles)+1), working: map[string]bool{}}
	r.run("database watch", a.logger, func() error { return gate.watch(ctx) })
	for i, role := range roles {
		logger := a.logger.With().Str(telemetry.FieldRole, role.Name).Logger()
		r.run(role.Name, logger, func() error {
			if !role.Early && !gate.passed(ctx) {
				return nil
			}
			return supervise(ctx, runners[i], logger, a.readiness.Part(role.Name))
		})
	}
	return r, nil
}

func (a *application) deps(ctx context.Context, role Role) Deps {
	return Deps{
		Config:        a.config,
		Logger:        a.logger.With().Str(telemetry.FieldRole, role.Name).Logger(),
		Registerer:    a.registry,
		Ready:         a.readiness.Part(role.Name),
		Pool:          func(name string) (*pgxpool.Pool, error) { return a.openPool(ctx, name) },
		Schema:        a.config.Database.Schema,
		AMQPURL:       a.config.AMQP.Source.Reveal(),
		ManagementURL: a.config.AMQP.ManagementSource.Reveal(),
		Host:          a.opts.Host,
		Version:       a.opts.Version,
		Drain:         a.drain(),

		ConsoleListening: a.opts.ConsoleListening,
	}
}

// run starts one part and remembers how it ended.
func (r *running) run(name string, logger zerolog.Logger, part func() error) {
	r.mu.Lock()
	r.working[name] = true
	r.mu.Unlock()
	r.wg.Go(func() {
		defer telemetry.FatalOnPanic(logger)
		err := part()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.working, name)
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
			r.errs = append(r.errs, err)
			r.failed <- err
		}
	})
}

// wait blocks until ctx ends, or until a role has failed with the error that it returns.
func (r *running) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-r.failed:
		return err
	}
}

// stop ends the roles' context, waits for them no longer than the deadline, and returns every role's error.
func (r *running) stop(deadline time.Time) error {
	r.cancel()
	done := make(chan struct{})
	go func() { r.wg.Wait(); close(done) }()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	errs := r.errs
	for name := range r.working {
		errs = append(errs, fmt.Errorf("%s did not stop in time; what it held goes back to its queue", name))
	}
	return errors.Join(errs...)
}

// supervise runs a role again while its errors are of a kind that passes.
func supervise(ctx context.Context, runner Runner, logger zerolog.Logger, ready func(error)) error {
	wait := firstRestart
	for {
		began := time.Now()
		err := runner.Run(ctx)
		switch {
		case ctx.Err() != nil:
			return stopError(err)
		case err == nil:
			return errors.New("ended without being told to")
		case !passes(err):
			return err
		}
		if time.Since(began) > lastRestart {
			wait = firstRestart
		}
		ready(err)
		logger.Warn().Err(err).Stringer("wait", wait).Msg("role failed, starting it again")
		if !pause.For(ctx, wait) {
			return nil
		}
		wait = min(wait*2, lastRestart)
	}
}

// passes tells whether a role may be started again after this error.
func passes(err error) bool {
	switch resilience.Classify(err) {
	case resilience.ClassTransient, resilience.ClassUnavailable, resilience.ClassTimeout, resilience.ClassDatabaseRetry:
		return true
	case resilience.ClassNone, resilience.ClassUnknown, resilience.ClassPermanent, resilience.ClassCancelled, resilience.ClassShutdown:
	}
	return false
}

// stopError drops the trace that the end of the context leaves in a role's error.
func stopError(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
