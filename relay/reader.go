package relay

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
)

const (
	// readTimeout bounds one read of the main lane.
	readTimeout = 20 * time.Second
	// gapMemory is over how many rows their distance is averaged.
	gapMemory = 32
	// rarePolls is how many polls apart rows are that come one by one.
	rarePolls = 2
)

// reader joins what the shards ask for into one statement. It reads at once when a shard knows of more, else
// after PollMin until nothing has come for PollMax; then after a wait that doubles up to that, and when it is woken.
// While rows come one by one it waits for the doorbell, which is quicker than the next poll, and cheaper.
type reader struct {
	pool             *pgxpool.Pool
	sql              string
	pollMin, pollMax time.Duration
	logger           zerolog.Logger
	asks             chan ask
	wake             chan struct{}
	bell             *doorbell // nil: none
	metrics          *metrics

	pending map[int16]ask
	read    map[int16]time.Time // when each shard's last read began
	woken   time.Time           // what was read before may lack a row
	wait    time.Duration
	came    time.Time     // when rows came last
	gap     time.Duration // between two rows, on average
}

func newReader(o Options, m *metrics) *reader {
	return &reader{
		pool: o.Pool, sql: readSQL.In(o.Schema), pollMin: o.PollMin, pollMax: o.PollMax, logger: o.Logger,
		asks: make(chan ask, 64), wake: make(chan struct{}, 1), pending: map[int16]ask{}, read: map[int16]time.Time{}, wait: o.PollMin, metrics: m,
	}
}

// Wake makes the next read come at once. It never blocks.
func (r *reader) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run reads until ctx ends. What is pending then is never answered.
func (r *reader) run(ctx context.Context) {
	timer := time.NewTimer(r.wait)
	defer timer.Stop()
	due := false
	for {
		if len(r.pending) > 0 && (due || r.hurry()) {
			r.readAll(ctx)
			timer.Reset(r.wait)
			due = false
			if ctx.Err() != nil {
				return
			}
			r.drainAsks()
			continue
		}
		select {
		case <-ctx.Done():
			return
		case a := <-r.asks:
			r.pending[a.shard] = a
		case <-r.wake:
			r.wait, r.woken = r.pollMin, time.Now()
		case <-timer.C:
			due = true
		}
	}
}

// drainAsks takes what is there without waiting, so that the next statement serves as many as possible.
func (r *reader) drainAsks() {
	for {
		select {
		case a := <-r.asks:
			r.pending[a.shard] = a
		default:
			return
		}
	}
}

// hurry reports whether a shard waits that knows of more, or whose last read began before the reader was woken: it had not asked then.
func (r *reader) hurry() bool {
	for _, a := range r.pending {
		if a.urgent || r.woken.After(r.read[a.shard]) {
			return true
		}
	}
	return false
}

func (r *reader) readAll(ctx context.Context) {
	r.drainAsks()
	asks := make([]ask, 0, len(r.pending))
	for _, a := range r.pending {
		asks = append(asks, a)
	}
	clear(r.pending)
	now := time.Now()
	for _, a := range asks {
		r.read[a.shard] = now
	}
	readCtx, cancel := context.WithTimeout(ctx, readTimeout)
	h, pages, err := read(readCtx, r.pool, r.sql, asks)
	cancel()
	found := 0
	for _, a := range asks {
		reply := answer{generation: a.generation, server: h.server, err: err}
		if err == nil {
			reply.page = *pages[a.shard]
			found += len(reply.page.rows)
			if !a.server.IsZero() && !a.server.Equal(h.server) {
				reply = answer{generation: a.generation, err: errNewServer}
			}
		}
		a.reply <- reply
	}
	if err == nil && r.bell != nil {
		r.bell.seen(h.armed)
		r.bell.watch(ctx)
	}
	r.pace(ctx, found, err)
}

// pace chooses the next wait, and lets the doorbell be heard before it becomes long.
func (r *reader) pace(ctx context.Context, found int, err error) {
	if err != nil {
		r.wait = r.pollMax
		return
	}
	if found > 0 {
		gap := min(time.Since(r.came), r.pollMax) / time.Duration(found)
		r.gap += (gap - r.gap) * time.Duration(min(found, gapMemory)) / gapMemory
		r.came = time.Now()
	}
	if r.rare() && r.sleep(ctx) {
		return
	}
	switch {
	case found > 0:
		r.wait = r.pollMin
		if r.bell != nil {
			r.bell.silence(ctx)
		}
		return
	case time.Since(r.came) < r.pollMax: // at a low rate the next row is not far
		r.wait = r.pollMin
		return
	}
	if r.wait = min(2*r.wait, r.pollMax); r.wait == r.pollMax {
		r.sleep(ctx)
	}
}

// rare reports whether rows come one by one, and producers do not wait for each other to ring.
func (r *reader) rare() bool {
	if r.bell == nil || !r.bell.free() {
		return false
	}
	if r.bell.armed {
		return r.gap >= r.pollMin
	}
	return r.gap >= rarePolls*r.pollMin
}

// sleep waits for the doorbell, and reports whether that can be heard.
func (r *reader) sleep(ctx context.Context) bool {
	if r.bell == nil || !r.bell.hearing.Load() {
		return false
	}
	just := r.bell.arm(ctx)
	if !r.bell.armed {
		return false
	}
	r.wait = r.pollMax
	if just {
		r.wait = r.pollMin // one more look: what came before the bell was armed did not ring
	}
	return true
}
