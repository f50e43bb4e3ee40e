package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

const (
	// parkSQL moves a row in one statement, so it is in exactly one of the two tables. No row: the lease is
	// gone, or the row is. All statements on the parked table lock the lease's row: a new owner must not load its
	// parked rows between their check of the epoch and their commit.
	parkSQL pg.SQL = `
WITH held AS MATERIALIZED (SELECT 1 FROM @schema@.outbox_leases WHERE shard = $1 AND epoch = $2 AND server = pg_postmaster_start_time() FOR SHARE),
moved AS (DELETE FROM @schema@.outbox x WHERE x.ctid = ANY (ARRAY(
    SELECT f.ctid FROM (SELECT o.ctid, o.shard, o.id FROM @schema@.outbox o
                        WHERE (o.shard, o.id) >= ($1, $3) ORDER BY o.shard, o.id LIMIT 1) f
    WHERE f.shard = $1 AND f.id = $3 AND EXISTS (SELECT FROM held))) RETURNING x.*)
INSERT INTO @schema@.outbox_parked
SELECT moved.*, $4, $5, $6, $7, clock_timestamp(), clock_timestamp(), CASE WHEN $4 = 'retry' THEN clock_timestamp() + $8::interval END
FROM moved`

	failAgainSQL pg.SQL = `
WITH held AS MATERIALIZED (SELECT 1 FROM @schema@.outbox_leases WHERE shard = $1 AND epoch = $2 AND server = pg_postmaster_start_time() FOR SHARE)
UPDATE @schema@.outbox_parked p
SET state = $4, attempts = $5, reason = $6, error = $7, last_failed_at = clock_timestamp(),
    next_at = CASE WHEN $4 = 'retry' THEN clock_timestamp() + $8::interval END
FROM held WHERE p.shard = $1 AND p.id = $3`

	// parkedSQL finds what an earlier try has stored whose answer was lost.
	parkedSQL pg.SQL = `
SELECT state = 'dead', attempts, coalesce(extract(epoch FROM next_at - clock_timestamp()), 0)::float8
FROM @schema@.outbox_parked WHERE shard = $1 AND id = $2`

	heldSQL pg.SQL = `SELECT EXISTS (SELECT FROM @schema@.outbox_leases WHERE shard = $1 AND epoch = $2 AND server = pg_postmaster_start_time())`

	settleParkedSQL pg.SQL = `
WITH held AS MATERIALIZED (SELECT 1 FROM @schema@.outbox_leases WHERE shard = $1 AND epoch = $2 AND server = pg_postmaster_start_time() FOR SHARE)
DELETE FROM @schema@.outbox_parked p USING held WHERE p.shard = $1 AND p.id = ANY ($3)`

	// loadParkedSQL leaves out dead rows that hold back nobody.
	loadParkedSQL pg.SQL = `
SELECT id, hash, key <> '', state = 'dead', attempts, coalesce(extract(epoch FROM next_at - clock_timestamp()), 0)::float8
FROM @schema@.outbox_parked WHERE shard = $1 AND (state = 'retry' OR $2 AND key <> '') ORDER BY id LIMIT $3`

	parkedIDsSQL pg.SQL = `
SELECT id FROM @schema@.outbox_parked WHERE shard = $1 AND (state = 'retry' OR $2 AND key <> '') LIMIT $3`

	measureParkedSQL pg.SQL = `SELECT x.id, ` + rowSize + ` FROM @schema@.outbox_parked x WHERE x.shard = $1 AND x.id = ANY ($2) ORDER BY x.id`

	fetchParkedSQL pg.SQL = `SELECT ` + rowColumns + ` FROM (SELECT p.*, p.ctid AS at FROM @schema@.outbox_parked p WHERE p.shard = $1 AND p.id = ANY ($2)) x ORDER BY x.id`

	requestsSQL pg.SQL = `
SELECT id, operation::text, shard, row_id, message_id, action, who, reason FROM @schema@.outbox_requests
WHERE state = 'pending' AND shard = ANY ($1) ORDER BY id LIMIT 100`

	retryParkedSQL pg.SQL = `
UPDATE @schema@.outbox_parked SET state = 'retry', attempts = 0, next_at = clock_timestamp()
WHERE shard = $1 AND id = $2 RETURNING hash, key <> ''`

	discardParkedSQL pg.SQL = `DELETE FROM @schema@.outbox_parked WHERE shard = $1 AND id = $2 RETURNING hash, key <> ''`

	// pendingSQL looks a row up in the outbox.
	pendingSQL pg.SQL = `
SELECT exchange, CASE WHEN routing_key = '' THEN type ELSE routing_key END FROM @schema@.outbox WHERE shard = $1 AND id = $2`

	// discardPendingSQL finds the row as settling does.
	discardPendingSQL pg.SQL = `
DELETE FROM @schema@.outbox WHERE ctid = ANY (ARRAY(
    SELECT f.ctid FROM (SELECT o.ctid, o.shard, o.id FROM @schema@.outbox o
                        WHERE (o.shard, o.id) >= ($1, $2) ORDER BY o.shard, o.id LIMIT 1) f
    WHERE f.shard = $1 AND f.id = $2))`

	// lockRequestSQL also waits for an earlier try to carry the request out whose answer was lost: then the request may
	// be finished already.
	lockRequestSQL pg.SQL = `
SELECT q.state, coalesce(p.hash, 0), coalesce(p.key <> '', false) FROM @schema@.outbox_requests q
LEFT JOIN @schema@.outbox_parked p ON p.shard = q.shard AND p.id = q.row_id WHERE q.id = $1 FOR UPDATE OF q`

	// The lease's row is locked, so that a new owner cannot load its parked rows between this check and the commit.
	lockLeaseSQL pg.SQL = `SELECT 1 FROM @schema@.outbox_leases WHERE shard = $1 AND epoch = $2 AND server = pg_postmaster_start_time() FOR SHARE`

	finishRequestSQL pg.SQL = `
UPDATE @schema@.outbox_requests SET state = $2, outcome = $3, finished_at = clock_timestamp() WHERE id = $1 AND state = 'pending'`
)

const (
	// maxParked bounds the parked rows of a shard that are held in mind.
	maxParked = 100_000
	// maxErrorText bounds a stored error in bytes.
	maxErrorText = 1 << 10
	maxBackoff   = time.Hour
)

var errTooManyParked = fmt.Errorf("more than %d parked rows in one shard; retry or discard some (surefoot outbox ls)", maxParked)

// parkStore carries out what concerns the parked table, for one owned shard. It is stateless.
type parkStore struct {
	pool     *pgxpool.Pool
	schema   string
	attempts int
	backoff  time.Duration
	strict   bool
}

func newParkStore(o Options) *parkStore {
	return &parkStore{pool: o.Pool, schema: o.Schema, attempts: o.Attempts, backoff: o.Backoff, strict: o.OnPoison == Strict}
}

// failure is how a failed try is stored.
type failure struct {
	dead     bool
	attempts int
	wait     time.Duration
}

func (p *parkStore) judge(before int) failure {
	f := failure{attempts: before + 1, wait: maxBackoff}
	if before < 20 {
		f.wait = min(p.backoff<<before, maxBackoff)
	}
	f.dead = f.attempts >= p.attempts
	return f
}

// fail stores a failed try: it parks a row of the outbox, or notes another failure of a parked one. It reports
// whether the row was there. The error is errFenced when the shard has another owner.
func (p *parkStore) fail(ctx context.Context, epoch int64, v verdict) (failure, bool, error) {
	sql, before := parkSQL, 0
	if ref := v.row.parked; ref != nil {
		sql, before = failAgainSQL, ref.attempts
	}
	f := p.judge(before)
	state := outbox.StateRetry
	if f.dead {
		state = outbox.StateDead
	}
	if err := fault.Point("relay.before-park"); err != nil {
		return f, false, err
	}
	text := message.Storable(v.err.Error(), maxErrorText)
	tag, err := p.pool.Exec(ctx, sql.In(p.schema), v.row.shard, epoch, v.row.id, state, f.attempts, v.reason, text, f.wait)
	if err != nil {
		return f, false, fmt.Errorf("park row %d/%d: %w", v.row.shard, v.row.id, err)
	}
	if err := fault.Point("relay.after-park"); err != nil {
		return f, false, err
	}
	if tag.RowsAffected() > 0 {
		return f, true, nil
	}
	if err := p.held(ctx, v.row.shard, epoch); err != nil {
		return f, false, err
	}
	return p.parkedBefore(ctx, v)
}

// parkedBefore looks whether the row is parked already: an earlier try has done it, and its answer was lost.
func (p *parkStore) parkedBefore(ctx context.Context, v verdict) (f failure, there bool, err error) {
	var wait float64
	err = p.pool.QueryRow(ctx, parkedSQL.In(p.schema), v.row.shard, v.row.id).Scan(&f.dead, &f.attempts, &wait)
	if errors.Is(err, pgx.ErrNoRows) {
		return f, false, nil
	}
	f.wait = waitOf(wait)
	return f, err == nil, err
}

func (p *parkStore) held(ctx context.Context, shard int16, epoch int64) error {
	var held bool
	if err := p.pool.QueryRow(ctx, heldSQL.In(p.schema), shard, epoch).Scan(&held); err != nil {
		return fmt.Errorf("check lease of shard %d: %w", shard, err)
	}
	if !held {
		return errFenced
	}
	return nil
}

// settle removes published rows from the parked table.
func (p *parkStore) settle(ctx context.Context, shard int16, epoch int64, ids []int64) error {
	tag, err := p.pool.Exec(ctx, settleParkedSQL.In(p.schema), shard, epoch, ids)
	if err != nil {
		return fmt.Errorf("settle parked rows: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return p.held(ctx, shard, epoch)
	}
	return nil
}

// load returns the parked rows that matter to the shard's lanes.
func (p *parkStore) load(ctx context.Context, shard int16) ([]*parkedRef, error) {
	rows, _ := p.pool.Query(ctx, loadParkedSQL.In(p.schema), shard, p.strict, maxParked+1) // its error is that of the rows
	now := time.Now()
	refs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*parkedRef, error) {
		ref := &parkedRef{}
		var wait float64
		err := row.Scan(&ref.id, &ref.hash, &ref.keyed, &ref.dead, &ref.attempts, &wait)
		ref.due = now.Add(waitOf(wait))
		return ref, err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("load parked rows: %w", err)
	case len(refs) > maxParked:
		return nil, errTooManyParked
	}
	return refs, nil
}

// waitOf is a wait in seconds as the database computed it.
func waitOf(seconds float64) time.Duration {
	return time.Duration(min(seconds, maxBackoff.Seconds()) * float64(time.Second))
}

// ids returns those of the rows that load would return.
func (p *parkStore) ids(ctx context.Context, shard int16) ([]int64, error) {
	rows, _ := p.pool.Query(ctx, parkedIDsSQL.In(p.schema), shard, p.strict, maxParked+1) // its error is that of the rows
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	switch {
	case err != nil:
		return nil, fmt.Errorf("look up parked rows: %w", err)
	case len(ids) > maxParked:
		return nil, errTooManyParked
	}
	return ids, nil
}

// fetched are parked rows that were asked for.
type fetched struct {
	rows []*row
	left []int64 // there too, but beyond the limit
}

// fetch reads parked rows that are due, up to a number of bytes; one always passes.
func (p *parkStore) fetch(ctx context.Context, shard int16, ids []int64, bytes int) (fetched, error) {
	var f fetched
	sizes, err := p.pool.Query(ctx, measureParkedSQL.In(p.schema), shard, ids)
	if err != nil {
		return f, fmt.Errorf("measure parked rows: %w", err)
	}
	var fitting []int64
	var id int64
	var size int
	_, err = pgx.ForEachRow(sizes, []any{&id, &size}, func() error {
		if len(fitting) > 0 && size > bytes {
			f.left = append(f.left, id)
			return nil
		}
		fitting = append(fitting, id)
		bytes -= size
		return nil
	})
	if err != nil {
		return f, fmt.Errorf("measure parked rows: %w", err)
	}
	began := time.Now()
	rows, err := p.pool.Query(ctx, fetchParkedSQL.In(p.schema), shard, fitting)
	if err != nil {
		return f, fmt.Errorf("fetch parked rows: %w", err)
	}
	f.rows, err = collectRows(rows, began)
	return f, err
}

// collectRows takes the rows of a statement that began at a time.
func collectRows(rows pgx.Rows, began time.Time) (all []*row, err error) {
	defer rows.Close()
	var s scanner
	for rows.Next() {
		_, r, err := s.scan(rows, began)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// request is what an operator asked for.
type request struct {
	id             int64
	operation      string
	shard          int16
	rowID          int64
	messageID      string
	action         string
	who, reason    string
	hash           int64 // of the row, once it was carried out
	keyed, done    bool
	state, outcome string
	refusal        string // why it is not carried out; empty: it is
}

func (p *parkStore) requests(ctx context.Context, shards []int16) ([]request, error) {
	rows, err := p.pool.Query(ctx, requestsSQL.In(p.schema), shards)
	if err != nil {
		return nil, fmt.Errorf("look for requests: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (q request, err error) {
		err = row.Scan(&q.id, &q.operation, &q.shard, &q.rowID, &q.messageID, &q.action, &q.who, &q.reason)
		return q, err
	})
}

// carryOut does what a request asks of a parked row, writes the audit entry and the outcome, all in one transaction. It may
// be called again after an error, whose transaction may have been committed.
func (p *parkStore) carryOut(ctx context.Context, epoch int64, q *request) error {
	return p.fulfil(ctx, epoch, q, func(tx pgx.Tx) error {
		switch open, err := p.lock(ctx, tx, q); {
		case err != nil:
			return err
		case !open:
			q.done = q.state == "done"
			return nil
		}
		if err := p.apply(ctx, tx, q); err != nil {
			return err
		}
		return p.record(ctx, tx, q)
	})
}

// lock reads the request and the parked row that it concerns, and reports whether it is still to be carried out.
func (p *parkStore) lock(ctx context.Context, tx pgx.Tx, q *request) (open bool, err error) {
	err = tx.QueryRow(ctx, lockRequestSQL.In(p.schema), q.id).Scan(&q.state, &q.hash, &q.keyed)
	return q.state == "pending", err
}

// discardPending discards a row that was withdrawn from memory. It may be called again after an error, whose
// transaction may have been committed. It reports whether the row is gone.
func (p *parkStore) discardPending(ctx context.Context, epoch int64, q *request) (gone bool, err error) {
	err = p.fulfil(ctx, epoch, q, func(tx pgx.Tx) error {
		open, err := p.lock(ctx, tx, q)
		if err != nil {
			return err
		}
		if !open {
			return tx.QueryRow(ctx, `SELECT NOT EXISTS (`+pendingSQL.In(p.schema)+`)`, q.shard, q.rowID).Scan(&gone)
		}
		deleted, err := tx.Exec(ctx, discardPendingSQL.In(p.schema), q.shard, q.rowID)
		if err != nil {
			return err
		}
		gone = true
		if q.done = deleted.RowsAffected() > 0; q.done {
			q.state, q.outcome = "done", "discarded while its route was stopped"
		} else {
			q.state, q.outcome = "refused", "not pending any more"
		}
		return p.record(ctx, tx, q)
	})
	return gone, err
}

// fulfil runs use in a transaction that holds on to the lease.
func (p *parkStore) fulfil(ctx context.Context, epoch int64, q *request, use func(pgx.Tx) error) error {
	if err := fault.Point("relay.before-request"); err != nil {
		return err
	}
	err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, lockLeaseSQL.In(p.schema), q.shard, epoch)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return errFenced
		}
		return use(tx)
	})
	if err != nil {
		return fmt.Errorf("carry out request %d: %w", q.id, err)
	}
	return fault.Point("relay.after-request")
}

// pending looks a row up in the outbox; nil: it is not there.
func (p *parkStore) pending(ctx context.Context, shard int16, id int64) (*pendingRow, error) {
	row := &pendingRow{id: id}
	err := p.pool.QueryRow(ctx, pendingSQL.In(p.schema), shard, id).Scan(&row.route.exchange, &row.route.key)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil //nolint:nilnil // no row is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("look up row %d/%d: %w", shard, id, err)
	}
	return row, nil
}

func (p *parkStore) apply(ctx context.Context, tx pgx.Tx, q *request) error {
	if q.refusal != "" {
		q.state, q.outcome = "refused", q.refusal
		return nil
	}
	sql, outcome := retryParkedSQL, "will be published again"
	if q.action == outbox.ActionDiscard {
		sql, outcome = discardParkedSQL, "discarded"
	}
	err := tx.QueryRow(ctx, sql.In(p.schema), q.shard, q.rowID).Scan(&q.hash, &q.keyed)
	if errors.Is(err, pgx.ErrNoRows) {
		q.state, q.outcome = "refused", "not parked: published or discarded meanwhile, or still pending"
		return nil
	}
	q.done, q.state, q.outcome = err == nil, "done", outcome
	return err
}

func (p *parkStore) record(ctx context.Context, tx pgx.Tx, q *request) error {
	tag, err := tx.Exec(ctx, finishRequestSQL.In(p.schema), q.id, q.state, q.outcome)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return errors.New("it is finished already")
	}
	op := audit.NewOperation(q.who, "outbox "+q.action, fmt.Sprintf("outbox shard %d row %d", q.shard, q.rowID), q.reason)
	if err := op.ID.UnmarshalText([]byte(q.operation)); err != nil {
		return fmt.Errorf("operation id: %w", err)
	}
	return audit.Write(ctx, tx, p.schema, op, audit.Entry{MessageID: q.messageID, Outcome: q.state + ": " + q.outcome})
}
