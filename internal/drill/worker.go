package drill

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/topology"
)

// Roles of workers.
const (
	roleWorker   = "worker"   // with an inbox, retries and dead letters
	roleCareless = "careless" // without any pattern
)

// workerTask is what a worker works on.
type workerTask struct {
	Queue topology.Queue `json:"queue"`
	Takes time.Duration  `json:"takes"` // by a message
	// AckFirst has a careless worker acknowledge whatever comes as soon as it does, as consumers with automatic acknowledgements do.
	AckFirst bool `json:"ackFirst"`
	// DieAt has a careless worker die after the effect of so many messages and before their acknowledgement; 0: never.
	DieAt int `json:"dieAt"`
}

const (
	effectsTable pg.SQL = `CREATE TABLE @schema@.drill_effects (message_id text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())`
	effectsAdd   pg.SQL = `INSERT INTO @schema@.drill_effects (message_id) VALUES ($1)`
	effectsCount pg.SQL = `SELECT count(*) FROM @schema@.drill_effects`
	effectsTwice pg.SQL = `SELECT count(*) - count(DISTINCT message_id) FROM @schema@.drill_effects`
	startsTable  pg.SQL = `CREATE TABLE @schema@.drill_starts (message_id text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())`
	startsAdd    pg.SQL = `INSERT INTO @schema@.drill_starts (message_id) VALUES ($1)`
	mendedTable  pg.SQL = `CREATE TABLE @schema@.drill_mended (at timestamptz NOT NULL DEFAULT clock_timestamp())`
	mendedNow    pg.SQL = `INSERT INTO @schema@.drill_mended DEFAULT VALUES`
	mendedYet    pg.SQL = `SELECT EXISTS (SELECT FROM @schema@.drill_mended)`
	sentTable    pg.SQL = `CREATE TABLE @schema@.drill_sent (message_id text PRIMARY KEY)`
	sentAdd      pg.SQL = `INSERT INTO @schema@.drill_sent VALUES ($1)`
	sentCount    pg.SQL = `SELECT count(*) FROM @schema@.drill_sent`
	sentLost     pg.SQL = `SELECT count(*) FROM @schema@.drill_sent s WHERE NOT EXISTS (SELECT FROM @schema@.drill_effects e WHERE e.message_id = s.message_id)`
)

// workTables are what workers and their load need.
func (s *stage) workTables(ctx context.Context) error {
	for _, table := range []pg.SQL{effectsTable, startsTable, mendedTable, sentTable} {
		if err := s.exec(ctx, table); err != nil {
			return err
		}
	}
	return nil
}

// Kinds of messages.
const (
	kindOK     = "ok"
	kindFlaky  = "flaky"  // fails at the first attempt
	kindPoison = "poison" // fails until the cause is mended
)

// job is a message's payload.
type job struct {
	Kind string `json:"kind"`
}

// worker handles messages as their payloads say.
type worker struct {
	schema string
	pool   *pgxpool.Pool
	task   workerTask
}

var (
	errFirst     = errors.New("not at the first attempt")
	errNotMended = errors.New("the cause is not mended yet")
)

func (w worker) handle(ctx context.Context, tx pgx.Tx, m message.Message) error {
	if _, err := w.pool.Exec(ctx, startsAdd.In(w.schema), m.ID); err != nil {
		return err
	}
	var j job
	_ = json.Unmarshal(m.Payload, &j) // an event of somebody else has no kind
	switch j.Kind {
	case kindFlaky:
		if m.Attempts == 0 {
			return errFirst
		}
	case kindPoison:
		var mended bool
		if err := tx.QueryRow(ctx, mendedYet.In(w.schema)).Scan(&mended); err != nil {
			return err
		}
		if !mended {
			return consumer.Permanent(errNotMended)
		}
	}
	if !pause.For(ctx, w.task.Takes) {
		return ctx.Err()
	}
	_, err := tx.Exec(ctx, effectsAdd.In(w.schema), m.ID)
	return err
}

func newWorker(ctx context.Context, o ActOptions) (worker, error) {
	t, err := task[workerTask](o)
	if err != nil {
		return worker{}, err
	}
	pool, err := o.pool(ctx)
	return worker{o.Schema, pool, t}, err
}

// actWorker consumes until ctx ends.
func actWorker(ctx context.Context, o ActOptions) error {
	w, err := newWorker(ctx, o)
	if err != nil {
		return err
	}
	defer w.pool.Close()
	options := consumer.FromSpec(topology.Spec{Exchange: exchange, Queues: []topology.Queue{w.task.Queue}}.WithDefaults().Queues[0])
	options.Handler, options.Pool, options.Schema, options.URL, options.TLS = w.handle, w.pool, w.schema, o.AMQPURL, o.TLS
	options.Concurrency, options.Host, options.Version, options.Logger = 4, o.Host, o.Version, o.Logger
	c, err := consumer.New(options)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// actCareless consumes without any pattern.
func actCareless(ctx context.Context, o ActOptions) error {
	w, err := newWorker(ctx, o)
	if err != nil {
		return err
	}
	defer w.pool.Close()
	conn, err := rabbit.Dial(ctx, rabbit.Options{URL: o.AMQPURL, TLS: o.TLS, Role: "drill-careless", Host: o.Host, Version: o.Version})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	subscription, err := conn.Consume(ctx, rabbit.ConsumeOptions{Queue: w.task.Queue.Name, Prefetch: 100})
	if err != nil {
		return err
	}
	deliveries := subscription.Deliveries()
	if w.task.AckFirst {
		deliveries = acknowledgedFirst(subscription)
	}
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil // with all that it has taken
		case d, open := <-deliveries:
			if !open {
				return subscription.Err()
			}
			if err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error { return w.handle(ctx, tx, message.FromDelivery(d)) }); err != nil && ctx.Err() == nil {
				return err
			}
			if n == w.task.DieAt {
				return die()
			}
			if !w.task.AckFirst {
				if err := subscription.Ack(d.DeliveryTag, false); err != nil {
					return err
				}
			}
		}
	}
}

// acknowledgedFirst hands on what has been acknowledged, until the subscription ends.
func acknowledgedFirst(subscription *rabbit.Subscription) <-chan *amqp.Delivery {
	taken := make(chan *amqp.Delivery, 10_000) // more than a drill has
	go func() {
		defer close(taken)
		for d := range subscription.Deliveries() {
			if subscription.Ack(d.DeliveryTag, false) != nil {
				return
			}
			taken <- d
		}
	}()
	return taken
}

// effect notes that a message was handled.
func (s *stage) effect(ctx context.Context, tx pgx.Tx, m message.Message) error {
	_, err := tx.Exec(ctx, effectsAdd.In(s.schema), m.ID)
	return err
}
