package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
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

// consumeMode says which consumer works, and how.
type consumeMode string

const (
	modeInbox   consumeMode = "inbox"    // the consumer; one inserted row per message
	modeBatch   consumeMode = "batch"    // the consumer; as many rows with one statement per batch
	modePlain   consumeMode = "plain"    // the consumer; messages without ids, a handler that does nothing
	modeBareRow consumeMode = "bare-row" // the client library; a transaction with one inserted row per message
	modeBare    consumeMode = "bare"     // the client library; nothing is done
)

func (m consumeMode) transactional() bool { return m != modePlain && m != modeBare }

// handlerTimeout keeps a thousand held messages, a few at a time, within the broker's consumer timeout.
const handlerTimeout = 5 * time.Second

const (
	effectSQL     pg.SQL = `INSERT INTO @schema@.effects (id) VALUES ($1)`
	effectsOfSQL  pg.SQL = `INSERT INTO @schema@.effects (id) SELECT unnest($1::text[])`
	consumerConns        = 4 // of the pool, beside one for each worker
)

// consumeTask is that of a consumer: to handle Rows messages, and to end.
type consumeTask struct {
	Mode              consumeMode
	Queue             topology.Queue
	Rows              int
	Prefetch, Workers int
	// Post is where a bare consumer posts each body first. Default: nowhere.
	Post string
	// Times asks for the time at which each message's handler began.
	Times bool
}

// counter notes what the handlers do. The time that counts goes from the first beginning to the last end.
type counter struct {
	rows     int64
	done     atomic.Int64
	began    atomic.Int64 // UnixNano of the first
	finished chan struct{}
	ended    time.Time // once finished is closed

	mu sync.Mutex
	at map[int]int64 // nil: not wanted
}

func newCounter(t consumeTask) *counter {
	c := &counter{rows: int64(t.Rows), finished: make(chan struct{})}
	if t.Times {
		c.at = make(map[int]int64, t.Rows)
	}
	return c
}

func (c *counter) begin(id string) {
	if c.began.Load() == 0 {
		c.began.CompareAndSwap(0, time.Now().UnixNano())
	}
	if c.at == nil {
		return
	}
	now := time.Now().UnixNano()
	if n, ok := numberOf(id); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, again := c.at[n]; !again {
			c.at[n] = now
		}
	}
}

func (c *counter) end(n int) {
	if total := c.done.Add(int64(n)); total >= c.rows && total-int64(n) < c.rows {
		c.ended = time.Now()
		close(c.finished)
	}
}

func (c *counter) outcome() outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	return outcome{Rows: int(c.done.Load()), Seconds: c.ended.Sub(time.Unix(0, c.began.Load())).Seconds(), At: c.at}
}

func runConsume(ctx context.Context, o ArmOptions) (outcome, error) {
	t, err := task[consumeTask](o)
	if err != nil {
		return outcome{}, err
	}
	pool, err := pg.Open(ctx, pg.Options{URL: o.DatabaseURL, Name: "surefoot bench", MaxConns: int32(t.Workers + consumerConns)})
	if err != nil {
		return outcome{}, err
	}
	defer pool.Close()
	c := newCounter(t)
	if t.Mode == modeBare || t.Mode == modeBareRow {
		err = t.bare(ctx, o, pool, c)
	} else {
		err = t.ours(ctx, o, pool, c)
	}
	if err != nil {
		return outcome{}, err
	}
	return c.outcome(), nil
}

// ours runs the consumer until everything is handled, and stops it in order: what it handled is acknowledged then.
func (t consumeTask) ours(ctx context.Context, o ArmOptions, pool *pgxpool.Pool, c *counter) error {
	options := consumer.FromSpec(t.Queue)
	options.URL, options.TLS, options.Pool, options.Schema, options.Unverified = o.AMQPURL, o.TLS, pool, o.Schema, true
	options.Prefetch, options.Concurrency, options.Timeout, options.Host, options.Version = t.Prefetch, t.Workers, handlerTimeout, o.Host, o.Version
	t.handle(&options, o.Schema, c)
	work, err := consumer.New(options)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- work.Run(ctx) }()
	select {
	case <-c.finished:
		stop()
		return <-ended
	case err := <-ended:
		return errors.Join(errors.New("the consumer ended before its work was done"), err)
	}
}

// handle sets the handler of the mode.
func (t consumeTask) handle(o *consumer.Options, schema string, c *counter) {
	switch t.Mode {
	case modeBatch:
		sql := effectsOfSQL.In(schema)
		o.Batch = func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
			c.begin("")
			ids := make([]string, len(msgs))
			for i, m := range msgs {
				ids[i] = m.ID
			}
			_, err := tx.Exec(ctx, sql, ids)
			if err == nil {
				c.end(len(msgs))
			}
			return err
		}
	case modePlain:
		o.AllowNoID = true
		o.Plain = func(_ context.Context, m message.Message) error {
			c.begin(m.ID)
			c.end(1)
			return nil
		}
	case modeInbox, modeBareRow, modeBare:
		sql := effectSQL.In(schema)
		o.Handler = func(ctx context.Context, tx pgx.Tx, m message.Message) error {
			c.begin(m.ID)
			_, err := tx.Exec(ctx, sql, m.ID)
			if err == nil {
				c.end(1)
			}
			return err
		}
	}
}

// bare works with the client library alone, one acknowledgement per message.
func (t consumeTask) bare(ctx context.Context, o ArmOptions, pool *pgxpool.Pool, c *counter) error {
	conn, err := rabbit.Dial(ctx, o.broker())
	if err != nil {
		return err
	}
	ch, err := rawChannel(ctx, conn)
	if err == nil {
		err = ch.Qos(t.Prefetch, 0, false)
	}
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	deliveries, err := ch.Consume(t.Queue.Name, "bare", false, false, false, false, nil)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	sql, client := effectSQL.In(o.Schema), barePoster(t.Workers)
	defer client.CloseIdleConnections()
	failed := make(chan error, t.Workers)
	var workers sync.WaitGroup
	for range t.Workers {
		workers.Go(func() {
			for d := range deliveries {
				if err := t.handleBare(ctx, &d, client, pool, sql, c); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	select {
	case <-c.finished:
	case err = <-failed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	err = errors.Join(err, closeSettled(ctx, conn)) // which ends the deliveries
	workers.Wait()
	return err
}

// settleWait lets the broker carry out acknowledgements: those that wait for the queue's leader are lost with the channel.
const settleWait = 500 * time.Millisecond

func closeSettled(ctx context.Context, conn *rabbit.Conn) error {
	pause.For(ctx, settleWait)
	return conn.Close()
}

func (t consumeTask) handleBare(ctx context.Context, d *amqp.Delivery, client *http.Client, pool *pgxpool.Pool, sql string, c *counter) error {
	c.begin(d.MessageId)
	if t.Post != "" {
		if err := post(ctx, client, t.Post, d.Body); err != nil {
			return fmt.Errorf("post: %w", err)
		}
	}
	if t.Mode == modeBareRow {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql, d.MessageId)
			return err
		})
		if err != nil {
			return fmt.Errorf("insert: %w", err)
		}
	}
	if err := d.Ack(false); err != nil {
		return err
	}
	c.end(1)
	return nil
}
