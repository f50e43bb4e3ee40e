package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
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
	u, err := url.Parse(s.o.AMQPURL)
	if err != nil {
		return "", errors.New("the AMQP URL cannot be parsed (not shown, for it may hold a password)")
	}
	s.onClose(func(ctx context.Context) error {
		if s.unsettled {
			pause.For(ctx, unsettledTime)
		}
		return s.run.management.deleteVhost(ctx, s.vhost)
	})
	if err := s.run.management.createVhost(ctx, s.vhost); err != nil {
		return "", err
	}
	u.Path, u.RawPath = "/"+s.vhost, ""
	s.url = u.String()
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

// serve answers HTTP on a free port of this machine until the arm ends, and returns its URL. Requests in hand are cut off then.
func (s *stage) serve(ctx context.Context, h http.Handler) (string, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listen: %w", err)
	}
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var inHand sync.WaitGroup
	counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inHand.Add(1)
		defer inHand.Done()
		h.ServeHTTP(w, r)
	})
	server := &http.Server{Handler: counted, ReadHeaderTimeout: 5 * time.Second, BaseContext: func(net.Listener) context.Context { return base }}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // ends with Close; before, every request would fail and the figures show it
	}()
	s.onClose(func(context.Context) error {
		_ = server.Close()
		<-served
		cancel()
		inHand.Wait()
		return nil
	})
	return "http://" + listener.Addr().String(), nil
}

var errStranger = errors.New("a drill must not send anything to other machines")

// transport makes requests to this machine only, and counts those that wanted elsewhere.
func (s *stage) transport() *http.Transport {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	t := &http.Transport{
		MaxIdleConnsPerHost: 100, IdleConnTimeout: time.Minute,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(address)
			if err != nil || !net.ParseIP(host).IsLoopback() {
				s.strangers.Add(1)
				return nil, errStranger
			}
			return dialer.DialContext(ctx, network, address)
		},
	}
	s.onClose(func(context.Context) error { t.CloseIdleConnections(); return nil })
	return t
}

// contained notes what every drill of containment shows. Real charges are calls that tried to leave this machine, and what
// a simulated provider charged that no payment of the arm asked for.
func (s *stage) contained(maxConcurrency, shed, leaks, overcharged int) {
	s.observe("max_concurrency", maxConcurrency)
	s.observe("shed_count", shed)
	s.observe("active_reservation_leaks", leaks)
	s.observe("real_charges", int(s.strangers.Load())+overcharged)
}

// containment are the checks of it that are the same everywhere.
func containment(arm string) []Check {
	return expect(arm, "active_reservation_leaks", 0, "real_charges", 0)
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

// logBook keeps log lines. Safe for concurrent use.
type logBook struct {
	mu    sync.Mutex
	lines []map[string]any
}

// maxLines bounds a logBook; what comes later is not kept.
const maxLines = 20_000

// Write implements io.Writer for lines of JSON.
func (b *logBook) Write(line []byte) (int, error) {
	var fields map[string]any
	if json.Unmarshal(bytes.TrimSpace(line), &fields) == nil {
		b.mu.Lock()
		if len(b.lines) < maxLines {
			b.lines = append(b.lines, fields)
		}
		b.mu.Unlock()
	}
	return len(line), nil
}

// find returns the lines with a message.
func (b *logBook) find(message string) (found []map[string]any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.lines {
		if line["message"] == message {
			found = append(found, line)
		}
	}
	return found
}

// count counts the lines with a message whose field has a value.
func (b *logBook) count(message, field string, value any) (n int) {
	for _, line := range b.find(message) {
		if line[field] == value {
			n++
		}
	}
	return n
}
