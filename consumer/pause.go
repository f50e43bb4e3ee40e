package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	pauseSQL  pg.SQL = `INSERT INTO @schema@.pauses (queue, who, reason) VALUES ($1, $2, $3) ON CONFLICT (queue) DO NOTHING`
	resumeSQL pg.SQL = `DELETE FROM @schema@.pauses WHERE queue = $1`
	pausesSQL pg.SQL = `SELECT queue, at, who, reason FROM @schema@.pauses WHERE $1 = '' OR queue = $1 ORDER BY queue`
)

// Pause is a queue that no consumer works on.
type Pause struct {
	Queue  string    `json:"queue"`
	At     time.Time `json:"at"`
	Who    string    `json:"who"`
	Reason string    `json:"reason"`
}

// Database is what the operators' functions need: a pool, or a connection.
type Database interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// PauseQueue has every consumer of the queue start nothing more, within 5 s, across restarts, until [ResumeQueue].
// What they hold stays unacknowledged. It reports false when the queue was paused already, whose pause then stays. Who
// and why are kept and audited.
func PauseQueue(ctx context.Context, db Database, schema, queue, who, reason string) (changed bool, err error) {
	if queue == "" || who == "" {
		return false, errors.New("pause: a queue and who pauses it are needed")
	}
	op := audit.NewOperation(who, "consume pause", queue, reason)
	return change(ctx, db, schema, op, pauseSQL, queue, op.Who, op.Reason)
}

// ResumeQueue ends a pause. It reports false when the queue was not paused.
func ResumeQueue(ctx context.Context, db Database, schema, queue, who, reason string) (changed bool, err error) {
	if queue == "" || who == "" {
		return false, errors.New("resume: a queue and who resumes it are needed")
	}
	return change(ctx, db, schema, audit.NewOperation(who, "consume resume", queue, reason), resumeSQL, queue)
}

// change runs one statement and, when it changed something, audits it in the same transaction.
func change(ctx context.Context, db Database, schema string, op audit.Operation, sql pg.SQL, args ...any) (bool, error) {
	changed := false
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql.In(schema), args...)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		changed = true
		return audit.Write(ctx, tx, schema, op, audit.Entry{Outcome: "done"})
	})
	if err != nil {
		return false, fmt.Errorf("%s %s: %w", op.Action, message.Clip(op.Target, 64), err)
	}
	return changed, nil
}

// Pauses lists the paused queues, by name; with a queue only that.
func Pauses(ctx context.Context, db Database, schema, queue string) ([]Pause, error) {
	return list[Pause](ctx, db, "list pauses", pausesSQL.In(schema), queue)
}
