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

	// bellCheck is how often a silent LISTEN connection is asked whether it is still there.
	bellCheck = 10 * time.Second
	bellRetry = time.Second
)

// doorbell hears the NOTIFY that Enqueue sends while the bell is armed, which is only while the relay sleeps:
// a NOTIFY in every transaction would serialise the producers' commits. It only shortens the wait: polling
// goes on beneath it, so a dead connection costs latency, never a row.
type doorbell struct {
	url, listen  string
	arming, mute string
	pool         *pgxpool.Pool
	ring         func()
	logger       zerolog.Logger
	hearing      atomic.Bool
	armed        bool // reader's goroutine only
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
	if !d.hearing.Load() {
		d.armed = false
		return false
	}
	if d.armed {
		return false
	}
	_, err := d.pool.Exec(ctx, d.arming)
	d.armed = err == nil
	return d.armed
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
