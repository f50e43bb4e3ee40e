package relay

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
)

// readTimeout bounds one read of the main lane.
const readTimeout = 20 * time.Second

// reader joins what the shards ask for into one statement. It reads at once when a shard knows of more, else
// after PollMin until nothing has come for PollMax; then after a wait that doubles up to that, and when it is woken.
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
	wait    time.Duration
	came    time.Time // when rows came last
}

func newReader(o Options, m *metrics) *reader {
	return &reader{
		pool: o.Pool, sql: readSQL.In(o.Schema), pollMin: o.PollMin, pollMax: o.PollMax, logger: o.Logger,
		asks: make(chan ask, 64), wake: make(chan struct{}, 1), pending: map[int16]ask{}, wait: o.PollMin, metrics: m,
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
		if len(r.pending) > 0 && (due || r.urgent()) {
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
			r.wait = r.pollMin
			due = true
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

func (r *reader) urgent() bool {
	for _, a := range r.pending {
		if a.urgent {
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
	r.pace(ctx, found, err)
}

// pace chooses the next wait, and lets the doorbell be heard before it becomes long.
func (r *reader) pace(ctx context.Context, found int, err error) {
	switch {
	case err != nil:
		r.wait = r.pollMax
		return
	case found > 0:
		r.wait, r.came = r.pollMin, time.Now()
		if r.bell != nil {
			r.bell.silence(ctx)
		}
		return
	case time.Since(r.came) < r.pollMax: // at a low rate the next row is not far
		r.wait = r.pollMin
		return
	}
	r.wait = min(2*r.wait, r.pollMax)
	if r.wait == r.pollMax && r.bell != nil && r.bell.arm(ctx) {
		r.wait = r.pollMin // one more look: what came before the bell was armed did not ring
	}
}
