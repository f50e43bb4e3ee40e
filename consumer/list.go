package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

const queuesSQL pg.SQL = `
SELECT coalesce(c.queue, p.queue), p.queue IS NOT NULL, p.at, coalesce(p.who, ''), coalesce(p.reason, ''), c.seen_at
FROM (SELECT queue, max(seen_at) AS seen_at FROM @schema@.inbox_consumers GROUP BY queue) c
FULL JOIN @schema@.pauses p ON p.queue = c.queue
WHERE $1 = '' OR coalesce(c.queue, p.queue) = $1 ORDER BY 1`

// QueueState is what the database knows of a queue.
type QueueState struct {
	Queue  string `json:"queue"`
	Paused bool   `json:"paused"`
	// Since, Who and Reason are those of the pause.
	Since  *time.Time `json:"since,omitempty"`
	Who    string     `json:"who,omitempty"`
	Reason string     `json:"reason,omitempty"`
	// Started is when a consumer of the queue was last started; nil: never.
	Started *time.Time `json:"started,omitempty"`
}

// Queues lists the queues that have had a consumer or are paused, by name; with a queue only that.
func Queues(ctx context.Context, db Database, schema, queue string) ([]QueueState, error) {
	return list[QueueState](ctx, db, "list queues", queuesSQL.In(schema), queue)
}

// list reads rows of a statement's shape, and names what it is for in its error.
func list[T any](ctx context.Context, db Database, op, sql, queue string) ([]T, error) {
	rows, err := db.Query(ctx, sql, queue)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return all, nil
}
