package consumer

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// BatchHandler handles several messages in one transaction, under the rules of a [Handler]: what it writes through tx
// is committed together with the inbox rows of all of them, or not at all. msgs are those that were not handled before,
// at least one, each id once, in the order of delivery.
//
// When it returns an error or panics, the transaction is rolled back, and each message is handled singly: by the same
// handler, with a slice of one, in a transaction of its own. Only that run counts as an attempt. So a handler must do
// for a message alone what it does for it among others.
//
// ctx carries no message, for there is no one cause of an event: call message.NewContext for each Enqueue, or use
// [Each]. [Middleware] wraps a Handler; to use it here, give the chain to Each.
type BatchHandler func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error

// Each makes a batch handler of h, which it calls for one message after the other, up to the first error. The messages
// then share the transaction, its commit and the statement for their inbox rows.
func Each(h Handler) BatchHandler {
	return func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
		for _, m := range msgs {
			if err := h(message.NewContext(ctx, m), tx, m); err != nil {
				return err
			}
		}
		return nil
	}
}

// single is the handler of one message in a transaction.
func (o Options) single() Handler {
	if o.Batch == nil {
		return Each(o.Handler).one
	}
	return o.Batch.one
}

func (h BatchHandler) one(ctx context.Context, tx pgx.Tx, m message.Message) error {
	return h(ctx, tx, []message.Message{m})
}

const (
	// insertAllSQL writes the rows in the order of their ids, so that two replicas with the same messages wait for each
	// other in one direction only. A row of another transaction that is still open is waited for.
	insertAllSQL pg.SQL = `
INSERT INTO @schema@.inbox (consumer, message) SELECT $1, m FROM unnest($2::uuid[]) AS m ORDER BY m RETURNING message`

	// insertFreshSQL leaves out what is there already, or comes twice. That makes every row dearer, so only a batch with
	// a duplicate in it pays for it.
	insertFreshSQL pg.SQL = `
INSERT INTO @schema@.inbox (consumer, message) SELECT $1, m FROM unnest($2::uuid[]) AS m ORDER BY m
ON CONFLICT DO NOTHING RETURNING message`
)

// insert writes the inbox rows of a batch and returns the keys that are new.
func (b *inbox) insert(ctx context.Context, tx pgx.Tx, sql pg.SQL, keys pgtype.FlatArray[pgtype.UUID]) (fresh map[uuid.UUID]bool, err error) {
	fresh = make(map[uuid.UUID]bool, len(keys))
	if len(keys) == 0 {
		return fresh, nil
	}
	var key pgtype.UUID
	rows, _ := tx.Query(ctx, sql.In(b.schema), b.id, keys) // its error is that of the rows
	if _, err := pgx.ForEachRow(rows, []any{&key}, func() error { fresh[key.Bytes] = true; return nil }); err != nil {
		return nil, &databaseError{"insert inbox rows", err, true}
	}
	return fresh, nil
}

// batch picks the innocent jobs that may run together now, in the order of delivery. Behind one that does not fit its
// lane waits.
func (q *queue) batch(limit int, fits func(*job) bool) []*job {
	picked := make([]*job, 0, min(limit, len(q.waiting)))
	var closed map[string]bool
	for _, j := range q.waiting {
		if len(picked) == limit {
			break
		}
		lane := q.lane(j)
		switch {
		case lane != "" && (q.busy[lane] || closed[lane]):
		case fits(j):
			picked = append(picked, j)
		case lane != "":
			if closed == nil {
				closed = map[string]bool{}
			}
			closed[lane] = true
		}
	}
	return picked
}

// gather picks the jobs that start together now: one, or a batch. Empty: all must wait, a batch that fills until
// l.filling.
func (l *loop) gather(now time.Time) []*job {
	o := &l.c.opts
	first := l.next(now)
	if first == nil {
		return nil
	}
	if o.Batch == nil || l.suspension.active || !l.c.batchable(first) {
		return []*job{first}
	}
	batch := l.queue.batch(o.BatchSize, l.c.batchable)
	if full := batch[0].received.Add(o.BatchWait); len(batch) < o.BatchSize && now.Before(full) && l.in.mayBring() {
		l.filling = full
		return nil
	}
	return batch
}

// mayBring says whether the broker can deliver more before something is settled.
func (in *intake) mayBring() bool { return in.acks.outstanding() < in.prefetch }

// batchable says whether a job may share a transaction: a suspect runs alone, and what was put off, expires, has no id or
// failed with its batch is handled singly.
func (c *Consumer) batchable(j *job) bool {
	return !j.suspect && !j.single && (j.msg.ID != "" || c.opts.AllowNoID) && j.early.IsZero() && j.expires.IsZero()
}

// workBatch is work for jobs that share a transaction. What ends the goroutine is some handler's doing: alone, the
// message of that one will do it again.
func (c *Consumer) workBatch(jobs []*job, outcomes chan<- []outcome, gone <-chan struct{}) {
	defer telemetry.FatalOnPanic(c.log)
	var outs []outcome
	defer func() {
		notByPanic(recover())
		if outs == nil {
			outs = c.failBatch(jobs, ClassPanic, errGoexit())
		}
		c.report(outs, outcomes, gone)
	}()
	outs = c.processBatch(jobs)
}

// all gives every job the same outcome.
func all(jobs []*job, out outcome) []outcome {
	outs := make([]outcome, len(jobs))
	for i, j := range jobs {
		outs[i], outs[i].job = out, j
	}
	return outs
}

// processBatch is process for jobs that share a transaction. Only its success is shared; no failure is counted.
func (c *Consumer) processBatch(jobs []*job) []outcome {
	if err := c.opts.step("after-deliver"); err != nil {
		return all(jobs, outcome{action: actDrop})
	}
	ctx, span := c.startBatchSpan(jobs)
	defer span.End()
	results, class, err := c.attemptBatch(ctx, jobs)
	if err == nil {
		outs := make([]outcome, len(jobs))
		for i, j := range jobs {
			outs[i] = c.done(j, results[i])
		}
		return outs
	}
	span.SetStatus(codes.Error, string(class))
	span.SetAttributes(attribute.String(telemetry.AttrErrorType, string(class)))
	return c.failBatch(jobs, class, err)
}

// failBatch decides what the failure of a batch means for each of its jobs.
func (c *Consumer) failBatch(jobs []*job, class resilience.Class, err error) []outcome {
	switch v := judge(class, err, 0, c.opts.MaxAttempts); v.action {
	case actReturn:
		for _, j := range jobs {
			c.metrics.settled(j.msg.Type, "returned")
		}
		return all(jobs, outcome{action: actReturn})
	case actHold:
		if !c.opts.evades(err) {
			return all(jobs, outcome{action: actHold, err: err, delay: v.delay})
		}
	case actDrop, actAck, actSingly, actRetry, actDead, actDiscarded: // a failure of one of them, or of them together
	}
	c.log.Warn().Int("messages", len(jobs)).Str(telemetry.FieldErrorClass, string(class)).
		Str("error", message.Clip(err.Error(), message.MaxErrorMessage)).Msg("batch failed, its messages are handled singly")
	return all(jobs, outcome{action: actSingly})
}

// attemptBatch runs the handler once, under one deadline, and returns the result of each job.
func (c *Consumer) attemptBatch(ctx context.Context, jobs []*job) ([]string, resilience.Class, error) {
	leave, err := c.opts.Solo.enter(ctx, false)
	if err != nil {
		return nil, resilience.ClassShutdown, err
	}
	defer leave()
	ctx, cancel := resilience.WithBudget(ctx, c.opts.Timeout)
	defer cancel()
	defer c.watchLate(jobs...)()
	defer c.measure(time.Now())
	results, err := c.onceBatch(ctx, jobs, insertAllSQL)
	if c.inbox.isDuplicate(err) { // before the handler
		results, err = c.onceBatch(ctx, jobs, insertFreshSQL)
	}
	return results, c.opts.classOf(ctx, err), err
}

// onceBatch runs one transaction.
func (c *Consumer) onceBatch(ctx context.Context, jobs []*job, insert pg.SQL) (results []string, err error) {
	err = c.inbox.inTx(ctx, nil, func(tx pgx.Tx) (err error) {
		results, err = c.inBatch(ctx, tx, jobs, insert)
		return err
	})
	return results, err
}

// inBatch writes the inbox rows and runs the handler for those messages that are new.
func (c *Consumer) inBatch(ctx context.Context, tx pgx.Tx, jobs []*job, insert pg.SQL) ([]string, error) {
	fresh, err := c.inbox.insert(ctx, tx, insert, keysOf(jobs))
	if err != nil {
		return nil, err
	}
	results, msgs := make([]string, len(jobs)), make([]message.Message, 0, len(jobs))
	for i, j := range jobs {
		if j.inboxKey() != nil && !fresh[j.key] {
			results[i] = "duplicate"
			continue
		}
		delete(fresh, j.key) // the same id once more in this batch is a duplicate
		results[i], msgs = "done", append(msgs, j.msg.Clone())
	}
	if len(msgs) > 0 {
		if err := c.call(ctx, tx, func() error { return c.opts.Batch(ctx, tx, msgs) }); err != nil {
			return nil, err
		}
	}
	return results, c.opts.step("before-commit")
}

// keysOf returns the keys in the types that pgx encodes without a detour through text.
func keysOf(jobs []*job) pgtype.FlatArray[pgtype.UUID] {
	keys := make(pgtype.FlatArray[pgtype.UUID], 0, len(jobs))
	for _, j := range jobs {
		if key := j.inboxKey(); key != nil {
			keys = append(keys, pgtype.UUID{Bytes: *key, Valid: true})
		}
	}
	return keys
}

// startBatchSpan begins one process span for all, linked to those that created the messages.
func (c *Consumer) startBatchSpan(jobs []*job) (context.Context, trace.Span) {
	var links []trace.Link
	for _, j := range jobs {
		links = append(links, telemetry.TraceLinks(j.msg.TraceParent, j.msg.TraceState)...)
	}
	return otel.Tracer(telemetry.TracerName).Start(c.handlers, c.spanName, append(slices.Clip(c.span),
		trace.WithLinks(links...), trace.WithAttributes(attribute.Int(telemetry.AttrBatchCount, len(jobs))))...)
}
