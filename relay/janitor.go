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
	"github.com/surefoot-mq/surefoot/outbox"
)

// Rows that age out: each statement takes the longest that they are kept, and how many to remove at most.
const (
	expireOnceSQL pg.SQL = `
DELETE FROM @schema@.outbox_once WHERE message_id IN (
    SELECT message_id FROM @schema@.outbox_once WHERE enqueued_at < clock_timestamp() - $1::interval LIMIT $2)`

	expireRequestsSQL pg.SQL = `
DELETE FROM @schema@.outbox_requests WHERE id IN (
    SELECT id FROM @schema@.outbox_requests
    WHERE state <> 'pending' AND finished_at < clock_timestamp() - $1::interval ORDER BY finished_at LIMIT $2)`

	expireMembersSQL pg.SQL = `
DELETE FROM @schema@.outbox_members WHERE id IN (
    SELECT id FROM @schema@.outbox_members WHERE expires_at < clock_timestamp() - $1::interval ORDER BY id LIMIT $2
    FOR UPDATE SKIP LOCKED)`

	requestRetention = 7 * 24 * time.Hour
	memberRetention  = time.Hour
)

const (
	janitorEvery   = time.Minute
	janitorBatch   = 1000
	janitorBatches = 20 // of each kind in one round
	figuresEvery   = 15 * time.Second
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
	for _, aged := range []struct {
		sql  pg.SQL
		kept time.Duration
	}{{expireOnceSQL, outbox.DuplicateRetention}, {expireRequestsSQL, requestRetention}, {expireMembersSQL, memberRetention}} {
		err := batches(func() (int64, error) {
			tag, err := j.pool.Exec(ctx, aged.sql.In(j.schema), aged.kept, janitorBatch)
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
	found, err := outbox.Summarize(ctx, j.pool, j.schema)
	if err != nil {
		return err
	}
	j.metrics.pending.Set(float64(found.Pending))
	j.metrics.oldest.Set(found.Oldest)
	j.metrics.parked.Set(float64(found.Retry))
	j.metrics.dead.Set(float64(found.Dead))
	return nil
}
