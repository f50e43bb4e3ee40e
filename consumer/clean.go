package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
)

const (
	// expireSQL removes the oldest rows of every consumer by its own retention, so that those of one that has gone
	// age out too. Replicas do not wait for each other.
	expireSQL pg.SQL = `
DELETE FROM @schema@.inbox WHERE (consumer, message) IN (
    SELECT aged.consumer, aged.message FROM @schema@.inbox_consumers c CROSS JOIN LATERAL (
        SELECT i.consumer, i.message FROM @schema@.inbox i
        WHERE i.consumer = c.id AND i.handled_at < now() - c.retention
        ORDER BY i.handled_at LIMIT $1 FOR UPDATE SKIP LOCKED) aged
    LIMIT $1)`

	expireMarksSQL pg.SQL = `
DELETE FROM @schema@.inbox_suspects WHERE (consumer, message) IN (
    SELECT consumer, message FROM @schema@.inbox_suspects WHERE at < now() - interval '7 days' ORDER BY at LIMIT $1)`

	inboxSizeSQL pg.SQL = `SELECT pg_total_relation_size('@schema@.inbox')`
)

// Cleaning: small batches with rests, so that handlers never notice.
const (
	cleanInterval = time.Minute
	cleanBatch    = 1000
	cleanRest     = 100 * time.Millisecond
)

// clean removes aged rows until ctx ends.
func (c *Consumer) clean(ctx context.Context) {
	for pause.For(ctx, pause.Jitter(cleanInterval)) {
		if err := c.cleanOnce(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn().Err(err).Msg("inbox not cleaned, trying again later")
		}
	}
}

func (c *Consumer) cleanOnce(ctx context.Context) error {
	removed, err := expireInbox(ctx, c.opts, cleanBatch)
	c.metrics.inboxPurged.Add(float64(removed))
	if err != nil {
		return err
	}
	var size int64
	if err := c.opts.Pool.QueryRow(ctx, inboxSizeSQL.In(c.opts.Schema)).Scan(&size); err != nil {
		return fmt.Errorf("measure inbox: %w", err)
	}
	c.metrics.inboxBytes.Set(float64(size))
	return nil
}

// expireInbox deletes batches until one is not full.
func expireInbox(ctx context.Context, o Options, batch int) (removed int64, err error) {
	for {
		tag, err := o.Pool.Exec(ctx, expireSQL.In(o.Schema), batch)
		if err != nil {
			return removed, fmt.Errorf("expire inbox: %w", err)
		}
		removed += tag.RowsAffected()
		if tag.RowsAffected() < int64(batch) {
			break
		}
		if !pause.For(ctx, cleanRest) {
			return removed, nil
		}
	}
	if _, err := o.Pool.Exec(ctx, expireMarksSQL.In(o.Schema), batch); err != nil {
		return removed, fmt.Errorf("expire marks of redelivered messages: %w", err)
	}
	return removed, nil
}
