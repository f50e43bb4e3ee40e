package drill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/topology"
)

// stage is what one arm works with. Its methods are for the arm's goroutine unless they say otherwise.
type stage struct {
	run    *Runner
	o      Options
	drill  Drill
	arm    string
	set    Settings
	random *rand.Rand
	schema string // its own, also the prefix of more
	vhost  string

	logs   *logBook
	logger zerolog.Logger

	pool      *pgxpool.Pool
	url       string // of the vhost; empty: none yet
	unsettled bool   // queues may still be in the making
	strangers atomic.Int64

	mu      sync.Mutex
	figures []Figure
	tables  []Table
	closers []func(ctx context.Context) error
}

func newStage(r *Runner, d Drill, arm Arm, set Settings) *stage {
	logs := &logBook{}
	s := &stage{
		run: r, o: r.o, drill: d, arm: arm.Name, set: set, logs: logs,
		random: rand.New(rand.NewPCG(uint64(set.Seed), 0)), //nolint:gosec // to be drawn again
		schema: fmt.Sprintf("%s%s_%d", schemaPrefix, r.id, r.arms), vhost: fmt.Sprintf("%s%s-%d", vhostPrefix, r.id, r.arms),
	}
	s.logger = zerolog.New(logs).With().Timestamp().Str("drill", d.Name).Str("arm", arm.Name).Logger()
	return s
}

// observe notes a figure. A later one of a name replaces the earlier one. Safe for concurrent use.
func (s *stage) observe(name string, value any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.figures {
		if s.figures[i].Name == name {
			s.figures[i].Value = value
			return
		}
	}
	s.figures = append(s.figures, Figure{name, value})
}

func (s *stage) table(title string, columns []string, rows [][]string) {
	s.tables = append(s.tables, Table{title, columns, rows})
}

// onClose has something ended with the arm, last in, first out, also after a failure. Safe for concurrent use.
func (s *stage) onClose(closer func(ctx context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closers = append(s.closers, closer)
}

// closeLimit bounds the clean-up.
const closeLimit = 90 * time.Second

func (s *stage) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	var failed []error
	for _, closer := range slices.Backward(s.closers) {
		failed = append(failed, closer(ctx))
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	return nil
}

// background runs fn until the arm ends; its error, unless the arm has ended, fails the arm. Returned is a function that ends it
// earlier and returns its error.
func (s *stage) background(ctx context.Context, fn func(ctx context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		err := <-done
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	})
	s.onClose(func(context.Context) error { return stop() })
	return stop
}

// database makes the arm's schema with Surefoot's tables, at the first call, and returns a pool.
func (s *stage) database(ctx context.Context) (*pgxpool.Pool, error) {
	if s.pool != nil {
		return s.pool, nil
	}
	s.onClose(func(ctx context.Context) error { return s.run.dropSchemas(ctx, s.schema) })
	if _, err := pg.Migrate(ctx, pg.MigrateOptions{URL: s.o.DatabaseURL, Schema: s.schema}); err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	pool, err := s.openPool(ctx, s.o.DatabaseURL, 24)
	s.pool = pool
	return pool, err
}

func (s *stage) openPool(ctx context.Context, url string, conns int32) (*pgxpool.Pool, error) {
	pool, err := pg.Open(context.WithoutCancel(ctx), pg.Options{URL: url, Name: "surefoot drill " + s.drill.Name, MaxConns: conns})
	if err != nil {
		return nil, err
	}
	s.onClose(func(context.Context) error { pool.Close(); return nil })
	return pool, nil
}

// exec runs SQL in the arm's schema.
func (s *stage) exec(ctx context.Context, sql pg.SQL, args ...any) error {
	if _, err := s.pool.Exec(ctx, sql.In(s.schema), args...); err != nil {
		return fmt.Errorf("drill's own SQL: %w", err)
	}
	return nil
}

// count reads a number from the arm's schema.
func (s *stage) count(ctx context.Context, sql pg.SQL, args ...any) (n int, err error) {
	if err := s.pool.QueryRow(ctx, sql.In(s.schema), args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("drill's own SQL: %w", err)
	}
	return n, nil
}

// counted is a figure that a statement counts.
type counted struct {
	figure string
	sql    pg.SQL
}

// observeCounts notes numbers from the arm's schema.
func (s *stage) observeCounts(ctx context.Context, all ...counted) error {
	for _, c := range all {
		n, err := s.count(ctx, c.sql)
		if err != nil {
			return err
		}
		s.observe(c.figure, n)
	}
	return nil
}

func (s *stage) observeCount(ctx context.Context, figure string, sql pg.SQL) error {
	return s.observeCounts(ctx, counted{figure, sql})
}

// broker makes the arm's vhost, at the first call, and returns its URL.
func (s *stage) broker(ctx context.Context) (string, error) {
	if s.url != "" {
		return s.url, nil
	}
	amqpURL, management, err := s.run.vhost(s.vhost)
	if err != nil {
		return "", err
	}
	s.onClose(func(ctx context.Context) error {
		if s.unsettled {
			pause.For(ctx, unsettledTime)
		}
		return management.DeleteVhost(ctx)
	})
	if err := management.CreateVhost(ctx); err != nil {
		return "", fmt.Errorf("a drill needs a vhost of its own: %w", err)
	}
	s.url = amqpURL
	return s.url, nil
}

// unsettledTime is for what the broker may still be making when a drill gave up on it. A vhost that goes meanwhile takes RabbitMQ 3.10's
// supervisor of dead-lettering with it (measured): from then on no queue that dead-letters at least once can be made on that node.
const unsettledTime = 15 * time.Second

// topology applies a specification in the arm's vhost.
func (s *stage) topology(ctx context.Context, spec topology.Spec) error {
	broker, err := s.broker(ctx)
	if err != nil {
		return err
	}
	t, err := topology.New(topology.Options{
		Spec: spec, URL: broker, ManagementURL: s.o.ManagementURL, TLS: s.o.TLS, Host: s.o.Host, Version: s.o.Version, Logger: s.logger,
	})
	if err != nil {
		return err
	}
	if _, err := t.Apply(ctx, topology.ApplyOptions{}); err != nil {
		s.unsettled = true
		return fmt.Errorf("apply topology: %w", err)
	}
	return nil
}

// dial connects to the arm's vhost, until the arm ends.
func (s *stage) dial(ctx context.Context) (*rabbit.Conn, error) {
	broker, err := s.broker(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := rabbit.Dial(ctx, s.run.rabbit(broker))
	if err != nil {
		return nil, err
	}
	s.onClose(func(context.Context) error { return conn.Close() })
	return conn, nil
}

// eventually asks until done says yes, or the time is over, which is an error that names what.
func eventually(ctx context.Context, limit time.Duration, what string, done func(ctx context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		ok, err := done(ctx)
		if ok {
			return nil
		}
		if err != nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("waited in vain, for %s, for %s", limit, what), last, context.Cause(ctx))
		case <-tick.C:
		}
	}
}
