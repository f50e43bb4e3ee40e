package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

var columns = []string{
	"occurred_at", "hash", "shard", "message_id", "type", "key", "exchange", "routing_key", "content_type", "source",
	"correlation_id", "causation_id", "request_id", "traceparent", "tracestate", "payload",
}

func benchMessage(i int) message.Message {
	return message.Message{
		ID: message.NewID(), Type: "order.created", Key: fmt.Sprint("order ", i), Source: "shop",
		CorrelationID: message.NewID(), Payload: make([]byte, 256), OccurredAt: time.Now(), ContentType: "application/json",
	}
}

// values are the row that Enqueue writes, with hash and shard as if they cost nothing.
func values(m message.Message, i int) []any {
	return []any{
		m.OccurredAt, int64(i), int16(i % 8), m.ID, m.Type, m.Key, "", "", m.ContentType, m.Source, m.CorrelationID, "", "", "", "", m.Payload,
	}
}

type arm struct {
	name string
	run  func(ctx context.Context, tx pgx.Tx, i int) error
}

// BenchmarkEnqueue compares with what PostgreSQL can do at best: one row with a bare prepared INSERT of the same
// row (goal: at most 1.3 times as long, on a machine that does nothing else), a hundred with COPY (goal: at most twice). The arms take turns within
// one run, each call in a transaction of its own, whose COMMIT is not timed; reported is the ratio of medians.
func BenchmarkEnqueue(b *testing.B) {
	db := testkit.Database(b)
	box := newOutbox(b, db, outbox.Options{})
	table := pgx.Identifier{db.Schema, "outbox"}
	insert := `INSERT INTO ` + db.Schema + `.outbox (occurred_at, hash, shard, message_id, type, key, exchange, routing_key, content_type,
		source, correlation_id, causation_id, request_id, traceparent, tracestate, payload)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`
	enqueue := func(n int) func(context.Context, pgx.Tx, int) error {
		return func(ctx context.Context, tx pgx.Tx, i int) error {
			msgs := make([]message.Message, n)
			for j := range msgs {
				msgs[j] = benchMessage(i*n + j)
			}
			_, err := box.Enqueue(ctx, tx, msgs...)
			return err
		}
	}
	b.Run("1-row", func(b *testing.B) {
		compare(b, db, arm{"insert", func(ctx context.Context, tx pgx.Tx, i int) error {
			_, err := tx.Exec(ctx, insert, values(benchMessage(i), i)...)
			return err
		}}, arm{"enqueue", enqueue(1)})
	})
	b.Run("100-rows", func(b *testing.B) {
		compare(b, db, arm{"copy", func(ctx context.Context, tx pgx.Tx, i int) error {
			_, err := tx.CopyFrom(ctx, table, columns, pgx.CopyFromSlice(100, func(j int) ([]any, error) {
				return values(benchMessage(i*100+j), i*100+j), nil
			}))
			return err
		}}, arm{"enqueue", enqueue(100)})
	})
}

func compare(b *testing.B, db testkit.DB, arms ...arm) {
	b.Helper()
	conn, err := db.Pool.Acquire(b.Context())
	require.NoError(b, err)
	defer conn.Release()
	took := map[string][]time.Duration{}
	for i := 0; b.Loop(); i++ {
		for _, a := range arms {
			tx, err := conn.Begin(b.Context())
			require.NoError(b, err)
			start := time.Now()
			err = a.run(b.Context(), tx, i)
			took[a.name] = append(took[a.name], time.Since(start))
			require.NoError(b, err)
			require.NoError(b, tx.Commit(b.Context()))
		}
	}
	base := median(took[arms[0].name])
	for _, a := range arms {
		b.ReportMetric(float64(median(took[a.name]).Microseconds()), "µs/"+a.name)
	}
	b.ReportMetric(float64(median(took[arms[1].name]))/float64(base), "ratio")
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
