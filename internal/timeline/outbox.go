package timeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

const (
	onceSQL pg.SQL = `SELECT enqueued_at FROM @schema@.outbox_once WHERE message_id = $1`

	// Those that were carried out are in the audit.
	requestsSQL pg.SQL = `
SELECT operation, action, who, reason, requested_at, state, outcome FROM @schema@.outbox_requests
WHERE state <> 'done' AND message_id = $1 ORDER BY id LIMIT 100`
)

// outbox reads rows of the message and of those it caused, and why the pending ones wait.
func (r *reader) outbox(ctx context.Context) error {
	var rows []outbox.Traced
	why := map[int64]string{}
	done, err := r.search(ctx, func(tx pgx.Tx) (err error) {
		if rows, err = outbox.Trace(ctx, tx, r.schema, r.t.ID, maxTraced+1); err != nil {
			return err
		}
		for _, row := range rows[:min(len(rows), 10)] {
			if row.ID == r.t.ID && row.State == outbox.StatePending {
				if why[row.Row], err = outbox.WhyPending(ctx, tx, r.schema, row.Shard, row.Row); err != nil {
					return err
				}
			}
		}
		return nil
	})
	r.t.searched = done
	if err != nil || !done {
		return err
	}
	if len(rows) > maxTraced {
		r.t.unknown("More than %d rows of the outbox belong to it; the others are left out.", maxTraced)
		rows = rows[:maxTraced]
	}
	for _, row := range rows {
		if row.ID == r.t.ID {
			r.t.ownRow(row, why[row.Row])
		} else {
			r.t.Links = append(r.t.Links, Link{Relation: "caused", ID: row.ID, Type: row.Type, Place: "outbox, " + row.State})
		}
	}
	return nil
}

// ownRow adds a row that is still in the outbox.
func (t *Timeline) ownRow(row outbox.Traced, why string) {
	t.own = true
	t.Type, t.Key, t.Source, t.CorrelationID = row.Type, row.Key, row.Source, row.CorrelationID
	t.TraceID = telemetry.TraceID(row.TraceParent)
	t.causedBy(row.CausationID)
	t.add(Step{At: message.Stamp{Time: row.CreatedAt}, Store: StoreOutbox, What: "enqueued", Detail: fmt.Sprintf("row %d/%d", row.Shard, row.Row)})
	if row.State == outbox.StatePending {
		text := "in the outbox, pending"
		if why != "" {
			text += ": " + message.Clip(why, maxDetail)
		}
		t.place("%s", text)
		return
	}
	if row.ParkedAt != nil {
		t.add(Step{At: message.Stamp{Time: *row.ParkedAt}, Store: StoreOutbox, What: "parked", Detail: row.Reason, Failed: true})
	}
	if row.LastFailedAt != nil {
		t.add(Step{
			At: message.Stamp{Time: *row.LastFailedAt}, Store: StoreOutbox, What: "publish failed", Failed: true,
			Detail: fmt.Sprintf("try %d: %s: %s", row.Attempts, row.Reason, row.Error),
		})
	}
	next := "until somebody retries or discards it"
	if row.NextAt != nil {
		next = "tried again at " + row.NextAt.UTC().Format(time.RFC3339)
	}
	t.place("in the outbox, parked (%s): %s", row.State, next)
}

func (r *reader) once(ctx context.Context) error {
	var at time.Time
	err := r.tx.QueryRow(ctx, onceSQL.In(r.schema), r.t.ID).Scan(&at)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read ids enqueued once: %w", err)
	}
	r.t.once = true
	kept := fmt.Sprintf("its id is remembered for %d days", outbox.DuplicateRetention/(24*time.Hour))
	r.t.add(Step{At: message.Stamp{Time: at}, Store: StoreOutbox, What: "enqueued once", Detail: kept})
	return nil
}

func (r *reader) requests(ctx context.Context) error {
	rows, _ := r.tx.Query(ctx, requestsSQL.In(r.schema), r.t.ID)
	var operation uuid.UUID
	var action, who, reason, state, outcome string
	var at time.Time
	_, err := pgx.ForEachRow(rows, []any{&operation, &action, &who, &reason, &at, &state, &outcome}, func() error {
		detail := "not carried out yet"
		if state != "pending" {
			detail = state + ": " + outcome
		}
		if reason != "" {
			detail += " (" + reason + ")"
		}
		r.t.add(Step{
			At: message.Stamp{Time: at}, Store: StoreOutbox, What: action + " asked for", Detail: detail, Who: who,
			Operation: uuid.NullUUID{UUID: operation, Valid: true}, Failed: state == "refused",
		})
		return nil
	})
	if err != nil {
		return fmt.Errorf("read requests to the outbox: %w", err)
	}
	return nil
}
