package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

// Actions on parked rows.
const (
	// ActionRetry tries a row again at once, with its attempts counted from 0.
	ActionRetry = "retry"
	// ActionDiscard deletes a row for good; later rows of its key follow. It may also be a pending one whose route is
	// stopped: [ListStoppedRows].
	ActionDiscard = "discard"
)

const (
	requestSQL pg.SQL = `
INSERT INTO @schema@.outbox_requests (operation, shard, row_id, message_id, action, who, reason)
SELECT $1, s, r, m, $5, $6, $7 FROM unnest($2::smallint[], $3::bigint[], $4::text[]) AS u(s, r, m)`

	outcomesSQL pg.SQL = `
SELECT message_id, shard, row_id, state, outcome FROM @schema@.outbox_requests WHERE operation = $1 ORDER BY id`

	outcomeEvery = 200 * time.Millisecond
)

// Request asks the owners of the rows' shards to do something with parked rows: only they may, because they hold
// them in memory.
type Request struct {
	// Action is [ActionRetry] or [ActionDiscard].
	Action string
	// Who asks, for the audit. Required.
	Who string
	// Reason is required to discard.
	Reason string
}

// Outcome is what became of a request for one row.
type Outcome struct {
	ID    string `json:"id"`
	Shard int16  `json:"shard"`
	Row   int64  `json:"row"`
	// State is "pending", "done" or "refused".
	State string `json:"state"`
	// Outcome says what was done, or why nothing was.
	Outcome string `json:"outcome"`
}

// Ask writes a request for each row and returns the operation they belong to, which is also the audit's. The
// relay carries them out, about a second later, or once one runs.
func Ask(ctx context.Context, db Querier, schema string, r Request, rows []Parked) (uuid.UUID, error) {
	if r.Action == ActionDiscard && r.Reason == "" {
		return uuid.Nil, errors.New("a reason is needed to discard")
	}
	operation := uuid.Must(uuid.NewV7())
	shards, ids, messages := make([]int16, len(rows)), make([]int64, len(rows)), make([]string, len(rows))
	for i, row := range rows {
		shards[i], ids[i], messages[i] = row.Shard, row.Row, row.ID
	}
	_, err := db.Exec(ctx, requestSQL.In(schema), operation, shards, ids, messages, r.Action, r.Who, r.Reason)
	if err != nil {
		return uuid.Nil, fmt.Errorf("request to %s: %w", r.Action, explain(err, schema))
	}
	return operation, nil
}

// Await waits until no request of an operation is pending, or for the time given, and returns the outcomes.
func Await(ctx context.Context, db Querier, schema string, operation uuid.UUID, patience time.Duration) ([]Outcome, error) {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	ticker := time.NewTicker(outcomeEvery)
	defer ticker.Stop()
	for {
		outcomes, err := readOutcomes(ctx, db, schema, operation)
		if err != nil || !anyPending(outcomes) {
			return outcomes, err
		}
		select {
		case <-ctx.Done():
			return outcomes, ctx.Err()
		case <-deadline.C:
			return outcomes, nil
		case <-ticker.C:
		}
	}
}

func readOutcomes(ctx context.Context, db Querier, schema string, operation uuid.UUID) ([]Outcome, error) {
	return collect(ctx, db, "read outcomes", schema, outcomesSQL, pgx.RowToStructByPos[Outcome], operation)
}

func anyPending(outcomes []Outcome) bool {
	for _, o := range outcomes {
		if o.State == "pending" {
			return true
		}
	}
	return false
}
