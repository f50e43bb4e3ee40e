package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/usertable"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	beginRunSQL pg.SQL = `
INSERT INTO @schema@.reconcile_runs (id, rule, host) VALUES ($1, $2, $3) RETURNING started_at`

	endRunSQL pg.SQL = `
UPDATE @schema@.reconcile_runs SET ended_at = clock_timestamp(), checked = $2, mismatches = $3, kept = $4, unanswered = $5, lost = $6, failed = $7, error = $8
WHERE id = $1`

	expireRunsSQL pg.SQL = `
DELETE FROM @schema@.reconcile_runs WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM @schema@.reconcile_runs WHERE started_at < clock_timestamp() - $1::interval ORDER BY started_at LIMIT $2 FOR UPDATE SKIP LOCKED))`

	// A suspect is claimed anew soon after next_check while it is one. A record whose time passed long ago is of a row that is right by
	// now, or of a rule that is gone.
	expireSuspectsSQL pg.SQL = `
DELETE FROM @schema@.reconcile_suspects WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM @schema@.reconcile_suspects
    WHERE next_check < clock_timestamp() - $1::interval AND (resolved_at IS NULL OR resolved_at < clock_timestamp() - $2::interval)
    ORDER BY next_check LIMIT $3 FOR UPDATE SKIP LOCKED))`

	lastSuccessSQL pg.SQL = `
SELECT coalesce(extract(epoch FROM max(ended_at)), 0)::float8 FROM @schema@.reconcile_runs WHERE rule = $1 AND ended_at IS NOT NULL AND error IS NULL`

	sizeSQL pg.SQL = `SELECT pg_total_relation_size('@schema@.reconcile_runs') + pg_total_relation_size('@schema@.reconcile_suspects')`
)

// Retentions of what is kept.
const (
	RunRetention      = 30 * 24 * time.Hour // of runs, from their start
	MismatchRetention = 30 * 24 * time.Hour // of suspects that were mended
	suspectRetention  = 24 * time.Hour      // of other suspects, from when they are due
	expireBatch       = 1000
)

// countLimit bounds what gauges count.
const countLimit = 10_000

// beginRun gives a run its id. Start is the database's clock.
func (r *Reconciler) beginRun(ctx context.Context, rule Rule) (id uuid.UUID, start time.Time, err error) {
	if id, err = uuid.NewV7(); err != nil {
		return id, start, fmt.Errorf("make the id of a run: %w", err)
	}
	err = r.options.Pool.QueryRow(ctx, beginRunSQL.In(r.options.Schema), id, rule.Name, message.Storable(r.options.Host, maxText)).Scan(&start)
	if err != nil {
		return id, start, fmt.Errorf("begin run: %w", err)
	}
	return id, start, nil
}

func (r *Reconciler) endRun(ctx context.Context, id uuid.UUID, result Result, failed error) error {
	var text *string
	if failed != nil {
		cut := usertable.Bounded(failed)
		text = &cut
	}
	_, err := r.options.Pool.Exec(ctx, endRunSQL.In(r.options.Schema), id, result.Checked, result.Mismatches, result.Kept,
		result.Unanswered, result.Lost, result.Failed, text)
	if err != nil {
		return fmt.Errorf("end run: %w", err)
	}
	return nil
}

// clean removes what is past its retention, in bounded batches.
func (r *Reconciler) clean(ctx context.Context) error {
	_, runs := r.options.Pool.Exec(ctx, expireRunsSQL.In(r.options.Schema), RunRetention, expireBatch)
	_, suspects := r.options.Pool.Exec(ctx, expireSuspectsSQL.In(r.options.Schema), suspectRetention, MismatchRetention, expireBatch)
	if err := errors.Join(runs, suspects); err != nil {
		return fmt.Errorf("expire runs and suspects: %w", err)
	}
	return nil
}

// measure sets the gauges from the tables, so that they are right whichever replica did the work.
func (r *Reconciler) measure(ctx context.Context, rule Rule) error {
	c, err := r.compile(ctx, rule)
	if err != nil {
		return err
	}
	var suspects, unanswered, size int64
	var oldest, last float64
	if err := r.options.Pool.QueryRow(ctx, c.count, c.arguments(c.Name, countLimit)...).Scan(&suspects, &oldest, &unanswered); err != nil {
		return fmt.Errorf("count suspects: %w", err)
	}
	if err := r.options.Pool.QueryRow(ctx, lastSuccessSQL.In(r.options.Schema), rule.Name).Scan(&last); err != nil {
		return fmt.Errorf("look for the last run: %w", err)
	}
	if err := r.options.Pool.QueryRow(ctx, sizeSQL.In(r.options.Schema)).Scan(&size); err != nil {
		return fmt.Errorf("size of runs and suspects: %w", err)
	}
	m := r.metrics
	m.suspects.WithLabelValues(rule.Name).Set(float64(suspects))
	m.oldest.WithLabelValues(rule.Name).Set(max(oldest, 0))
	m.unanswered.WithLabelValues(rule.Name).Set(float64(unanswered))
	m.lastSuccess.WithLabelValues(rule.Name).Set(last)
	m.bytes.Set(float64(size))
	return nil
}
