package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
)

// States of a row.
const (
	// StatePending is a row that waits to be published.
	StatePending = "pending"
	// StateRetry is a row that failed and is tried again.
	StateRetry = "retry"
	// StateDead is a row that used up its attempts and stays until somebody retries or discards it.
	StateDead = "dead"
)

const (
	// summarySQL is cheap whatever the backlog: it counts to a bound, and looks at the first row of each shard.
	summarySQL pg.SQL = `
SELECT (SELECT count(*) FROM (SELECT FROM @schema@.outbox LIMIT 100001) c),
       (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = '@schema@.outbox'::regclass),
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(f.created_at)), 0)::float8
        FROM @schema@.outbox_leases l CROSS JOIN LATERAL (
            SELECT x.created_at FROM @schema@.outbox x WHERE (x.shard, x.id) > (l.shard, 0) AND x.shard <= l.shard
            ORDER BY x.shard, x.id LIMIT 1) f),
       count(*) FILTER (WHERE state = 'retry'), count(*) FILTER (WHERE state = 'dead'),
       (SELECT count(*) FROM @schema@.outbox_members WHERE expires_at > clock_timestamp())
FROM @schema@.outbox_parked`

	parkedColumns = `shard, id, message_id, type, key, exchange, routing_key, state, attempts, reason, error, created_at, parked_at,
last_failed_at, next_at, octet_length(payload)`

	listParkedSQL pg.SQL = `SELECT ` + parkedColumns + ` FROM @schema@.outbox_parked
WHERE ($1 = '' OR state = $1) AND ($2 = '' OR key = $2) AND ($3 = '' OR type = $3) AND ($4::text[] IS NULL OR message_id = ANY ($4))
ORDER BY shard, id LIMIT $5`

	rowColumns = `message_id, type, key, exchange, routing_key, occurred_at, source, correlation_id, causation_id, request_id,
content_type, payload, headers::text, traceparent, tracestate`

	// findSQL reads the whole outbox: it has no index by message id, which every Enqueue would have to pay for.
	findSQL pg.SQL = `
(SELECT shard, id, 'pending', created_at, ` + rowColumns + ` FROM @schema@.outbox WHERE message_id = $1 LIMIT 10)
UNION ALL
(SELECT shard, id, state, created_at, ` + rowColumns + ` FROM @schema@.outbox_parked WHERE message_id = $1 LIMIT 10)`

	enqueuedSQL pg.SQL = `SELECT shard, id, 'pending', created_at, ` + rowColumns + ` FROM @schema@.outbox
WHERE xid = pg_current_xact_id_if_assigned() ORDER BY id`

	countBound = 100_000
)

// Querier runs statements: a pool, a connection or a transaction.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Summary is the state of the outbox at a glance.
type Summary struct {
	// Pending rows wait to be published. Exact up to 100,000; beyond, the server's estimate.
	Pending   int64 `json:"pending"`
	Estimated bool  `json:"estimated"`
	// Oldest is the age of the oldest pending row in seconds.
	Oldest float64 `json:"oldest_seconds"`
	// Retry and Dead count parked rows by state.
	Retry int64 `json:"parked_retry"`
	Dead  int64 `json:"parked_dead"`
	// Relays that are alive.
	Relays int64 `json:"relays"`
}

// Summarize reads the summary.
func Summarize(ctx context.Context, db Querier, schema string) (Summary, error) {
	var s Summary
	var counted, estimate int64
	err := db.QueryRow(ctx, summarySQL.In(schema)).Scan(&counted, &estimate, &s.Oldest, &s.Retry, &s.Dead, &s.Relays)
	if err != nil {
		return Summary{}, fmt.Errorf("summarize outbox: %w", explain(err, schema))
	}
	s.Pending, s.Oldest = counted, max(s.Oldest, 0)
	if counted > countBound {
		s.Pending, s.Estimated = max(counted, estimate), true
	}
	return s, nil
}

// collect runs a query on the schema, which op names in its error.
func collect[T any](ctx context.Context, db Querier, op, schema string, sql pg.SQL, to pgx.RowToFunc[T], args ...any) ([]T, error) {
	rows, err := db.Query(ctx, sql.In(schema), args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, explain(err, schema))
	}
	all, err := pgx.CollectRows(rows, to)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, explain(err, schema))
	}
	return all, nil
}

// Parked is a row that could not be published, without its payload: parked, or ([ListStoppedRows]) pending.
type Parked struct {
	Shard        int16      `json:"shard"`
	Row          int64      `json:"row"`
	ID           string     `json:"id"`
	Type         string     `json:"type"`
	Key          string     `json:"key"`
	Exchange     string     `json:"exchange"`
	RoutingKey   string     `json:"routing_key"`
	State        string     `json:"state"`
	Attempts     int        `json:"attempts"`
	Reason       string     `json:"reason"`
	Error        string     `json:"error"`
	CreatedAt    time.Time  `json:"created_at"`
	ParkedAt     time.Time  `json:"parked_at"`
	LastFailedAt *time.Time `json:"last_failed_at"`
	// NextAt is when it is tried again; nil unless its state is retry.
	NextAt *time.Time `json:"next_at"`
	// PayloadBytes is the payload's size.
	PayloadBytes int `json:"payload_bytes"`
}

// Filter chooses parked rows; empty fields choose all.
type Filter struct {
	State, Key, Type string
	// IDs of messages. One id may have several rows.
	IDs []string
	// Limit bounds the rows. Required.
	Limit int
}

// ListParked returns parked rows in the order of their shard and row.
func ListParked(ctx context.Context, db Querier, schema string, f Filter) ([]Parked, error) {
	return collect(ctx, db, "list parked rows", schema, listParkedSQL, pgx.RowToStructByPos[Parked], f.State, f.Key, f.Type, f.IDs, f.Limit)
}

// Stored is a row of the outbox, pending or parked, with its message.
type Stored struct {
	Shard     int16
	Row       int64
	State     string // StatePending, or the state of a parked row
	CreatedAt time.Time
	Message   message.Message
	// HeadersFault says why the headers cannot be read; then Message.Headers is nil.
	HeadersFault string
}

// Find returns the rows of a message id, pending first, at most ten of each. It reads the whole outbox.
func Find(ctx context.Context, db Querier, schema, id string) ([]Stored, error) {
	return collect(ctx, db, "find message", schema, findSQL, scanStored, id)
}

// Enqueued returns what the transaction has enqueued so far, in order, in the schema of ctx: see [WithSchema]. It is for
// tests: see package surefoottest.
func Enqueued(ctx context.Context, tx pgx.Tx) ([]message.Message, error) {
	schema, err := new(Outbox).schema(ctx)
	if err != nil {
		return nil, err
	}
	return collect(ctx, tx, "read what was enqueued", schema, enqueuedSQL, func(row pgx.CollectableRow) (message.Message, error) {
		stored, err := scanStored(row)
		return stored.Message, err
	})
}

func scanStored(row pgx.CollectableRow) (Stored, error) {
	var s Stored
	var headers *string
	m := &s.Message
	err := row.Scan(&s.Shard, &s.Row, &s.State, &s.CreatedAt, &m.ID, &m.Type, &m.Key, &m.Exchange, &m.RoutingKey, &m.OccurredAt, &m.Source,
		&m.CorrelationID, &m.CausationID, &m.RequestID, &m.ContentType, &m.Payload, &headers, &m.TraceParent, &m.TraceState)
	if err == nil && headers != nil {
		var fault error
		if m.Headers, fault = message.ParseHeadersJSON([]byte(*headers)); fault != nil {
			s.HeadersFault = fault.Error()
		}
	}
	return s, err
}
