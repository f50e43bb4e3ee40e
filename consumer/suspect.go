package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	// markSQL counts a run before it begins; no row means that the message was handled already.
	markSQL pg.SQL = `
INSERT INTO @schema@.inbox_suspects AS s (consumer, message, lap, runs)
SELECT $1, $2, $3, 1 WHERE NOT EXISTS (SELECT FROM @schema@.inbox WHERE consumer = $1 AND message = $2)
ON CONFLICT (consumer, message) DO UPDATE
    SET runs = CASE WHEN s.lap = EXCLUDED.lap THEN s.runs + 1 ELSE 1 END, lap = EXCLUDED.lap, at = now()
RETURNING runs`

	// unmarkSQL takes back the last run: it ended, but the message is still there with what it was charged before.
	unmarkSQL pg.SQL = `UPDATE @schema@.inbox_suspects SET runs = greatest(runs - 1, 0) WHERE consumer = $1 AND message = $2`

	clearSQL pg.SQL = `DELETE FROM @schema@.inbox_suspects WHERE consumer = $1 AND message = $2`
)

// isSuspect tells whether a process may have died while it held the delivery. From RabbitMQ 4.3 quorum queues
// count acquisitions apart from failures, so that a message which was merely returned is told from one whose
// consumer died; everywhere else the redelivered flag is all there is.
func isSuspect(d *amqp.Delivery) bool {
	if !d.Redelivered {
		return false
	}
	_, counted := d.Headers["x-acquired-count"]
	return !counted || deliveryCount(d) > 0
}

// deliveryCount is 0 without the redelivered flag: then the header can be a stale copy.
func deliveryCount(d *amqp.Delivery) int64 {
	if !d.Redelivered {
		return 0
	}
	n, _ := message.Integer(d.Headers["x-delivery-count"])
	return n
}

// lap names one life of a message between two counted failures or redrives; marks of another lap are void.
func lap(h amqp.Table) string {
	return fmt.Sprintf("%d/%s", message.Attempts(h), message.Storable(message.Text(h, message.HeaderReprocess), 64))
}

// mark records that a suspect is about to run alone, and returns how many earlier runs of it never ended.
func (b *inbox) mark(ctx context.Context, key uuid.UUID, lap string) (crashes int, err error) {
	var runs int
	err = b.pool.QueryRow(ctx, markSQL.In(b.schema), b.id, key, lap).Scan(&runs)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, errDuplicate
	}
	if err != nil {
		return 0, &databaseError{"mark redelivered message", err, true}
	}
	return runs - 1, nil
}

// execer is a pool or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// clear removes the mark: the message was handled or moved.
func (b *inbox) clear(ctx context.Context, db execer, key uuid.UUID) error {
	return b.changeMark(ctx, db, clearSQL, key)
}

// unmark takes back the run that has just ended without an end of the message.
func (b *inbox) unmark(ctx context.Context, key uuid.UUID) error {
	return b.changeMark(ctx, b.pool, unmarkSQL, key)
}

func (b *inbox) changeMark(ctx context.Context, db execer, sql pg.SQL, key uuid.UUID) error {
	if _, err := db.Exec(ctx, sql.In(b.schema), b.id, key); err != nil {
		return &databaseError{"change mark of redelivered message", err, true}
	}
	return nil
}
