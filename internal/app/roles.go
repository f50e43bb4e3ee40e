package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/config"
)

// Role is one long-running part of the program.
type Role struct {
	// Name is the noun of the command that runs the role alone; it labels logs and readiness.
	Name string
	// Configured tells whether the configuration has what the role needs: `surefoot run` starts it only then, and the
	// role's own command refuses to.
	Configured func(*config.Config) bool
	// Missing says what a configuration lacks in which the role is not configured, and what to do.
	Missing string
	// Early says that the role works also before the database is there. Default: it waits for it.
	Early bool
	// New builds the role. It validates and does no I/O.
	New func(Deps) (Runner, error)
}

// Runner is a role that has been built.
type Runner interface {
	// Run works until ctx ends and then stops within Deps.Drain, returning nil. It may be called again
	// after it returned an error.
	Run(ctx context.Context) error
}

// Deps is what a role is built from.
type Deps struct {
	// Config is the whole configuration; a role reads its own section.
	Config *config.Config
	// Logger carries the role's name.
	Logger zerolog.Logger
	// Registerer takes the role's metrics.
	Registerer prometheus.Registerer
	// Ready reports the role's readiness: nil, or the reason why not.
	Ready func(reason error)
	// Pool opens a pool of PostgreSQL connections under a name; the application closes it after the roles
	// have stopped. Roles do not share pools: a slow one must not starve another.
	Pool func(name string) (*pgxpool.Pool, error)
	// Schema holds Surefoot's tables.
	Schema string
	// AMQPURL is the broker's URL, with what it takes to connect: password and files for TLS. It may be the name of a file that holds it.
	AMQPURL string
	// ManagementURL is the management plugin's URL, or the name of the file that holds it.
	ManagementURL string
	// Host and Version name this process in connections and failure records.
	Host, Version string
	// ConsoleListening is called with the console's address once it answers.
	ConsoleListening func(addr string)
	// Drain is how long the role may take to finish what it holds once its context has ended. What is
	// not finished then is cancelled.
	Drain time.Duration
}

// Roles are all the roles of this program, in the order in which they are started.
func Roles() []Role {
	return []Role{relayRole(), consumeRole(), watchdogRole(), reconcileRole(), deadLettersRole(), consoleRole()}
}

// ErrNothingToRun is wrapped by Run's error when the configuration has no role, or not what a role needs.
var ErrNothingToRun = errors.New("the configuration has nothing to run")

// SetupError says that a role cannot be built from the configuration: nothing has been started.
type SetupError struct {
	Role string
	Err  error
}

// Error implements error.
func (e *SetupError) Error() string { return "set up " + e.Role + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *SetupError) Unwrap() error { return e.Err }

// choose picks the roles by name, which must be configured, or those that are configured when no name is given.
func choose(all []Role, names []string, c *config.Config) ([]Role, error) {
	var chosen []Role
	var missing []error
	for _, role := range all {
		named, configured := slices.Contains(names, role.Name), role.Configured(c)
		switch {
		case configured && (named || len(names) == 0):
			chosen = append(chosen, role)
		case named:
			missing = append(missing, fmt.Errorf("%w: %s: %s", ErrNothingToRun, role.Name, role.Missing))
		}
	}
	switch {
	case len(names) > len(chosen)+len(missing):
		return nil, fmt.Errorf("no such role among %s", strings.Join(names, ", "))
	case len(missing) > 0:
		return nil, errors.Join(missing...)
	case len(chosen) == 0:
		return nil, ErrNothingToRun
	}
	return chosen, nil
}
