package outbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

// traceSQL reads the whole outbox, which has no index by message or cause. Rows of the message itself come first.
const traceSQL pg.SQL = `
SELECT shard, id, message_id, type, key, source, correlation_id, causation_id, traceparent, state, created_at, occurred_at, attempts, reason, error, parked_at, last_failed_at, next_at
FROM (SELECT shard, id, message_id, type, key, source, correlation_id, causation_id, traceparent, 'pending' AS state, created_at, occurred_at, 0 AS attempts, '' AS reason,
             '' AS error, NULL::timestamptz AS parked_at, NULL::timestamptz AS last_failed_at, NULL::timestamptz AS next_at
      FROM @schema@.outbox WHERE message_id = $1 OR causation_id = $1
      UNION ALL
      SELECT shard, id, message_id, type, key, source, correlation_id, causation_id, traceparent, state, created_at, occurred_at, attempts, reason,
             error, parked_at, last_failed_at, next_at
      FROM @schema@.outbox_parked WHERE message_id = $1 OR causation_id = $1) AS t
ORDER BY message_id <> $1, created_at, shard, id LIMIT $2`

// Traced is a row of the outbox, pending or parked, that belongs to a message: its own, or that of one which it caused.
type Traced struct {
	Shard         int16
	Row           int64
	ID            string
	Type          string
	Key           string
	Source        string
	CorrelationID string
	CausationID   string
	TraceParent   string
	// State is [StatePending], [StateRetry] or [StateDead].
	State      string
	CreatedAt  time.Time
	OccurredAt time.Time
	// The rest is of parked rows.
	Attempts     int
	Reason       string
	Error        string
	ParkedAt     *time.Time
	LastFailedAt *time.Time
	// NextAt is when it is tried again; nil unless its state is retry.
	NextAt *time.Time
}

// Trace returns the rows of a message id, and those whose causation id it is, at most limit, its own first. A row that was published is
// not there any more. It reads the whole outbox.
func Trace(ctx context.Context, db Querier, schema, id string, limit int) ([]Traced, error) {
	return collect(ctx, db, "trace message", schema, traceSQL, pgx.RowToStructByPos[Traced], id, limit)
}
