package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
)

const (
	// expireOnceSQL forgets ids enqueued with Once after 7 days (outbox.DuplicateRetention).
	expireOnceSQL pg.SQL = `
DELETE FROM @schema@.outbox_once WHERE message_id IN (
    SELECT message_id FROM @schema@.outbox_once WHERE enqueued_at < clock_timestamp() - interval '7 days' LIMIT $1)`

	expireRequestsSQL pg.SQL = `
DELETE FROM @schema@.outbox_requests WHERE id IN (
    SELECT id FROM @schema@.outbox_requests
    WHERE state <> 'pending' AND finished_at < clock_timestamp() - interval '7 days' ORDER BY finished_at LIMIT $1)`

	expireMembersSQL pg.SQL = `
DELETE FROM @schema@.outbox_members WHERE id IN (
    SELECT id FROM @schema@.outbox_members WHERE expires_at < clock_timestamp() - interval '1 hour' ORDER BY id LIMIT $1
    FOR UPDATE SKIP LOCKED)`

	// figuresSQL is cheap whatever the backlog: it counts to a bound, and looks at the first row of each shard.
	figuresSQL pg.SQL = `
SELECT (SELECT count(*) FROM (SELECT FROM @schema@.outbox LIMIT 100001) c),
       (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = '@schema@.outbox'::regclass),
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(f.created_at)), 0)::float8
        FROM @schema@.outbox_leases l CROSS JOIN LATERAL (
            SELECT x.created_at FROM @schema@.outbox x WHERE (x.shard, x.id) > (l.shard, 0) AND x.shard <= l.shard
            ORDER BY x.shard, x.id LIMIT 1) f),
       (SELECT count(*) FROM @schema@.outbox_parked WHERE state = 'retry'),
       (SELECT count(*) FROM @schema@.outbox_parked WHERE state = 'dead')`

	janitorEvery   = time.Minute
	janitorBatch   = 1000
	janitorBatches = 20 // of each kind in one round
	figuresEvery   = 15 * time.Second
	countBound     = 100_000
)

// janitor removes what has aged out, in bounded batches, and samples the figures.
type janitor struct {
	pool    *pgxpool.Pool
	schema  string
	logger  zerolog.Logger
	metrics *metrics
}

func (j *janitor) run(ctx context.Context) {
	clean := time.Now().Add(janitorEvery / 6)
	for {
		if err := j.figures(ctx); err != nil && ctx.Err() == nil {
			j.logger.Debug().Err(err).Msg("figures not sampled")
		}
		if time.Now().After(clean) {
			clean = time.Now().Add(janitorEvery)
			if err := j.clean(ctx); err != nil && ctx.Err() == nil {
				j.logger.Warn().Err(err).Msg("cleaning failed, tried again in a minute")
			}
		}
		if !pause.For(ctx, figuresEvery) {
			return
		}
	}
}

// clean takes one round over everything that has a retention.
func (j *janitor) clean(ctx context.Context) error {
	for _, sql := range []pg.SQL{expireOnceSQL, expireRequestsSQL, expireMembersSQL} {
		err := batches(func() (int64, error) {
			tag, err := j.pool.Exec(ctx, sql.In(j.schema), janitorBatch)
			return tag.RowsAffected(), err
		})
		if err != nil {
			return fmt.Errorf("expire: %w", err)
		}
	}
	return batches(func() (int64, error) { return audit.Expire(ctx, j.pool, j.schema, janitorBatch) })
}

// batches repeats until a batch was not full, a bounded number of times.
func batches(remove func() (int64, error)) error {
	for range janitorBatches {
		n, err := remove()
		if err != nil || n < janitorBatch {
			return err
		}
	}
	return nil
}

func (j *janitor) figures(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var counted, estimate, parked, dead int64
	var oldest float64
	err := j.pool.QueryRow(ctx, figuresSQL.In(j.schema)).Scan(&counted, &estimate, &oldest, &parked, &dead)
	if err != nil {
		return fmt.Errorf("sample figures: %w", err)
	}
	if counted > countBound {
		counted = max(counted, estimate)
	}
	j.metrics.pending.Set(float64(counted))
	j.metrics.oldest.Set(max(oldest, 0))
	j.metrics.parked.Set(float64(parked))
	j.metrics.dead.Set(float64(dead))
	return nil
}
