package relay

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
)

const (
	armSQL     pg.SQL = `SELECT setval('@schema@.outbox_doorbell', 2)`
	silenceSQL pg.SQL = `SELECT setval('@schema@.outbox_doorbell', 1)`
	listenSQL  pg.SQL = `LISTEN @schema@_outbox`
	// queueSQL counts who waits for the lock that a commit with a NOTIFY holds, one of the whole cluster: PostgreSQL names it so.
	queueSQL = `SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND database = 0 AND classid = 'pg_database'::regclass AND objid = 0 AND NOT granted`

	// bellCheck is how often a silent LISTEN connection is asked whether it is still there.
	bellCheck = 10 * time.Second
	bellRetry = time.Second
	// bellArmed is its value then.
	bellArmed = 2

	// queueCheck is how often an armed bell looks at that queue, and queueMemory over how many looks its length is averaged. Beyond queueMost the
	// bell costs producers more than it saves: it stays silent for queueRest, unless nothing comes.
	queueCheck  = 250 * time.Millisecond
	queueMemory = 8
	queueMost   = 0.5
	queueRest   = time.Minute
	// muteRest is for how long a bell that another relay has silenced stays so.
	muteRest = 10 * time.Second
)

// doorbell hears the NOTIFY that Enqueue sends while the bell is armed, which is only while the relay sleeps, also between rows that come one
// by one. A NOTIFY in every transaction would serialise the producers' commits: on a slow disk they could then not come fast enough to be
// seen as many, and so it is their queue that is looked at. The bell only shortens the wait: polling
// goes on beneath it, so a dead connection costs latency, never a row.
type doorbell struct {
	url, listen  string
	arming, mute string
	pool         *pgxpool.Pool
	ring         func()
	logger       zerolog.Logger
	hearing      atomic.Bool

	// Of the reader's goroutine.
	armed     bool    // as far as is known
	queue     float64 // of producers, its average length
	checkAt   time.Time
	restUntil time.Time // not between rows
	muteUntil time.Time // not at all
}

func newDoorbell(o Options, ring func()) *doorbell {
	if o.ListenURL == "" {
		return nil
	}
	return &doorbell{
		url: o.ListenURL, listen: listenSQL.In(o.Schema), arming: armSQL.In(o.Schema), mute: silenceSQL.In(o.Schema),
		pool: o.Pool, ring: ring, logger: o.Logger,
	}
}

// arm asks producers to ring, when somebody hears it. It reports whether the bell was armed just now.
func (d *doorbell) arm(ctx context.Context) bool {
	if !d.hearing.Load() || d.armed || time.Now().Before(d.muteUntil) {
		return false
	}
	_, err := d.pool.Exec(ctx, d.arming)
	d.armed = err == nil
	return d.armed
}

// seen takes what a read has found. Another relay that works on many rows silences the bell for all, and is not to do so again and again.
func (d *doorbell) seen(armed bool) {
	if d.armed && !armed {
		d.muteUntil = time.Now().Add(muteRest)
	}
	d.armed = armed
}

// free reports whether producers do not wait for each other to ring.
func (d *doorbell) free() bool { return time.Now().After(d.restUntil) }

// watch looks at the producers' queue now and then, while the bell is armed.
func (d *doorbell) watch(ctx context.Context) {
	now := time.Now()
	if !d.armed || now.Before(d.checkAt) {
		return
	}
	d.checkAt = now.Add(queueCheck)
	var waiting float64
	if err := d.pool.QueryRow(ctx, queueSQL).Scan(&waiting); err != nil {
		return // the next read tells
	}
	if d.queue += (waiting - d.queue) / queueMemory; d.queue < queueMost {
		return
	}
	d.queue, d.restUntil = 0, now.Add(queueRest)
	d.logger.Debug().Float64("waiting", waiting).Msg("producers wait for each other to ring the doorbell; polling instead")
	d.silence(ctx)
}

// silence tells producers that the relay polls anyway.
func (d *doorbell) silence(ctx context.Context) {
	if !d.armed {
		return
	}
	if _, err := d.pool.Exec(ctx, d.mute); err == nil {
		d.armed = false
	}
}

// run listens until ctx ends, over one connection after another.
func (d *doorbell) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := d.hear(ctx)
		d.hearing.Store(false)
		if ctx.Err() != nil {
			return
		}
		d.logger.Warn().Err(err).Msg("doorbell lost, polling until it is back")
		pause.For(ctx, bellRetry)
	}
}

// hear listens first and then has the relay look: what was enqueued in between did not ring.
func (d *doorbell) hear(ctx context.Context) error {
	dialCtx, cancel := context.WithTimeout(ctx, bellCheck)
	conn, err := pg.Connect(dialCtx, d.url)
	cancel()
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing) // nothing is lost with it
	}()
	if _, err := conn.Exec(ctx, d.listen); err != nil {
		return err
	}
	d.hearing.Store(true)
	d.ring()
	for {
		if err := d.await(ctx, conn); err != nil {
			return err
		}
	}
}

// await waits for one ring, or makes sure that the silence is not that of a dead connection.
func (d *doorbell) await(ctx context.Context, conn *pgx.Conn) error {
	quiet, cancel := context.WithTimeout(ctx, bellCheck)
	defer cancel()
	_, err := conn.WaitForNotification(quiet)
	switch {
	case err == nil:
		d.ring()
		return nil
	case ctx.Err() != nil || quiet.Err() == nil:
		return err
	}
	check, stop := context.WithTimeout(ctx, bellCheck/2)
	defer stop()
	return conn.Ping(check)
}
