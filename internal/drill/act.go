package drill

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

// ActOptions are what a process of a drill has from its configuration.
type ActOptions struct {
	// Name of the role. Required.
	Name string
	// Task is its JSON. Required.
	Task io.Reader
	// DatabaseURL, Schema, AMQPURL and TLS as in Options; the schema is the arm's.
	DatabaseURL, Schema, AMQPURL string
	TLS                          *tls.Config
	// Host and Version name this process to the broker.
	Host, Version string
	Logger        zerolog.Logger
}

// Act plays a role of a drill that needs a process of its own, until its task is done, ctx ends, or it kills itself, as its task
// says.
func Act(ctx context.Context, o ActOptions) error {
	role := map[string]func(context.Context, ActOptions) error{
		roleTill: actTill, roleWorker: actWorker, roleCareless: actCareless, roleHoarder: actHoarder, roleDesk: actDesk, roleMemoryDesk: actMemoryDesk,
	}[o.Name]
	if role == nil {
		return fmt.Errorf("there is no role %q", o.Name)
	}
	return role(ctx, o)
}

// task reads the role's task.
func task[T any](o ActOptions) (t T, err error) {
	if err := json.NewDecoder(o.Task).Decode(&t); err != nil {
		return t, fmt.Errorf("read the task of %s: %w", o.Name, err)
	}
	return t, nil
}

func (o ActOptions) pool(ctx context.Context) (*pgxpool.Pool, error) {
	return pg.Open(ctx, pg.Options{URL: o.DatabaseURL, Name: "surefoot drill " + o.Name, MaxConns: 10})
}

// die ends this process as a crash would, and does not return.
func die() error {
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGKILL); err != nil {
		return err
	}
	select {} // until the signal has arrived
}

// act starts the process of a role.
func (s *stage) act(ctx context.Context, role string, task any) (*process, error) {
	return s.start(ctx, launch{args: []string{"drill", "act", role}, env: s.environ(cmp.Or(s.url, s.o.AMQPURL)), stdin: task})
}
