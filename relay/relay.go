package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/resilience"
)

const (
	// errandsAtOnce leaves connections of the pool to the parts that must never wait.
	errandsAtOnce = 3
)

// Relay publishes the outbox. Make one with [New].
type Relay struct {
	opts    Options
	metrics *metrics

	mu     sync.Mutex
	reader *reader // of the current run; nil before the first
	shards map[int16]*shard
	halted map[int16][]stoppedRoute // of each shard

	// Of one run:
	born    time.Time
	work    context.Context //nolint:containedctx // the life of one run's parts, which outlives Run's ctx by the drain
	health  *health
	links   []*link
	settler *settler
	parking *parkStore
	slow    *slowStore
	turns   chan struct{}
}

// New checks the options and registers the metrics. It does no other I/O.
func New(o Options) (*Relay, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	r := &Relay{opts: o, metrics: newMetrics()}
	if err := r.metrics.register(o.Registerer); err != nil {
		return nil, fmt.Errorf("relay: register metrics: %w", err)
	}
	return r, nil
}

// Wake makes the relay look for rows at once. Call it after a commit in the same process; it never blocks, and
// calling it too often, too seldom or not at all is harmless. Safe for concurrent use.
func (r *Relay) Wake() {
	r.mu.Lock()
	reader := r.reader
	r.mu.Unlock()
	if reader != nil {
		reader.Wake()
	}
}

// Run publishes until ctx ends, then stops publishing, waits up to Drain for what is in flight, settles it,
// releases its shards and returns nil. Database or broker being away is waited for. It returns an error only for
// what waiting does not mend: a [RightsError], a [ShardsError], a schema of another version; or when the database cannot be asked at the start. It must not
// run twice at the same time.
func (r *Relay) Run(ctx context.Context) error {
	leases := &leaseStore{pool: r.opts.Pool, schema: r.opts.Schema, me: uuid.Must(uuid.NewV7()), name: r.opts.Name, ttl: r.opts.Lease}
	err := r.checkSchema(ctx)
	if err == nil {
		err = leases.checkShards(ctx, r.opts.Shards)
	}
	if err != nil {
		if ctx.Err() != nil && !errors.As(err, new(*ShardsError)) {
			return nil
		}
		return err
	}
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.prepare(work)
	var parts sync.WaitGroup
	r.start(work, &parts)
	keeper := newKeeper(r, leases)
	keeper.run(ctx, work)
	cancel()
	parts.Wait()
	return nil
}

// checkSchema refuses a schema of another version, whose rules are unknown here, and a role without rights; without that to
// look at the version the grants name it with the rest.
func (r *Relay) checkSchema(ctx context.Context) error {
	err := pg.CheckVersion(ctx, r.opts.Pool, r.opts.Schema)
	if err == nil || resilience.SQLStateOf(err) == pg.InsufficientPrivilege {
		err = cmp.Or(CheckRights(ctx, r.opts.Pool, r.opts.Schema), err)
	}
	return err
}

// prepare makes the parts of one run.
func (r *Relay) prepare(work context.Context) {
	r.born, r.work = time.Now(), work
	r.health = newHealth(r.opts.Ready, r.opts.Logger)
	r.turns = make(chan struct{}, errandsAtOnce)
	r.settler, r.parking, r.slow = newSettler(r.opts), newParkStore(r.opts), newSlowStore(r.opts)
	reader := newReader(r.opts, r.metrics)
	reader.bell = newDoorbell(r.opts, reader.Wake)
	r.mu.Lock()
	r.reader, r.shards, r.halted = reader, map[int16]*shard{}, map[int16][]stoppedRoute{}
	r.mu.Unlock()
	r.links = nil
	for i := range r.opts.Connections {
		name := fmt.Sprintf("broker connection %d", i+1)
		r.links = append(r.links, newLink(r.opts.brokerOptions(i), func(err error) { r.health.set(part{name, noShard}, err) }))
	}
}

func (r *Relay) start(work context.Context, parts *sync.WaitGroup) {
	run := func(part func(context.Context)) {
		parts.Go(func() {
			defer telemetry.FatalOnPanic(r.opts.Logger)
			part(work)
		})
	}
	run(r.reader.run)
	run(r.settler.run)
	run(r.requests)
	run(r.health.run)
	if r.reader.bell != nil {
		run(r.reader.bell.run)
	}
	for _, l := range r.links {
		run(l.run)
	}
	r.links[0].use(1) // who cannot connect takes no shards
	run((&janitor{r.opts.Pool, r.opts.Schema, r.opts.Logger, r.metrics}).run)
}
