package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

const listSQL pg.SQL = `
SELECT id, operation, at, who, origin, action, target, reason, message_id, outcome, detail FROM @schema@.audit
WHERE ($1::uuid IS NULL OR operation = $1) AND ($2 = '' OR message_id = $2) AND ($3 = '' OR who = $3)
  AND ($4 = '' OR action = $4 OR starts_with(action, $4 || ' ')) AND ($5 = '' OR target = $5)
  AND ($6::timestamptz IS NULL OR at >= $6) AND (NOT $7 OR message_id = '')
ORDER BY id DESC LIMIT $8`

// Filter chooses entries; one must meet every part that is set.
type Filter struct {
	Operation uuid.NullUUID
	MessageID string
	Who       string
	// Action is a command, such as "dlq redrive", or its noun.
	Action string
	Target string
	Since  time.Time
	// Operations leaves out the entries of single messages.
	Operations bool
	// Limit is the most entries, the newest. Required.
	Limit int
}

// Item is an entry as it was written. Its texts are plain, see [IsPlain], but for those in Detail.
type Item struct {
	ID        int64     `json:"id"`
	Operation uuid.UUID `json:"operation"`
	At        time.Time `json:"at"`
	Who       string    `json:"who"`
	// Origin is from where; empty when that was not said.
	Origin string `json:"origin"`
	Action string `json:"action"`
	Target string `json:"target"`
	Reason string `json:"reason"`
	// MessageID is empty in the entries of the whole operation.
	MessageID string          `json:"message_id"`
	Outcome   string          `json:"outcome"`
	Detail    json.RawMessage `json:"detail,omitempty"`
}

// Querier reads rows: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// List returns entries, the newest first.
func List(ctx context.Context, db Querier, schema string, f Filter) ([]Item, error) {
	var since *time.Time
	if !f.Since.IsZero() {
		since = &f.Since
	}
	rows, _ := db.Query(ctx, listSQL.In(schema), f.Operation, clean(f.MessageID, maxName), f.Who, f.Action, f.Target, since, f.Operations, f.Limit)
	items, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Item])
	if err != nil {
		return nil, fmt.Errorf("read audit: %w", err)
	}
	return items, nil
}
