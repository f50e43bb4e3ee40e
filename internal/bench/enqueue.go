package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

const insertSQL pg.SQL = `INSERT INTO @schema@.outbox (occurred_at, hash, shard, message_id, type, key, exchange, routing_key, content_type,
    source, correlation_id, causation_id, request_id, traceparent, tracestate, payload)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`

func outboxColumns() []string {
	return []string{
		"occurred_at", "hash", "shard", "message_id", "type", "key", "exchange", "routing_key", "content_type", "source",
		"correlation_id", "causation_id", "request_id", "traceparent", "tracestate", "payload",
	}
}

const (
	copied     = 100 // rows of a batch
	warmCalls  = 20  // of each arm, which are not timed
	cleanEvery = 200 // calls, after which the table is emptied: none pays for what the others left
)

// writer is one way to write rows: call i, in a transaction whose commit is not timed.
type writer struct {
	name  string
	write func(ctx context.Context, tx pgx.Tx, i int) error
}

// enqueue lets writers take turns call by call, on one connection; they are this process, for a round trip has two ends anyway.
func (b *Bench) enqueue(ctx context.Context, s *stage, r *Report) error {
	r.Load = Load{Rows: b.o.Rows, Bytes: b.o.Bytes, Keys: b.o.Keys, Rounds: b.o.Rounds}
	schema, err := s.freshSchema(ctx, "enqueue")
	if err != nil {
		return err
	}
	box, err := outbox.New(outbox.Options{Schema: schema})
	if err != nil {
		return err
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	writers := s.writers(schema, box)
	for _, w := range writers {
		r.Arms = append(r.Arms, Arm{Name: w.name})
	}
	for round := 1; round <= b.o.Rounds; round++ {
		samples, err := s.writeRound(ctx, conn, schema, writers, round)
		if err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		for i, sample := range samples {
			r.Arms[i].Samples = append(r.Arms[i].Samples, sample)
			s.say("round %d of %d  %-16s %s", round, b.o.Rounds, writers[i].name, sample)
		}
	}
	r.figure("Enqueue of 1 row / INSERT", "", r.ratios(P50, "Enqueue of 1", "INSERT of 1"), atMost(1.3))
	r.figure("Enqueue of 100 rows / COPY", "", r.ratios(P50, "Enqueue of 100", "COPY of 100"), atMost(2))
	return nil
}

// writers come in pairs that are compared.
func (s *stage) writers(schema string, box *outbox.Outbox) []writer {
	insert, table, columns := insertSQL.In(schema), pgx.Identifier{schema, "outbox"}, outboxColumns()
	batch := func(i, n int) []message.Message {
		msgs := make([]message.Message, n)
		for j := range msgs {
			msgs[j] = s.order(i*n + j)
		}
		return msgs
	}
	enqueue := func(n int) func(context.Context, pgx.Tx, int) error {
		return func(ctx context.Context, tx pgx.Tx, i int) error {
			_, err := box.Enqueue(ctx, tx, batch(i, n)...)
			return err
		}
	}
	return []writer{
		{"INSERT of 1", func(ctx context.Context, tx pgx.Tx, i int) error {
			_, err := tx.Exec(ctx, insert, rowOf(s.order(i), i)...)
			return err
		}},
		{"Enqueue of 1", enqueue(1)},
		{"COPY of 100", func(ctx context.Context, tx pgx.Tx, i int) error {
			msgs := batch(i, copied)
			_, err := tx.CopyFrom(ctx, table, columns, pgx.CopyFromSlice(copied, func(j int) ([]any, error) { return rowOf(msgs[j], i*copied+j), nil }))
			return err
		}},
		{"Enqueue of 100", enqueue(copied)},
	}
}

func (s *stage) order(n int) message.Message {
	return message.Message{
		ID: message.NewID(), Type: routingKey, Key: fmt.Sprint("k", n%s.o.Keys), Source: "shop", CorrelationID: message.NewID(),
		Payload: s.body, OccurredAt: time.Now(), ContentType: message.DefaultContentType,
	}
}

// rowOf is the row that Enqueue writes, with hash and shard as if they cost nothing.
func rowOf(m message.Message, i int) []any {
	return []any{
		m.OccurredAt, int64(i), int16(i % 8), m.ID, m.Type, m.Key, "", "", m.ContentType, m.Source, m.CorrelationID, "", "", "", "", m.Payload,
	}
}

// writeRound returns one sample per writer: percentiles of a call's time.
func (s *stage) writeRound(ctx context.Context, conn *pgxpool.Conn, schema string, writers []writer, round int) ([]Sample, error) {
	took := make([][]float64, len(writers))
	for i := range warmCalls + s.o.Rows {
		if i%cleanEvery == 0 {
			if _, err := conn.Exec(ctx, "TRUNCATE "+schema+".outbox"); err != nil {
				return nil, err
			}
		}
		for j := range writers {
			at := (i + j) % len(writers)
			ms, err := timeWrite(ctx, conn, writers[at], i)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", writers[at].name, err)
			}
			if i >= warmCalls {
				took[at] = append(took[at], ms)
			}
		}
	}
	samples := make([]Sample, len(writers))
	for i := range writers {
		p50, p99 := percentile(took[i], 0.5), percentile(took[i], 0.99)
		samples[i] = Sample{Round: round, Rows: s.o.Rows, P50: &p50, P99: &p99}
	}
	return samples, nil
}

// timeWrite returns the milliseconds of one call.
func timeWrite(ctx context.Context, conn *pgxpool.Conn, w writer, i int) (ms float64, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		began := time.Now()
		err := w.write(ctx, tx, i)
		ms = milliseconds(time.Since(began))
		return err
	})
	return ms, err
}
