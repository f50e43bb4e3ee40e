package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/resilience"
)

const (
	shardsSQL pg.SQL = `SELECT @schema@.outbox_shards(), count(*) FROM @schema@.outbox_leases`

	heartbeatSQL pg.SQL = `
INSERT INTO @schema@.outbox_members AS m (id, name, ttl, expires_at, able_since)
VALUES ($1, $2, $3, clock_timestamp() + $3::interval, CASE WHEN $4 THEN clock_timestamp() END)
ON CONFLICT (id) DO UPDATE SET expires_at = clock_timestamp() + $3::interval, ttl = $3,
    able_since = CASE WHEN $4 THEN coalesce(m.able_since, clock_timestamp()) END`

	// renewSQL names the epochs, and like all that does holds only on the server that the lease was taken on; what it does not return has another owner, or its reply was lost once: see view.
	renewSQL pg.SQL = `
UPDATE @schema@.outbox_leases l SET expires_at = clock_timestamp() + $4::interval, ttl = $4
FROM (SELECT k.shard FROM @schema@.outbox_leases k JOIN unnest($2::smallint[], $3::bigint[]) AS mine(shard, epoch)
      ON k.shard = mine.shard AND k.epoch = mine.epoch WHERE k.owner = $1 AND k.server = pg_postmaster_start_time() ORDER BY k.shard FOR UPDATE OF k) held
WHERE l.shard = held.shard RETURNING l.shard`

	// viewSQL shows all leases, and how many members count, this one among them, and how many of these come before it. A
	// member that cannot publish counts only while it owns something, and until another has been able to for a lease, or
	// for longer than it takes to connect again: when the broker comes back, nobody should hand over in between. A member or lease further
	// ahead than its ttl comes from a clock that was set back: it counts as expired.
	viewSQL pg.SQL = `
WITH alive AS MATERIALIZED (
    SELECT id, able_since IS NOT NULL AS able, able_since < clock_timestamp() - greatest(ttl, '5 s') AS proven FROM @schema@.outbox_members
    WHERE expires_at BETWEEN clock_timestamp() AND clock_timestamp() + ttl
), counted AS MATERIALIZED (
    SELECT id FROM alive
    WHERE able OR NOT EXISTS (SELECT FROM alive WHERE proven)
        AND EXISTS (SELECT FROM @schema@.outbox_leases l WHERE l.owner = alive.id AND l.expires_at > clock_timestamp())
)
SELECT l.shard, l.epoch, coalesce(l.owner = $1 AND l.server = pg_postmaster_start_time(), false),
       l.owner IS NULL OR l.expires_at < clock_timestamp() OR l.expires_at > clock_timestamp() + l.ttl,
       (SELECT count(*) FROM counted), (SELECT count(*) FROM counted WHERE id < $1), EXISTS (SELECT FROM counted WHERE id = $1)
FROM @schema@.outbox_leases l ORDER BY l.shard`

	takeSQL pg.SQL = `
UPDATE @schema@.outbox_leases l SET owner = $1, epoch = l.epoch + 1, ttl = $3, expires_at = clock_timestamp() + $3::interval, server = pg_postmaster_start_time()
FROM (SELECT shard FROM @schema@.outbox_leases
      WHERE owner IS NULL OR expires_at < clock_timestamp() OR expires_at > clock_timestamp() + ttl
      ORDER BY shard LIMIT $2 FOR UPDATE SKIP LOCKED) free
WHERE l.shard = free.shard RETURNING l.shard, l.epoch`

	// identitySQL is what the fences of this database and of no other share. The system identifier tells clusters apart
	// whose databases have the same name. It is right where an id of our own in a table would be wrong: a dump that is
	// restored elsewhere is another outbox, and must not fence the original; a standby that is promoted, or a backup that
	// is restored in place, is the same one, and its former relays must be fenced. A physical copy of a cluster that runs
	// beside it on the same vhost is taken for the same one: readiness and log say so.
	identitySQL pg.SQL = `SELECT system_identifier || '.' || current_database() FROM pg_control_system()`

	releaseSQL pg.SQL = `
UPDATE @schema@.outbox_leases SET owner = NULL, expires_at = '-infinity' WHERE shard = $1 AND epoch = $2 AND owner = $3`

	leaveSQL pg.SQL = `DELETE FROM @schema@.outbox_members WHERE id = $1`
)

// leaseStore is the leases and members in the database. All judgements are by the database's clock. It is
// stateless.
type leaseStore struct {
	pool   *pgxpool.Pool
	schema string
	me     uuid.UUID
	name   string
	ttl    time.Duration
}

// lease is one row as a view shows it.
type lease struct {
	shard      int16
	epoch      int64
	mine, free bool
}

// fences returns how the names of all fences of this outbox begin.
func (l *leaseStore) fences(ctx context.Context) (string, error) {
	var database string
	err := l.pool.QueryRow(ctx, identitySQL.In(l.schema)).Scan(&database)
	if resilience.SQLStateOf(err) == pg.InsufficientPrivilege {
		err = l.pool.QueryRow(ctx, `SELECT current_database()`).Scan(&database) // taken away from us: better than nothing
	}
	if err != nil {
		return "", fmt.Errorf("identify the database: %w", err)
	}
	return fencePrefix + database + "." + l.schema + ".", nil
}

// view is everything that decides who should own what.
type view struct {
	leases         []lease
	members, ahead int
	counted        bool // this member is one of them
}

// share is how many shards this member should own: even, the first ones by id get the rest.
func (v view) share() int {
	if !v.counted {
		return 0
	}
	share := len(v.leases) / v.members
	if v.ahead < len(v.leases)%v.members {
		share++
	}
	return share
}

// checkShards refuses another number of shards than the rows were written with.
func (l *leaseStore) checkShards(ctx context.Context, want int) error {
	var stored, leases int
	if err := l.pool.QueryRow(ctx, shardsSQL.In(l.schema)).Scan(&stored, &leases); err != nil {
		return fmt.Errorf("read the number of shards: %w", err)
	}
	if want != 0 && want != stored || leases != stored {
		return &ShardsError{Configured: want, Stored: stored, Leases: leases}
	}
	return nil
}

// ShardsError says that the relay is set to another number of shards than the outbox was written with. With
// another number, rows of one key would be published from two shards.
type ShardsError struct{ Configured, Stored, Leases int }

// Error implements error.
func (e *ShardsError) Error() string {
	return fmt.Sprintf("relay: set to %d shards, but the outbox has %d (and %d leases); set relay.shards to %d",
		e.Configured, e.Stored, e.Leases, e.Stored)
}

// heartbeat says that this member lives, and whether it is able to publish.
func (l *leaseStore) heartbeat(ctx context.Context, able bool) error {
	if _, err := l.pool.Exec(ctx, heartbeatSQL.In(l.schema), l.me, l.name, l.ttl, able); err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	return nil
}

// renew extends the leases of the given epochs and returns the shards that it extended.
func (l *leaseStore) renew(ctx context.Context, shards []int16, epochs []int64) ([]int16, error) {
	rows, _ := l.pool.Query(ctx, renewSQL.In(l.schema), l.me, shards, epochs, l.ttl) // its error is that of the rows
	renewed, err := pgx.CollectRows(rows, pgx.RowTo[int16])
	if err != nil {
		return nil, fmt.Errorf("renew leases: %w", err)
	}
	return renewed, nil
}

func (l *leaseStore) view(ctx context.Context) (v view, err error) {
	rows, _ := l.pool.Query(ctx, viewSQL.In(l.schema), l.me) // its error is that of the rows
	v.leases, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s lease, err error) {
		err = row.Scan(&s.shard, &s.epoch, &s.mine, &s.free, &v.members, &v.ahead, &v.counted)
		return s, err
	})
	if err != nil {
		return view{}, fmt.Errorf("read leases: %w", err)
	}
	return v, nil
}

// take takes up to n free shards and returns their new epochs.
func (l *leaseStore) take(ctx context.Context, n int) ([]lease, error) {
	rows, _ := l.pool.Query(ctx, takeSQL.In(l.schema), l.me, n, l.ttl) // its error is that of the rows
	taken, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s lease, err error) {
		s.mine = true
		err = row.Scan(&s.shard, &s.epoch)
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("take leases: %w", err)
	}
	return taken, fault.Point("relay.after-lease")
}

func (l *leaseStore) release(ctx context.Context, shard int16, epoch int64) error {
	if err := fault.Point("relay.before-release"); err != nil {
		return err
	}
	if _, err := l.pool.Exec(ctx, releaseSQL.In(l.schema), shard, epoch, l.me); err != nil {
		return fmt.Errorf("release shard %d: %w", shard, err)
	}
	return fault.Point("relay.after-release")
}

func (l *leaseStore) leave(ctx context.Context) error {
	if _, err := l.pool.Exec(ctx, leaveSQL.In(l.schema), l.me); err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	return nil
}
