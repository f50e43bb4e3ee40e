package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
)

const (
	// expireSQL leaves what is pending: to forget it would be to do it again. Replicas do not wait for each other.
	expireSQL pg.SQL = `DELETE FROM @schema@.idempotency WHERE id IN (
    SELECT id FROM @schema@.idempotency WHERE expires_at < now() AND NOT pending ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)`

	sizeSQL pg.SQL = `SELECT pg_total_relation_size('@schema@.idempotency'), count(*),
    coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::double precision
FROM @schema@.idempotency WHERE pending`
)

// Cleaning: small batches with rests, so that requests never notice.
const (
	cleanInterval = time.Minute
	cleanBatch    = 1000
	cleanRest     = 100 * time.Millisecond
)

// Run removes keys after their retention, and measures, until ctx ends; then it returns nil. It fails at once when the schema
// is not there. Several processes may run it on one schema.
func (s *Store) Run(ctx context.Context) error {
	if err := pg.CheckVersion(ctx, s.options.Pool, s.options.Schema); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped, not failed
		}
		return fmt.Errorf("idempotency: %w", err)
	}
	for {
		if err := s.clean(ctx, cleanBatch); err != nil && ctx.Err() == nil {
			s.options.Logger.Warn().Err(err).Msg("idempotency keys not cleaned, trying again later")
		}
		if !pause.For(ctx, pause.Jitter(cleanInterval)) {
			return nil
		}
	}
}

// clean deletes batches until one is not full.
func (s *Store) clean(ctx context.Context, batch int) error {
	for {
		tag, err := s.options.Pool.Exec(ctx, expireSQL.In(s.options.Schema), batch)
		if err != nil {
			return fmt.Errorf("expire idempotency keys: %w", err)
		}
		s.metrics.purged.Add(float64(tag.RowsAffected()))
		if tag.RowsAffected() < int64(batch) {
			return s.measure(ctx)
		}
		if !pause.For(ctx, cleanRest) {
			return nil
		}
	}
}

func (s *Store) measure(ctx context.Context) error {
	var size, pending int64
	var oldest float64
	if err := s.options.Pool.QueryRow(ctx, sizeSQL.In(s.options.Schema)).Scan(&size, &pending, &oldest); err != nil {
		return fmt.Errorf("measure idempotency keys: %w", err)
	}
	s.metrics.bytes.Set(float64(size))
	s.metrics.pending.Set(float64(pending))
	s.metrics.oldest.Set(oldest)
	return nil
}
