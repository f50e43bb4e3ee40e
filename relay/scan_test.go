package relay

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	writer "github.com/surefoot-mq/surefoot/outbox"
)

// Rows are the same however the database sends them, whatever is in them.
func TestRowsAreReadAlikeFromTextAndFromBytes(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	tx, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	box, err := writer.New(writer.Options{Schema: db.Schema})
	require.NoError(t, err)
	want := []message.Message{
		{
			ID: "all", Type: "a", Key: "k", Exchange: "e", RoutingKey: "r", ContentType: "text/plain", Source: "s", CorrelationID: "c", CausationID: "ca",
			RequestID: "q", TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", TraceState: "x=y", Headers: message.Headers{"n": 1.5},
			OccurredAt: time.UnixMicro(1_700_000_000_123_456), Payload: []byte("\x00\xff"),
		},
		{ID: "least", Type: "é", OccurredAt: time.Unix(0, 0)},
		{ID: "late", Type: "b", OccurredAt: time.Date(9999, 12, 30, 0, 0, 0, 999_999_000, time.UTC), Payload: []byte{}},
	}
	_, err = box.Enqueue(t.Context(), tx, want...)
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))

	cfg := db.Pool.Config()
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	simple, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(simple.Close)
	var all [2][]*row
	for i, pool := range []*pgxpool.Pool{db.Pool, simple} {
		rows, err := pool.Query(t.Context(), `SELECT `+rowColumns+` FROM (SELECT *, ctid AS at FROM `+db.Schema+`.outbox) x ORDER BY id`)
		require.NoError(t, err)
		all[i], err = collectRows(rows, time.Time{})
		require.NoError(t, err)
	}
	require.Equal(t, all[0], all[1])
	require.Len(t, all[0], len(want))
	for i, r := range all[0] {
		require.Equal(t, want[i].ID, r.msg.text(textID))
		got := r.msg.message()
		require.True(t, want[i].OccurredAt.Equal(got.OccurredAt), r.msg.text(textID))
		got.OccurredAt, got.Headers = want[i].OccurredAt, want[i].Headers
		got.Payload = append(want[i].Payload[:0:0], got.Payload...)
		require.Equal(t, want[i].WithDefaults(time.Time{}), got)
	}
	require.Nil(t, all[0][1].headers)
	require.NotNil(t, all[0][1].msg.payload)
}
