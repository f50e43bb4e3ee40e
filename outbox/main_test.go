package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/outbox"
)

func TestMain(m *testing.M) { testkit.MainWithExamples(m) }

// patience bounds every wait of a test; none comes near it unless something is wrong.
const patience = 20 * time.Second

func newOutbox(t testing.TB, db testkit.DB, o outbox.Options) *outbox.Outbox {
	t.Helper()
	o.Schema = db.Schema
	box, err := outbox.New(o)
	require.NoError(t, err)
	return box
}

func begin(t testing.TB, db testkit.DB) pgx.Tx {
	t.Helper()
	tx, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	return tx
}

func commit(t testing.TB, tx pgx.Tx) {
	t.Helper()
	require.NoError(t, tx.Commit(t.Context()))
}

// row is a row of the outbox as the relay reads it.
type row struct {
	ID                                                           int64
	Shard                                                        int16
	Hash                                                         int64
	MessageID, Type, Key, Exchange, RoutingKey, ContentType      string
	OccurredAt                                                   time.Time
	Source, CorrelationID, CausationID, RequestID, Parent, State string
	Headers                                                      *string
	Payload                                                      []byte
}

// stored returns what the outbox holds, in the order of ids.
func stored(t testing.TB, db testkit.DB) []row {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), `SELECT id, shard, hash, message_id, type, key, exchange, routing_key, content_type, occurred_at,
		source, correlation_id, causation_id, request_id, traceparent, tracestate, headers::text, payload FROM `+db.Schema+`.outbox ORDER BY id`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	require.NoError(t, err)
	return all
}

func ids(rows []row) []string {
	all := []string{}
	for _, r := range rows {
		all = append(all, r.MessageID)
	}
	return all
}
