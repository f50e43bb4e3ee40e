package watchdog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/message"
)

// namespace of the events' ids. Changing it would change every id.
var namespace = uuid.MustParse("6f5b2f0e-5d0c-5c8e-9f0b-6a1f6c2f3a77")

// claimed is a row that this transaction has locked.
type claimed struct {
	Key    string
	Status string
	Since  time.Time
}

// errUndone: the table has its own mind, and without this the row would be claimed again at once, for ever.
var errUndone = errors.New("the change was undone: a trigger, a rule or row security kept the row as it was")

// eventID is the same however often the row is changed for the same stay in its status.
func eventID(rule string, row claimed) string {
	name := rule + "\x00" + row.Since.UTC().Format(time.RFC3339Nano) + "\x00" + row.Key
	return uuid.NewSHA1(namespace, []byte(name)).String()
}

// cancel changes one row and enqueues its event inside a savepoint, which it leaves undone on an error. It
// reports false when somebody else has changed the row.
func (w *Watchdog) cancel(ctx context.Context, tx pgx.Tx, r *compiled, row claimed) (done bool, err error) {
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		return false, fmt.Errorf("set savepoint: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, savepoint.Rollback(context.WithoutCancel(ctx)))
		}
	}()
	status, columns, err := w.change(ctx, savepoint, r, row)
	if errors.Is(err, pgx.ErrNoRows) {
		err = w.explainMiss(ctx, savepoint, r, row)
		if err == nil {
			return false, savepoint.Commit(ctx)
		}
	}
	if err != nil {
		return false, err
	}
	if err := fault.Point("watchdog.after-change"); err != nil {
		return false, err
	}
	event, err := r.event(row, status, columns)
	if err != nil {
		return false, err
	}
	if _, err := w.outbox.Enqueue(ctx, savepoint, event); err != nil {
		return false, err
	}
	if err := fault.Point("watchdog.after-enqueue"); err != nil {
		return false, err
	}
	return true, savepoint.Commit(ctx)
}

func (w *Watchdog) change(ctx context.Context, tx pgx.Tx, r *compiled, row claimed) (status, columns string, err error) {
	rows, _ := tx.Query(ctx, r.change, r.Stuck, r.changeLimit, row.Key, r.NewStatus, r.Reason, r.fields, r.Name) // its error is that of the rows
	type changed struct {
		Status, Columns string
		Undone          bool
		Reason          string
		Fields          []string
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[changed])
	if err != nil {
		return "", "", fmt.Errorf("change row: %w", err)
	}
	if len(all) == 0 {
		return "", "", pgx.ErrNoRows
	}
	for _, c := range all {
		if c.Undone {
			return "", "", errUndone
		}
	}
	return all[0].Status, all[0].Columns, nil
}

// explainMiss tells a row that somebody else changed or holds (nil) from one that refuses to be changed.
func (w *Watchdog) explainMiss(ctx context.Context, tx pgx.Tx, r *compiled, row claimed) error {
	var still bool
	if err := tx.QueryRow(ctx, r.stillStuck, r.Stuck, r.changeLimit, row.Key, r.Name).Scan(&still); err != nil {
		return fmt.Errorf("look at the row again: %w", err)
	}
	if still {
		return errUndone
	}
	return nil
}

// event says what was done and why. Columns is the JSON object of the rule's own payload.
func (r *compiled) event(row claimed, status, columns string) (message.Message, error) {
	payload := map[string]any{}
	if err := addFields(payload, columns); err != nil {
		return message.Message{}, err
	}
	payload["key"] = row.Key
	payload["rule"] = r.Name
	payload["reason"] = r.Reason
	payload["status"] = status
	payload["previousStatus"] = row.Status
	payload["overdueSince"] = message.Stamp{Time: row.Since.Add(r.Limit)}
	body, err := json.Marshal(payload)
	if err != nil {
		return message.Message{}, fmt.Errorf("encode event: %w", err)
	}
	return message.Message{
		ID: eventID(r.Name, row), Type: r.EventType, Key: row.Key, Exchange: r.Exchange, Source: r.source(), Payload: body,
	}, nil
}

// addFields keeps the values as the database wrote them: a number is never read as a float.
func addFields(payload map[string]any, object string) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(object), &fields); err != nil {
		return fmt.Errorf("read payload columns: %w", err)
	}
	for name, value := range fields {
		payload[name] = value
	}
	return nil
}
