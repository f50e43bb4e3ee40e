package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/topology"
)

const (
	lockSQL    = `SELECT pg_try_advisory_lock(hashtext($1))`
	schemasSQL = `SELECT nspname FROM pg_namespace WHERE nspname = $1 OR starts_with(nspname, $1 || '_')`
	machineSQL = `SELECT current_setting('server_version'),
    'synchronous_commit ' || current_setting('synchronous_commit') || ', fsync ' || current_setting('fsync') ||
    ', full_page_writes ' || current_setting('full_page_writes') || ', shared_buffers ' || current_setting('shared_buffers')`
)

// stage is what one run works with: its corner of the services, and the means to look at them.
type stage struct {
	o          Options
	pool       *pgxpool.Pool
	lock       *pgxpool.Conn
	conn       *rabbit.Conn
	channel    *rabbit.Channel
	management *rabbit.Management
	meter      *meter
	machine    Machine
	body       []byte // every payload
	dir        string // the processes' working directory: no configuration file is there
}

func openStage(ctx context.Context, o Options) (_ *stage, err error) {
	s := &stage{o: o, body: payload(o.Bytes)}
	defer func() {
		if err != nil {
			s.release(ctx)
		}
	}()
	for _, step := range []func(context.Context) error{s.connect, s.claim, s.know, s.wipe} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *stage) connect(ctx context.Context) (err error) {
	if s.dir, err = os.MkdirTemp("", "surefoot-bench-"); err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	s.pool, err = pg.Open(ctx, pg.Options{URL: s.o.DatabaseURL, Name: "surefoot bench", MaxConns: 32, StatementTimeout: -1})
	if err != nil {
		return err
	}
	if err := s.pool.Ping(ctx); err != nil {
		return fmt.Errorf("reach PostgreSQL: %w", err)
	}
	s.management, err = rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: s.o.AMQPURL, URL: s.o.ManagementURL, TLS: s.o.TLS})
	if err != nil {
		return err
	}
	if s.conn, err = rabbit.Dial(ctx, s.broker("bench")); err != nil {
		return err
	}
	s.channel, err = s.conn.Channel(ctx)
	return err
}

func (s *stage) broker(role string) rabbit.Options {
	return rabbit.Options{URL: s.o.AMQPURL, Role: role, Host: s.o.Host, Version: s.o.Version, TLS: s.o.TLS}
}

// claim keeps two runs from dropping each other's schemas and queues, and from measuring each other.
func (s *stage) claim(ctx context.Context) (err error) {
	if s.lock, err = s.pool.Acquire(ctx); err != nil {
		return err
	}
	var mine bool
	if err := s.lock.QueryRow(ctx, lockSQL, s.o.Namespace).Scan(&mine); err != nil {
		return err
	}
	if !mine {
		return errors.New("another benchmark runs in this database: wait until it has ended, for two would measure each other")
	}
	err = s.channel.Do(ctx, "claim the broker", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(s.o.Namespace+".lock", false, true, true, false, amqp.Table{"x-queue-type": "classic"})
		return err
	})
	if rabbit.Code(err) == amqp.ResourceLocked {
		return errors.New("another benchmark runs on this broker: wait until it has ended, for two would measure each other")
	}
	return err
}

// know finds out what the figures depend on.
func (s *stage) know(ctx context.Context) (err error) {
	s.machine = Machine{System: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(), Memory: memory(), Broker: s.conn.ServerVersion().String()}
	if err := s.pool.QueryRow(ctx, machineSQL).Scan(&s.machine.Postgres, &s.machine.Settings); err != nil {
		return fmt.Errorf("ask for the server's settings: %w", err)
	}
	s.meter, err = newMeter(ctx, s.pool, s.management)
	return err
}

// memory of the machine in MiB, 0 when it is unknown.
func memory() int {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 || fields[0] != "MemTotal:" {
		return 0
	}
	kib, _ := strconv.Atoi(fields[1])
	return kib >> 10
}

// exchange is where all is published; its queues have the names of the arms.
func (s *stage) exchange() string { return s.o.Namespace }

// queue is the one queue of a run.
func (s *stage) queue() string { return s.o.Namespace + ".q" }

// schema of one arm.
func (s *stage) schema(arm string) string { return s.o.Namespace + "_" + arm }

// work is the queue of consumers, with its retry and dead-letter queues.
func (s *stage) work() topology.Queue {
	spec := topology.Spec{Exchange: s.exchange(), Queues: []topology.Queue{{
		Name: s.o.Namespace + ".work", Owner: "bench", Prefetch: s.o.Prefetch, Concurrency: s.o.Workers,
	}}}
	return spec.WithDefaults().Queues[0]
}

// wipe drops everything of the namespace: of this run, or of one that was killed.
func (s *stage) wipe(ctx context.Context) error {
	rows, err := s.pool.Query(ctx, schemasSQL, s.o.Namespace)
	if err != nil {
		return err
	}
	schemas, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("list schemas: %w", err)
	}
	for _, schema := range schemas {
		if err := s.dropSchema(ctx, schema); err != nil {
			return err
		}
	}
	return errors.Join(s.dropQueues(ctx), s.dropExchanges(ctx))
}

func (s *stage) dropSchema(ctx context.Context, schema string) error {
	if _, err := s.pool.Exec(ctx, "SET client_min_messages = warning; DROP SCHEMA IF EXISTS "+pgx.Identifier{schema}.Sanitize()+" CASCADE",
		pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("drop schema %s: %w", schema, err)
	}
	return nil
}

func (s *stage) dropQueues(ctx context.Context) error {
	work := s.work()
	names := []string{s.queue(), work.Name, work.DLQ()}
	for _, tier := range work.Tiers() {
		names = append(names, tier.Queue)
	}
	for _, name := range names {
		if err := s.dropQueue(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) dropQueue(ctx context.Context, name string) error {
	return s.channel.Do(ctx, "delete queue "+name, func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(name, false, false, false)
		return err
	})
}

func (s *stage) dropExchanges(ctx context.Context) error {
	for name := range topology.Desired(topology.Spec{Exchange: s.exchange(), Queues: []topology.Queue{s.work()}}).Exchanges {
		err := s.channel.Do(ctx, "delete exchange "+name, func(ch *amqp.Channel) error { return ch.ExchangeDelete(name, false, false) })
		if err != nil {
			return err
		}
	}
	return nil
}

// freshQueue makes the run's queue anew, the only one bound to the exchange.
func (s *stage) freshQueue(ctx context.Context) error {
	if err := s.dropQueue(ctx, s.queue()); err != nil {
		return err
	}
	for op, request := range map[string]func(*amqp.Channel) error{
		"declare exchange": func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare(s.exchange(), amqp.ExchangeTopic, true, false, false, false, nil)
		},
		"declare queue": func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(s.queue(), true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
			return err
		},
	} {
		if err := s.channel.Do(ctx, op, request); err != nil {
			return err
		}
	}
	return s.channel.Do(ctx, "bind queue", func(ch *amqp.Channel) error { return ch.QueueBind(s.queue(), "order.#", s.exchange(), false, nil) })
}

// freshWork makes the consumers' queue anew, with what belongs to it, as `surefoot topology apply` would.
func (s *stage) freshWork(ctx context.Context) error {
	if err := s.dropQueues(ctx); err != nil {
		return err
	}
	state := topology.Desired(topology.Spec{Exchange: s.exchange(), Queues: []topology.Queue{s.work()}})
	for name, x := range state.Exchanges {
		err := s.channel.Do(ctx, "declare exchange "+name, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare(name, x.Type, x.Durable, false, false, false, nil)
		})
		if err != nil {
			return err
		}
	}
	for name, q := range state.Queues {
		err := s.channel.Do(ctx, "declare queue "+name, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(name, q.Durable, false, false, false, tableOf(q.Arguments))
			return err
		})
		if err != nil {
			return err
		}
	}
	for b := range state.Bindings {
		err := s.channel.Do(ctx, "bind queue "+b.Queue, func(ch *amqp.Channel) error {
			return ch.QueueBind(b.Queue, b.RoutingKey, b.Exchange, false, nil)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// tableOf turns integers into what the protocol carries.
func tableOf(arguments map[string]any) amqp.Table {
	table := amqp.Table{}
	for name, value := range arguments {
		if n, ok := value.(int); ok {
			value = int64(n)
		}
		table[name] = value
	}
	return table
}

// fillQueue publishes n messages, confirmed.
func (s *stage) fillQueue(ctx context.Context, queue string, n int, letter func(number int) (amqp.Publishing, error)) error {
	l, err := openLane(ctx, s.broker("bench-fill"))
	if err != nil {
		return err
	}
	defer l.close()
	for number := 1; number <= n; number++ {
		msg, err := letter(number)
		if err != nil {
			return err
		}
		if err := l.send(ctx, "", queue, msg); err != nil {
			return fmt.Errorf("fill %s: %w", queue, err)
		}
	}
	return l.flush(ctx)
}

// freshSchema makes an arm's schema anew.
func (s *stage) freshSchema(ctx context.Context, arm string) (string, error) {
	schema := s.schema(arm)
	if err := s.dropSchema(ctx, schema); err != nil {
		return "", err
	}
	_, err := pg.Migrate(ctx, pg.MigrateOptions{URL: s.o.DatabaseURL, Schema: schema})
	return schema, err
}

// depth is how many messages wait in a queue: exact, and cheap enough to be asked often.
func (s *stage) depth(ctx context.Context, queue string) (n int, err error) {
	err = s.channel.Do(ctx, "look at "+queue, func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		n = q.Messages
		return err
	})
	return n, err
}

// close drops what the run has made. The connection may have been lost with an interrupted request: then a new one does it.
func (s *stage) close(ctx context.Context) error {
	defer s.release(ctx)
	if s.conn.Err() != nil {
		conn, err := rabbit.Dial(ctx, s.broker("bench"))
		if err != nil {
			return err
		}
		if s.channel, err = conn.Channel(ctx); err != nil {
			return errors.Join(err, conn.Close())
		}
		s.conn = conn
	}
	return s.wipe(ctx)
}

// release lets go of the services and leaves what is in them.
func (s *stage) release(ctx context.Context) {
	if s.conn != nil {
		_ = s.conn.Close() // nothing is under way on it
	}
	if s.lock != nil {
		_ = s.lock.Conn().Close(context.WithoutCancel(ctx)) // which unlocks, whatever state it is in
		s.lock.Release()
	}
	if s.pool != nil {
		s.pool.Close()
	}
	_ = os.RemoveAll(s.dir)
}

func (s *stage) say(format string, args ...any) { s.o.Say(fmt.Sprintf(format, args...)) }
