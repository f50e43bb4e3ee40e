package watchdog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/usertable"
)

// lane is which rows a claim looks for.
type lane int

const (
	laneFresh lane = iota // rows that never failed
	laneAgain             // rows whose next try is due
)

// outcome is what one transaction did. It counts only after the commit.
type outcome struct {
	claimed   int
	cancelled []claimed
	failed    []failure
}

// cutError says that the database session ended under a batch. What its rows did is undone, and nothing is known of them.
type cutError struct {
	rows []claimed
	err  error
}

func (e *cutError) Error() string {
	return "the database session ended under the change: " + e.err.Error()
}
func (e *cutError) Unwrap() error { return e.err }

// batch claims up to size rows and deals with each, in one transaction. READ COMMITTED whatever the database's default:
// the claim must see what others committed before it.
func (w *Watchdog) batch(ctx context.Context, r *compiled, l lane, start time.Time, size int) (outcome, error) {
	var out outcome
	var rows []claimed
	var conn *pgx.Conn
	err := pgx.BeginTxFunc(ctx, w.options.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
		conn = tx.Conn()
		rows, err = w.claim(ctx, tx, r, l, start, size)
		if err != nil {
			return err
		}
		if out.claimed = len(rows); out.claimed == 0 {
			return nil
		}
		if err := fault.Point("watchdog.after-claim"); err != nil {
			return err
		}
		for _, row := range rows {
			if err := w.handle(ctx, tx, r, l, row, &out); err != nil {
				return err
			}
		}
		return fault.Point("watchdog.before-commit")
	})
	if err != nil && len(rows) > 0 && ctx.Err() == nil && conn.IsClosed() {
		return outcome{}, &cutError{rows, err}
	}
	if err != nil || out.claimed == 0 {
		return outcome{}, err
	}
	return out, fault.Point("watchdog.after-commit")
}

func (w *Watchdog) claim(ctx context.Context, tx pgx.Tx, r *compiled, l lane, start time.Time, size int) ([]claimed, error) {
	if err := usertable.LimitLocks(ctx, tx, w.options.LockTimeout); err != nil {
		return nil, err
	}
	statement := r.fresh
	if l == laneAgain {
		statement = r.again
	}
	rows, _ := tx.Query(ctx, statement, r.Stuck, r.Limit, r.Name, size, start) // its error is that of the rows
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[claimed])
	if err != nil {
		return nil, fmt.Errorf("claim stuck rows: %w", err)
	}
	return found, nil
}

// handle deals with one row. An error means that the transaction itself is lost; a row's own failure is
// recorded and is none.
func (w *Watchdog) handle(ctx context.Context, tx pgx.Tx, r *compiled, l lane, row claimed, out *outcome) error {
	done, err := w.cancel(ctx, tx, r, row)
	if err != nil {
		if lost(ctx, tx) {
			return err
		}
		f := failure{claimed: row, err: err}
		if err := w.record(ctx, tx, r, &f); err != nil {
			return err
		}
		out.failed = append(out.failed, f)
		return nil
	}
	if done {
		out.cancelled = append(out.cancelled, row)
	}
	if l == laneAgain {
		return w.forgive(ctx, tx, r, row)
	}
	return nil
}

// isolate answers the end of a session under a single row: it is recorded like a row that fails, so that it does not stand in
// front of the others for ever.
func (w *Watchdog) isolate(ctx context.Context, r *compiled, cut *cutError) (outcome, error) {
	f := failure{claimed: cut.rows[0], err: cut}
	err := pgx.BeginFunc(ctx, w.options.Pool, func(tx pgx.Tx) error { return w.record(ctx, tx, r, &f) })
	if err != nil {
		return outcome{}, errors.Join(cut, err)
	}
	return outcome{claimed: 1, failed: []failure{f}}, nil
}

// lost tells an interruption from a failure of the row: it says nothing about the row.
func lost(ctx context.Context, tx pgx.Tx) bool {
	return ctx.Err() != nil || tx.Conn().IsClosed()
}
