package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"
)

// textbook is the relay that most teams write: SELECT ... FOR UPDATE SKIP LOCKED, publish, wait for the confirms, DELETE. Each connection to the
// broker has a worker with one batch in one transaction, so that claims and deletes of some overlap the confirms of others. Order per key is not
// kept, as in all of its kind.
type textbook struct{ *environment }

// textbookBatch is the rows of one claim and so the window of one connection. 1000 and 5000 cost the same; two half batches per connection cost
// PostgreSQL half as much again, since every claim walks over what the others have locked; DELETE ... RETURNING as the claim gains nothing.
const textbookBatch = 2000

// Autovacuum is tuned as Surefoot's own outbox table is.
const textbookTable = `
DROP TABLE IF EXISTS %[1]s;
CREATE TABLE %[1]s (
    id         bigserial PRIMARY KEY,
    message_id text NOT NULL,
    key        text NOT NULL,
    payload    bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0)`

const textbookFill = `
INSERT INTO %s (message_id, key, payload)
SELECT 'm' || i, 'k' || (i %% $2), convert_to($3, 'UTF8') FROM generate_series(1, $1::bigint) i`

const textbookClaim = `SELECT id, message_id, key, payload FROM %s ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED`

const textbookSettle = `DELETE FROM %s WHERE id = ANY($1)`

func (t *textbook) name() string { return t.table("textbook_outbox") }

func (t *textbook) prepare(ctx context.Context, _ options) error {
	return t.exec(ctx, fmt.Sprintf(textbookTable, t.name()))
}

func (t *textbook) fill(ctx context.Context, o options) error {
	if _, err := t.db.Exec(ctx, fmt.Sprintf(textbookFill, t.name()), o.rows, o.keys, payload(o.bytes)); err != nil {
		return err
	}
	return t.vacuum(ctx, t.name())
}

func (t *textbook) drain(ctx context.Context, o options) (result, error) {
	if o.batch == 0 {
		o.batch = textbookBatch
	}
	conns, closeAll, err := t.dial(o.connections)
	if err != nil {
		return result{}, err
	}
	defer closeAll()
	workers, release, err := t.workers(ctx, conns, o.batch)
	if err != nil {
		return result{}, err
	}
	defer release()

	settled := newTally(o.window)
	group, ctx := errgroup.WithContext(ctx)
	for _, w := range workers {
		group.Go(func() error { return w.run(ctx, settled) })
	}
	err = group.Wait()
	return settled.result(), err
}

// textbookWorker has one batch at a time, with a connection to the database and a channel of its own.
type textbookWorker struct {
	db            *pgxpool.Conn
	out           *publisher
	batch         int
	claim, settle string
}

func (t *textbook) workers(ctx context.Context, conns []*amqp.Connection, batch int) (workers []*textbookWorker, release func(), err error) {
	release = func() {
		for _, w := range workers {
			w.db.Release()
		}
	}
	claim, settle := fmt.Sprintf(textbookClaim, t.name()), fmt.Sprintf(textbookSettle, t.name())
	for _, conn := range conns {
		out, err := t.newPublisher(conn, batch)
		if err != nil {
			release()
			return nil, nil, err
		}
		db, err := t.db.Acquire(ctx)
		if err != nil {
			release()
			return nil, nil, err
		}
		workers = append(workers, &textbookWorker{db: db, out: out, batch: batch, claim: claim, settle: settle})
	}
	return workers, release, nil
}

// run ends when nothing is left that no other worker holds.
func (w *textbookWorker) run(ctx context.Context, settled *tally) error {
	for !settled.over() {
		n, err := w.once(ctx)
		if err != nil || n == 0 {
			return err
		}
		settled.add(n)
	}
	return nil
}

func (w *textbookWorker) once(ctx context.Context) (n int, err error) {
	err = pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) error {
		ids, err := w.forward(ctx, tx)
		if n = len(ids); err != nil || n == 0 {
			return err
		}
		_, err = tx.Exec(ctx, w.settle, ids)
		return err
	})
	return n, err
}

// forward publishes rows as they arrive and returns their ids when all are confirmed and none was returned.
func (w *textbookWorker) forward(ctx context.Context, tx pgx.Tx) (ids []int64, err error) {
	type flight struct {
		id      string
		confirm *amqp.DeferredConfirmation
	}
	flights := make([]flight, 0, w.batch)
	rows, err := tx.Query(ctx, w.claim, w.batch)
	if err != nil {
		return nil, err
	}
	var (
		id             int64
		messageID, key string
		body           []byte
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &messageID, &key, &body}, func() error {
		confirm, err := w.out.publish(messageID, key, body)
		ids, flights = append(ids, id), append(flights, flight{messageID, confirm})
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, f := range flights {
		if err := w.out.landed(ctx, f.confirm, f.id); err != nil {
			return nil, err
		}
	}
	return ids, nil
}
