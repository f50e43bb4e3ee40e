package relay

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

const (
	// readTimeout bounds one read of the main lane.
	readTimeout = 20 * time.Second
	// looksPerPoll is how often the reader looks whether a read is worth while, in the wait for the next one.
	looksPerPoll = 4
	// gapMemory is over how many rows the distance of two is averaged.
	gapMemory = 8
)

// lookSQL asks whether anything has changed, at a tenth of what a read costs.
const lookSQL pg.SQL = `SELECT last_value, pg_current_snapshot()::text FROM @schema@.outbox_id_seq`

// reader joins what the shards ask for into one statement. It reads at once when a shard knows of more, else
// after PollMin until nothing has come for PollMax; then after a wait that doubles up to that, and when it is woken.
//
// While rows come one by one, half of PollMin would be most of the time that a row takes. So the reader looks in between, and reads
// at once when an id was taken and a transaction has ended since. When rows come faster, a read for each would cost more than it saves.
type reader struct {
	pool             *pgxpool.Pool
	sql, lookSQL     string
	pollMin, pollMax time.Duration
	logger           zerolog.Logger
	asks             chan ask
	wake             chan struct{}
	bell             *doorbell // nil: none
	metrics          *metrics

	pending map[int16]ask
	wait    time.Duration
	came    time.Time     // when rows came last
	gap     time.Duration // between two rows, averaged
	readAt  time.Time     // when the last read ended
	last    int64         // the sequence's last value then
}

func newReader(o Options, m *metrics) *reader {
	return &reader{
		pool: o.Pool, sql: readSQL.In(o.Schema), lookSQL: lookSQL.In(o.Schema), pollMin: o.PollMin, pollMax: o.PollMax, logger: o.Logger,
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
			timer.Reset(r.untilLook())
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
			if due = r.due(ctx); !due {
				timer.Reset(r.untilLook())
			}
		}
	}
}

// looks reports whether rows come so rarely that looking is worth while.
func (r *reader) looks() bool { return r.wait == r.pollMin && r.gap >= r.pollMin }

func (r *reader) untilLook() time.Duration {
	if r.looks() {
		return r.wait / looksPerPoll
	}
	return r.wait
}

// due reports whether to read, now that a wait is over.
func (r *reader) due(ctx context.Context) bool {
	if !r.looks() || len(r.pending) == 0 || time.Since(r.readAt) >= r.pollMax {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var last int64
	var snapshot string
	if err := r.pool.QueryRow(ctx, r.lookSQL).Scan(&last, &snapshot); err != nil {
		return true // the read will say so
	}
	return r.worth(last, snapshot, time.Since(r.readAt))
}

// worth reports whether a read may find more than the one that was so long ago, by what a look has found. A row becomes visible with the end of
// a transaction only, and that of another makes no haste.
func (r *reader) worth(last int64, snapshot string, ago time.Duration) bool {
	changed := false
	for _, a := range r.pending {
		changed = changed || a.snapshot != snapshot
	}
	return changed && (last != r.last || ago >= r.pollMin)
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
	r.readAt, r.last = time.Now(), h.last
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
		gap := min(time.Since(r.came), r.pollMax) / time.Duration(found)
		r.gap += (gap - r.gap) * time.Duration(min(found, gapMemory)) / gapMemory
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
