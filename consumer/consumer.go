package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/resilience"
)

// moveGrace is how long moves and returns may go on after the handlers were cancelled.
const moveGrace = 2 * time.Second

var errConnecting = errors.New("connecting to the broker")

// Consumer works on one queue. Make it with [New]; [Consumer.Run] may be called once at a time.
type Consumer struct {
	opts    Options
	log     zerolog.Logger
	metrics *metrics
	health  *health
	inbox   *inbox
	handle  Handler       // of one message in a transaction
	remote  RemoteHandler // of one message without; nil: there is a transaction
	mover   *mover
	pauses  *pauseWatch
	index   *indexer

	management *rabbit.Management // nil: only what is missing is found

	slots      chan struct{} // one value for each running handler, across generations
	freed      chan struct{} // has a value when a job of an earlier generation has left its place
	jobs       sync.WaitGroup
	idle       chan func() // to a worker that has nothing to do
	workers    sync.WaitGroup
	generation atomic.Uint64
	deliveries atomic.Uint64
	busy       atomic.Bool   // something is held
	renewals   chan struct{} // has a value when the subscription may be lost

	backlogInterval time.Duration
	late            late

	spanName string
	span     []trace.SpanStartOption
	side     context.Context // ends when everything else has ended
	handlers context.Context // of all handlers; its cause is resilience.ErrShutdown in the end
	moves    context.Context // of all moves
}

// New checks the options and names every fault. It does not connect.
func New(o Options) (*Consumer, error) {
	chosen := o.Concurrency != 0
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	vhost, err := rabbit.Vhost(o.URL)
	if err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	management, err := newManagement(o)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(o.Metrics, o.Queue)
	if err != nil {
		return nil, fmt.Errorf("consumer: register metrics: %w", err)
	}
	log := o.Logger.With().Str(telemetry.FieldQueue, o.Queue).Logger()
	if !chosen && o.Concurrency < o.Prefetch {
		log.Info().Int("concurrency", o.Concurrency).Int("prefetch", o.Prefetch).Msg("as many handlers at a time as the pool has connections; enlarge it for more")
	}
	h := newHealth(o.Ready, errConnecting)
	c := &Consumer{
		opts: o, log: log, metrics: m, health: h,
		handle:          o.single(),
		remote:          o.remote(),
		management:      management,
		inbox:           newInbox(o.Pool, o.Schema),
		mover:           newMover(o.connection("consumer-publish", log), h),
		pauses:          newPauseWatch(o, log, h, m),
		backlogInterval: backlogInterval,
		slots:           make(chan struct{}, o.Concurrency), freed: make(chan struct{}, 1), idle: make(chan func()), renewals: make(chan struct{}, 1),
		spanName: telemetry.SpanName(telemetry.OpProcess, o.Queue), span: spanOptions(o.Queue),
	}
	c.index = newIndexer(c, vhost)
	return c, nil
}

// Run consumes until ctx ends, then drains: it takes no more, returns what was not started, lets handlers finish for
// Drain, cancels the rest, and returns nil when all have ended. Broker and database may be away at any time.
func (c *Consumer) Run(ctx context.Context) error {
	base := context.WithoutCancel(ctx)
	handlers, cancelHandlers := context.WithCancelCause(base)
	moves, cancelMoves := context.WithCancel(base)
	side, stopSide := context.WithCancel(base)
	c.side = side
	c.handlers, c.moves = outbox.WithSchema(handlers, c.opts.Schema), moves
	stopDrain := c.boundDrain(ctx, cancelHandlers, cancelMoves)
	parts := c.startParts(side)
	err := c.consume(ctx)
	idle := c.waitJobs(moves)
	stopDrain()
	cancelHandlers(resilience.ErrShutdown)
	cancelMoves()
	stopSide()
	parts.Wait()
	if idle {
		c.jobs.Wait()
		c.workers.Wait()
	}
	return err
}

// consume registers the consumer and keeps a loop going.
func (c *Consumer) consume(ctx context.Context) error {
	if !c.register(ctx) {
		return nil
	}
	return rabbit.Supervise(ctx, rabbit.SuperviseOptions{
		Options: c.opts.connection("consumer", c.log),
		OnState: func(err error) {
			if err != nil {
				c.health.set(partConnect, err)
			}
		},
	}, func(ctx context.Context, conn *rabbit.Conn) error {
		err := c.session(ctx, conn)
		if errors.Is(err, rabbit.ErrUndecodable) {
			err = fmt.Errorf("%w; it is at the head of %s: the broker dead-letters it when its deliveries are used up, then the queue goes on; "+
				"see docs/runbooks/dlq.md", err, c.opts.Queue)
		}
		return err
	})
}

// register waits for the database; false when ctx ended first.
func (c *Consumer) register(ctx context.Context) bool {
	for wait := 200 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		err := c.inbox.register(ctx, c.opts)
		c.health.set(partDatabase, err)
		if err == nil {
			return true
		}
		c.log.Warn().Err(err).Msg("inbox not usable yet, trying again")
		if !pause.For(ctx, pause.Jitter(wait)) {
			return false
		}
	}
}

// session works on one connection.
func (c *Consumer) session(ctx context.Context, conn *rabbit.Conn) error {
	if err := c.verify(ctx, conn); err != nil {
		return err
	}
	watch, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	c.spawn(func() { defer close(watched); c.watchBacklog(watch, conn) })
	defer func() { stop(); <-watched }()
	for c.pauses.resumed(ctx, conn.Done()) {
		l := c.newLoop(conn)
		if err := l.run(ctx); !errors.Is(err, errResting) {
			return err
		}
		if err := l.release(ctx); err != nil {
			return err
		}
	}
	return conn.Err()
}

// startParts starts what goes on beside the loop, until ctx ends.
func (c *Consumer) startParts(ctx context.Context) *sync.WaitGroup {
	var parts sync.WaitGroup
	for _, part := range []func(context.Context){
		func(ctx context.Context) { _ = c.mover.run(ctx) }, // its options were checked in New
		c.pauses.run,
		c.clean,
		c.index.run,
	} {
		parts.Go(func() {
			defer telemetry.FatalOnPanic(c.log)
			part(ctx)
		})
	}
	return &parts
}

// boundDrain cancels the handlers when the drain has lasted for Drain, and a little later the moves.
func (c *Consumer) boundDrain(ctx context.Context, handlers context.CancelCauseFunc, moves context.CancelFunc) (stop func()) {
	over, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var bound sync.WaitGroup
	bound.Go(func() {
		select {
		case <-ctx.Done():
		case <-over.Done():
			return
		}
		if pause.For(over, c.opts.Drain) {
			handlers(resilience.ErrShutdown)
		}
		if pause.For(over, moveGrace) {
			moves()
		}
	})
	return func() { cancel(); bound.Wait() }
}

// waitJobs waits for all goroutines of jobs, at most until the drain's bound.
func (c *Consumer) waitJobs(bound context.Context) bool {
	idle := make(chan struct{})
	go func() { c.jobs.Wait(); close(idle) }()
	select {
	case <-idle:
		return true
	case <-bound.Done():
		c.log.Error().Msg("handlers still run after the drain; their messages come again")
		return false
	}
}

// spawn starts a goroutine that Run waits for.
func (c *Consumer) spawn(f func()) {
	c.jobs.Go(func() {
		defer telemetry.FatalOnPanic(c.log)
		f()
	})
}

// lend runs f on a worker that Run waits for. A worker is kept when f has ended: a fresh goroutine for each message would spend a tenth of the CPU on
// growing its stack. When f ends its goroutine, the worker ends with it. There are not many more of them than handlers ran at a time.
func (c *Consumer) lend(f func()) {
	c.jobs.Add(1)
	select {
	case c.idle <- f:
	default:
		c.workers.Go(func() {
			defer telemetry.FatalOnPanic(c.log)
			for {
				c.runJob(f)
				select {
				case f = <-c.idle:
				case <-c.side.Done():
					return
				}
			}
		})
	}
}

func (c *Consumer) runJob(f func()) {
	defer c.jobs.Done()
	f()
}
