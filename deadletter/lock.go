package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
)

const takeLockSQL pg.SQL = `
INSERT INTO @schema@.dlq_lock AS l (queue, token, holder, action, since, expires_at)
VALUES ($1, $2, $3, $4, clock_timestamp(), clock_timestamp() + $5::interval)
ON CONFLICT (queue) DO UPDATE
   SET token = EXCLUDED.token, holder = EXCLUDED.holder, action = EXCLUDED.action,
       since = EXCLUDED.since, expires_at = EXCLUDED.expires_at, wanted = false
 WHERE l.expires_at < clock_timestamp()`

const renewLockSQL pg.SQL = `
UPDATE @schema@.dlq_lock SET expires_at = clock_timestamp() + $3::interval WHERE queue = $1 AND token = $2`

const releaseLockSQL pg.SQL = `DELETE FROM @schema@.dlq_lock WHERE queue = $1 AND token = $2`

// wantLockSQL asks a scan to let go; it looks between two batches.
const wantLockSQL pg.SQL = `UPDATE @schema@.dlq_lock SET wanted = true WHERE queue = $1 AND action = $2 AND NOT wanted`

const wantedLockSQL pg.SQL = `SELECT wanted FROM @schema@.dlq_lock WHERE queue = $1 AND token = $2`

const readLockSQL pg.SQL = `SELECT holder, action, since, expires_at, expires_at < clock_timestamp() FROM @schema@.dlq_lock WHERE queue = $1`

// lockPoll is how often a waiting operation tries again.
const lockPoll = 300 * time.Millisecond

// scanPatience is how long others wait for a scan that makes room for them.
const scanPatience = 30 * time.Second

// ErrLockLost says that the lock of a dead-letter queue could not be renewed, so that the operation stopped.
var ErrLockLost = errors.New("deadletter: the lock of the queue was lost")

// Holder is who works on a dead-letter queue right now.
type Holder struct {
	Who       string    `json:"who"`
	Action    string    `json:"action"`
	Since     time.Time `json:"since"`
	ExpiresAt time.Time `json:"expires_at"`

	expired bool // by the database's clock: the next operation takes the lock
}

// LockedError says that somebody else works on the queue.
type LockedError struct {
	Queue  string
	Holder Holder
}

// Error names the holder and what to do.
func (e *LockedError) Error() string {
	return fmt.Sprintf("%s is in use by %s (%s since %s); wait for it, or longer with --wait; a dead holder's lock expires at %s",
		message.Clip(e.Queue, 255), e.Holder.Who, e.Holder.Action,
		e.Holder.Since.UTC().Format(time.RFC3339), e.Holder.ExpiresAt.UTC().Format(time.RFC3339))
}

// locks gives one holder at a time a dead-letter queue.
type locks struct {
	pool                       *pgxpool.Pool
	lease                      time.Duration
	logger                     zerolog.Logger
	take, renew, release, read string
	want, wanted               string
}

func newLocks(o Options) locks {
	return locks{
		pool: o.Pool, lease: o.Lease, logger: o.Logger,
		take: takeLockSQL.In(o.Schema), renew: renewLockSQL.In(o.Schema),
		release: releaseLockSQL.In(o.Schema), read: readLockSQL.In(o.Schema),
		want: wantLockSQL.In(o.Schema), wanted: wantedLockSQL.In(o.Schema),
	}
}

// claim is what an operation asks the lock for.
type claim struct {
	lock, queue string // what is locked, and its queue in the words of people
	who, action string
	// wait is how long to wait for another holder; waiting is told once who that is.
	wait    time.Duration
	waiting func(Holder)
}

// lock is held until giveBack.
type lock struct {
	locks
	queue  string
	token  uuid.UUID
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// acquire takes the lock or returns a *LockedError when another holds it for longer than c.wait. The returned
// context ends, with ErrLockLost as its cause, when the lock could not be renewed in time.
func (l locks) acquire(ctx context.Context, c claim) (context.Context, *lock, error) {
	token := uuid.New()
	asked := time.Now()
	deadline := asked.Add(c.wait)
	told := false
	for {
		started := time.Now()
		tag, err := l.pool.Exec(ctx, l.take, c.lock, token, message.Clip(c.who, 255), c.action, l.lease)
		if err != nil {
			return nil, nil, fmt.Errorf("lock dead-letter queue: %w", err)
		}
		if tag.RowsAffected() == 1 {
			held, lock := l.hold(ctx, c.lock, token, started)
			return held, lock, nil
		}
		holder, err := l.holder(ctx, c.lock)
		if errors.Is(err, pgx.ErrNoRows) {
			continue // released meanwhile
		}
		if err != nil {
			return nil, nil, err
		}
		if holder.Action == actionScan && c.action != actionScan {
			// A scan makes room for people: it is asked to, and waited for beyond what was allowed.
			if _, err := l.pool.Exec(ctx, l.want, c.lock, actionScan); err != nil {
				return nil, nil, fmt.Errorf("ask for the lock of the dead-letter queue: %w", err)
			}
			deadline = maxTime(deadline, asked.Add(scanPatience))
		}
		if time.Now().After(deadline) {
			return nil, nil, &LockedError{Queue: c.queue, Holder: holder}
		}
		if !told && c.waiting != nil {
			c.waiting(holder)
			told = true
		}
		if !pause.For(ctx, lockPoll) {
			return nil, nil, fmt.Errorf("wait for the lock of the dead-letter queue: %w", context.Cause(ctx))
		}
	}
}

func (l locks) holder(ctx context.Context, queue string) (Holder, error) {
	var h Holder
	err := l.pool.QueryRow(ctx, l.read, queue).Scan(&h.Who, &h.Action, &h.Since, &h.ExpiresAt, &h.expired)
	if err != nil {
		return h, fmt.Errorf("read the lock of the dead-letter queue: %w", err)
	}
	return h, nil
}

func (l locks) hold(ctx context.Context, queue string, token uuid.UUID, since time.Time) (context.Context, *lock) {
	held := &lock{locks: l, queue: queue, token: token, done: make(chan struct{})}
	ctx, held.cancel = context.WithCancelCause(ctx)
	go held.keep(ctx, since)
	return ctx, held
}

// keep renews at a sixth of the lease and gives up at two thirds of it, counted from before the last renewal
// was sent: so this holder has stopped before another can begin.
func (l *lock) keep(ctx context.Context, renewed time.Time) {
	defer close(l.done)
	defer telemetry.FatalOnPanic(l.logger)
	ticker := time.NewTicker(l.lease / 6)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		started := time.Now()
		mine, err := l.renewOnce(ctx, renewed.Add(l.lease*2/3))
		switch {
		case err == nil && !mine:
			l.cancel(fmt.Errorf("%w: it expired and another operation has it", ErrLockLost))
			return
		case err == nil:
			renewed = started
		case time.Since(renewed) >= l.lease*2/3:
			l.cancel(fmt.Errorf("%w: not renewed for %s: %w", ErrLockLost, time.Since(renewed).Round(time.Second), err))
			return
		}
	}
}

func (l *lock) renewOnce(ctx context.Context, until time.Time) (mine bool, err error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	tag, err := l.pool.Exec(ctx, l.renew, l.queue, l.token, l.lease)
	return tag.RowsAffected() == 1, err
}

// giveBack releases the lock, also when ctx has ended. When that fails it expires by itself.
func (l *lock) giveBack(ctx context.Context) {
	l.cancel(nil)
	<-l.done
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = l.pool.Exec(ctx, l.release, l.queue, l.token)
}

// isWanted says whether somebody waits for the lock that a scan holds.
func (l *lock) isWanted(ctx context.Context) (wanted bool, err error) {
	if err := l.pool.QueryRow(ctx, l.wanted, l.queue, l.token).Scan(&wanted); err != nil {
		return false, fmt.Errorf("look who waits for the dead-letter queue: %w", err)
	}
	return wanted, nil
}
