package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/usertable"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	// The fence: only the run that holds the claim may record an answer, and the row stays locked until its transaction ends. It comes
	// before the change. $1 rule, $2 hash, $3 run, $4 answer, $5 time to the next question, $6 new status, $7 event; the last two NULL: kept.
	answeredSQL pg.SQL = `
UPDATE @schema@.reconcile_suspects SET
    checks = checks + 1, misses = 0, checked_at = clock_timestamp(), answer = $4, error = NULL, next_check = clock_timestamp() + $5::interval,
    new_status = $6, event_id = $7, resolved_at = CASE WHEN $6::text IS NOT NULL THEN clock_timestamp() END
WHERE rule = $1 AND key_hash = $2 AND run_id = $3 AND next_check > clock_timestamp()`

	// $4 answer, if there was one, $5 error, $6 backoff, $7 longest backoff.
	missedSQL pg.SQL = `
UPDATE @schema@.reconcile_suspects SET
    checks = checks + 1, misses = misses + 1, checked_at = clock_timestamp(), answer = coalesce($4, answer), error = $5,
    next_check = clock_timestamp() + least($7::interval, $6::interval * power(2, least(misses, 16)))
WHERE rule = $1 AND key_hash = $2 AND run_id = $3 AND next_check > clock_timestamp()
RETURNING next_check`

	// Somebody else has changed the row: if it is suspect again, it is another case. $3 run.
	dropSQL pg.SQL = `DELETE FROM @schema@.reconcile_suspects WHERE rule = $1 AND key_hash = $2 AND run_id = $3`
)

// namespace of the events' ids. Changing it would change every id.
var namespace = uuid.MustParse("2b8f4c43-6a0e-5a38-8c1f-2f2d3f6f9d51")

var (
	// errUndone: the table has its own mind.
	errUndone = errors.New("the change was undone: a trigger, a rule or row security kept the row as it was")
	// errLost ends a transaction that may not commit, because somebody else has the claim.
	errLost = errors.New("the lease of the claim is over")
	// errChanged says that somebody else has changed the row.
	errChanged = errors.New("the row has changed")
)

// eventID is the same however often the row is mended for the same stay in its status.
func eventID(s Suspect, a Action) uuid.UUID {
	return uuid.NewSHA1(namespace, []byte(s.Rule+"\x00"+s.Since.UTC().Format(time.RFC3339Nano)+"\x00"+a.NewStatus+"\x00"+s.Key))
}

// keep records an answer that is fine.
func (r *Reconciler) keep(ctx context.Context, c *compiled, run uuid.UUID, s claimed, answer string) error {
	return r.answered(ctx, r.options.Pool, c, run, s, answer, nil, nil)
}

// execer is a pool or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func (r *Reconciler) answered(ctx context.Context, db execer, c *compiled, run uuid.UUID, s claimed, answer string, status *string, event *uuid.UUID) error {
	tag, err := db.Exec(ctx, answeredSQL.In(r.options.Schema), c.Name, s.hash, run, answer, r.options.interval(c.Rule), status, event)
	if err != nil {
		return fmt.Errorf("record answer: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return errLost
	}
	return nil
}

// mend changes the row, writes the event and records the answer, all or nothing. It returns errLost or errChanged when there is nothing to
// do any more.
func (r *Reconciler) mend(ctx context.Context, c *compiled, run uuid.UUID, s claimed, answer string) error {
	action := c.Answers[answer]
	id := eventID(s.Suspect, action)
	// READ COMMITTED whatever the database's default: the fence must see what others committed before it.
	err := pgx.BeginTxFunc(ctx, r.options.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := usertable.LimitLocks(ctx, tx, r.options.LockTimeout); err != nil {
			return err
		}
		if err := r.answered(ctx, tx, c, run, s, answer, &action.NewStatus, &id); err != nil {
			return err
		}
		if err := change(ctx, tx, c, s, action); err != nil {
			return err
		}
		if err := fault.Point("reconcile.after-change"); err != nil {
			return err
		}
		if err := r.emit(ctx, tx, c, run, s, answer, id); err != nil {
			return err
		}
		if action.Do != nil {
			if err := action.Do(ctx, tx, s.Suspect); err != nil {
				return fmt.Errorf("do what the rule adds: %w", err)
			}
		}
		return fault.Point("reconcile.before-commit")
	})
	if err != nil {
		return err
	}
	return fault.Point("reconcile.after-commit")
}

// change is the compare-and-swap.
func change(ctx context.Context, tx pgx.Tx, c *compiled, s claimed, action Action) error {
	rows, _ := tx.Query(ctx, c.change, s.Key, s.Status, s.Since, action.NewStatus, action.Reason) // its error is that of the rows
	changed, undone := 0, false
	var reason string
	var kept bool
	if _, err := pgx.ForEachRow(rows, []any{&kept, &reason}, func() error { changed++; undone = undone || kept; return nil }); err != nil {
		return fmt.Errorf("change row: %w", err)
	}
	if undone {
		return errUndone
	}
	if changed > 0 {
		return nil
	}
	var still bool
	if err := tx.QueryRow(ctx, c.stillThere, s.Key, s.Status, s.Since).Scan(&still); err != nil {
		return fmt.Errorf("look at the row again: %w", err)
	}
	if still {
		return errUndone
	}
	return errChanged
}

// emit says what was done and why. Numbers of the row stay as the database wrote them.
func (r *Reconciler) emit(ctx context.Context, tx pgx.Tx, c *compiled, run uuid.UUID, s claimed, answer string, id uuid.UUID) error {
	action := c.Answers[answer]
	payload := map[string]any{}
	for name, value := range s.Columns {
		payload[name] = value
	}
	payload["key"] = s.Key
	payload["rule"] = c.Name
	payload["run"] = run.String()
	payload["reason"] = action.Reason
	payload["answer"] = answer
	payload["status"] = action.NewStatus
	payload["previousStatus"] = s.Status
	payload["suspectSince"] = message.Stamp{Time: s.Since}
	body, err := json.Marshal(payload)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	_, err = r.outbox.Enqueue(ctx, tx, message.Message{
		ID: id.String(), Type: action.EventType, Key: s.Key, Exchange: action.Exchange, Source: c.source(), Payload: body,
	})
	return err
}

// miss records that there was no answer, or that its action failed, and when the next question is due.
func (r *Reconciler) miss(ctx context.Context, c *compiled, run uuid.UUID, s claimed, answer string, cause error) (next time.Time, err error) {
	var known *string
	if answer != "" {
		known = &answer
	}
	err = r.options.Pool.QueryRow(ctx, missedSQL.In(r.options.Schema), c.Name, s.hash, run, known, usertable.Bounded(cause),
		r.options.Backoff, r.options.MaxBackoff).Scan(&next)
	if errors.Is(err, pgx.ErrNoRows) {
		return next, errLost
	}
	if err != nil {
		return next, fmt.Errorf("record suspect without an answer: %w", err)
	}
	return next, nil
}

// drop forgets a suspect that somebody else has changed.
func (r *Reconciler) drop(ctx context.Context, c *compiled, run uuid.UUID, s claimed) error {
	if _, err := r.options.Pool.Exec(ctx, dropSQL.In(r.options.Schema), c.Name, s.hash, run); err != nil {
		return fmt.Errorf("drop suspect: %w", err)
	}
	return nil
}
