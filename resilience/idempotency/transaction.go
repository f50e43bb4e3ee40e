package idempotency

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/resilience"
)

const (
	// claimSQL waits for another transaction that has the key and has not ended. Together with BEGIN it is one round trip.
	claimSQL pg.SQL = `INSERT INTO @schema@.idempotency (id, request, caller, key, expires_at)
VALUES ($1, $2, $3, $4, now() + $5::interval) ON CONFLICT (id) DO NOTHING`

	// answerSQL writes the answer into the row that this transaction has claimed. Together with COMMIT it is one round trip.
	// xmin: a handler that ended the transaction by SQL and began another would otherwise go unnoticed.
	answerSQL pg.SQL = `UPDATE @schema@.idempotency SET pending = $2, status = $3, headers = $4, body = $5
WHERE id = $1 AND xmin = pg_current_xact_id()::xid`

	// resolveSQL ends what is pending, and remembers it from then on.
	resolveSQL pg.SQL = `UPDATE @schema@.idempotency SET pending = $2, status = $3, headers = $4, body = $5, expires_at = now() + $6::interval
WHERE id = $1 AND pending`

	forgetSQL pg.SQL = `DELETE FROM @schema@.idempotency WHERE id = $1`

	eraseSQL pg.SQL = `DELETE FROM @schema@.idempotency WHERE caller = $1`

	findSQL pg.SQL = `SELECT request, pending, coalesce(status, 0), headers, body, expires_at - clock_timestamp() FROM @schema@.idempotency WHERE id = $1`

	lockSQL = findSQL + ` FOR UPDATE`
)

const (
	tries = 3
	// firstPause is before the second try, with jitter; it doubles.
	firstPause = 50 * time.Millisecond
	// endTimeout bounds the end of a transaction, which goes on when the client has gone: to cut it off would only leave
	// unknown what it did.
	endTimeout = 5 * time.Second
)

// statements for one schema.
type statements struct {
	wait                                         string
	claim, answer, resolve, forget, find, locked string
	erase                                        string
}

func newStatements(o Options) statements {
	in := func(s pg.SQL) string { return s.In(o.Schema) }
	return statements{
		wait:  "SET LOCAL lock_timeout = " + strconv.FormatInt(o.Wait.Milliseconds(), 10),
		claim: in(claimSQL), answer: in(answerSQL), resolve: in(resolveSQL), forget: in(forgetSQL), find: in(findSQL), locked: in(lockSQL), erase: in(eraseSQL),
	}
}

// noWait gives the handler back the timeout that it would have had.
const noWait = "SET LOCAL lock_timeout TO DEFAULT"

// What a handler can do to the transaction that it does not own.
var (
	errNotYours  = errors.New("idempotency: the transaction is the store's; return an error to roll back, nil to commit")
	errEnded     = errors.New("idempotency: the handler ended the transaction, which is the store's; return an error to roll back, nil to commit")
	errBusy      = errors.New("idempotency: the handler returned while it still read from the transaction; close rows, and wait for goroutines that use it")
	errSwallowed = errors.New("idempotency: the handler returned no error although one of its statements had failed; nothing was committed")
)

// errGone is a key that is not remembered; in the middle of a request the clean-up has taken it.
var errGone = errors.New("idempotency: the key is not remembered")

// start claims the key and runs the handler, or finds what another request has left.
func (s *Store) start(ctx context.Context, in *request, h Handler) (outcome, error) {
	return s.again(ctx, in, func(conn *pgxpool.Conn) (outcome, error) {
		tx, claimed, err := s.claim(ctx, conn, in)
		if err != nil {
			return outcome{}, s.rollback(ctx, tx, err)
		}
		if !claimed {
			out, err := s.find(ctx, tx, s.sql.find, in)
			return out, s.rollback(ctx, tx, err)
		}
		in.unknown = nil // it was rolled back
		return s.run(ctx, tx, in, s.sql.answer, func(ctx context.Context, tx pgx.Tx) (Answer, error) { return h(ctx, tx, in.again()) })
	})
}

// finish runs what follows from an outcome, unless the request is pending no more.
func (s *Store) finish(ctx context.Context, in *request, finish Finish) (outcome, error) {
	if finish == nil {
		return outcome{}, errors.New("idempotency: a step returned neither an error nor what follows")
	}
	return s.again(ctx, in, func(conn *pgxpool.Conn) (outcome, error) {
		tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: s.options.Isolation})
		if err != nil {
			return outcome{}, fmt.Errorf("begin transaction: %w", err)
		}
		out, err := s.find(ctx, tx, s.sql.locked, in)
		if err != nil || !out.pending {
			return out, s.rollback(ctx, tx, err)
		}
		return s.run(ctx, tx, in, s.sql.resolve, finish)
	})
}

// again runs a transaction up to three times, while its failure says that it was rolled back by no fault of the handler, or
// that nobody knows: then the row tells. What stays unknown is neither success nor failure.
func (s *Store) again(ctx context.Context, in *request, try func(*pgxpool.Conn) (outcome, error)) (outcome, error) {
	for n := 1; ; n++ {
		out, again, err := s.try(ctx, try)
		if err == nil {
			return out, nil
		}
		if n < tries && (again || in.unknown != nil) && pause.For(ctx, pause.Jitter(firstPause<<(n-1))) {
			continue
		}
		if in.unknown != nil {
			return outcome{}, pendingFor(fmt.Errorf("commit was not answered: %w, and then: %w", in.unknown, err))
		}
		return outcome{}, err
	}
}

// try reports whether another try is in order: the connection was lost under the transaction, or the database chose it to fail.
func (s *Store) try(ctx context.Context, try func(*pgxpool.Conn) (outcome, error)) (out outcome, again bool, err error) {
	conn, err := s.options.Pool.Acquire(ctx)
	if err != nil {
		return outcome{}, false, fmt.Errorf("take a database connection: %w", err)
	}
	defer conn.Release()
	out, err = try(conn)
	lost := err != nil && conn.Conn().IsClosed() && ctx.Err() == nil
	return out, lost || errors.Is(err, errGone) || resilience.Classify(err) == resilience.ClassDatabaseRetry, err
}

func (s *Store) claim(ctx context.Context, conn *pgxpool.Conn, in *request) (tx pgx.Tx, claimed bool, err error) {
	batch := new(pgx.Batch)
	batch.BeginTx(pgx.TxOptions{IsoLevel: s.options.Isolation})
	batch.Queue(s.sql.wait)
	batch.Queue(s.sql.claim, in.id, in.hash[:], in.key.Caller, in.key.Key, s.options.Retention).Exec(func(tag pgconn.CommandTag) error {
		claimed = tag.RowsAffected() == 1
		return nil
	})
	batch.Queue(noWait)
	results := conn.SendBatch(ctx, batch)
	err = results.Close()
	if resilience.SQLStateOf(err) == pg.LockNotAvailable {
		return results.Tx(), false, pendingFor(err)
	}
	if err != nil {
		return results.Tx(), false, fmt.Errorf("claim idempotency key: %w", explain(err, s.options.Schema))
	}
	return results.Tx(), claimed, nil
}

// find returns what a key is remembered with, or errGone.
func (s *Store) find(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, sql string, in *request,
) (outcome, error) {
	out := outcome{replayed: true}
	var hash []byte
	err := db.QueryRow(ctx, sql, in.id).Scan(&hash, &out.pending, &out.status, &out.headers, &out.body, &out.kept)
	if errors.Is(err, pgx.ErrNoRows) {
		return outcome{}, errGone
	}
	if err != nil {
		return outcome{}, fmt.Errorf("look up idempotency key: %w", explain(err, s.options.Schema))
	}
	in.unknown = nil
	if out.status == 0 { // a handler has committed its claim and nothing else
		return outcome{}, errPending
	}
	copy(out.hash[:], hash)
	return out, nil
}

// run runs a handler, and commits what it did with its answer.
func (s *Store) run(ctx context.Context, tx pgx.Tx, in *request, sql string, h func(context.Context, pgx.Tx) (Answer, error)) (outcome, error) {
	lent := &lent{tx}
	defer lent.takeBack()
	a, err := h(ctx, lent)
	if err == nil {
		err = misuse(tx)
	}
	if err != nil {
		return outcome{}, s.rollback(ctx, tx, err)
	}
	r, err := s.encode(a)
	if err != nil {
		return outcome{}, s.rollback(ctx, tx, fmt.Errorf("idempotency: %w", err))
	}
	if err := ctx.Err(); err != nil {
		return outcome{}, s.rollback(ctx, tx, context.Cause(ctx))
	}
	if err := s.commit(ctx, tx, in, sql, r); err != nil {
		return outcome{}, err
	}
	return outcome{row: r, hash: in.hash, kept: s.options.Retention}, nil
}

// commit writes the answer and ends the transaction.
func (s *Store) commit(ctx context.Context, tx pgx.Tx, in *request, sql string, r row) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	batch, written := new(pgx.Batch), int64(0)
	count := func(tag pgconn.CommandTag) error { written = tag.RowsAffected(); return nil }
	switch {
	case r.forget:
		batch.Queue(s.sql.forget, in.id).Exec(count)
	case sql == s.sql.answer:
		batch.Queue(sql, in.id, r.pending, r.status, r.headers, r.body).Exec(count)
	default:
		batch.Queue(sql, in.id, r.pending, r.status, r.headers, r.body, s.options.Retention).Exec(count)
	}
	batch.Queue("commit")
	err := tx.SendBatch(ctx, batch).Close()
	switch {
	case err == nil && written == 1:
		return nil
	case err == nil:
		return errEnded
	case tx.Conn().IsClosed(), resilience.SQLStateOf(err) == "40003":
		in.unknown = err
		return err
	}
	return s.rollback(ctx, tx, fmt.Errorf("commit: %w", err))
}

// rollback returns err. Its own failure closes the connection, which rolls back too.
func (s *Store) rollback(ctx context.Context, tx pgx.Tx, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	_ = tx.Rollback(ctx)
	return err
}

// misuse looks at the transaction after a handler that returned no error. A lost connection is for the commit to find.
func misuse(tx pgx.Tx) error {
	conn := tx.Conn().PgConn()
	switch {
	case conn.IsClosed():
		return nil
	case conn.IsBusy():
		return errBusy
	case conn.TxStatus() == 'I':
		return errEnded
	case conn.TxStatus() == 'E':
		return errSwallowed
	}
	return nil
}

// lent is a transaction that its handler cannot end, and cannot use once it has returned: the connection is somebody else's
// by then.
type lent struct{ pgx.Tx }

func (*lent) Commit(context.Context) error   { return errNotYours }
func (*lent) Rollback(context.Context) error { return errNotYours }

func (l *lent) takeBack() {
	nothing := new(pgx.Batch)
	nothing.BeginTx(pgx.TxOptions{})
	l.Tx = pgx.FailedBatchResults(nothing, pgx.ErrTxClosed).Tx() // pgx has no other way to a transaction that is over
}

// explain turns the errors of a missing schema into what to do.
func explain(err error, schema string) error {
	switch resilience.SQLStateOf(err) {
	case pg.UndefinedSchema, pg.UndefinedTable:
		return fmt.Errorf("schema %s has no table idempotency; run `surefoot migrate up`: %w", schema, err)
	case pg.InsufficientPrivilege:
		return fmt.Errorf("this database role needs SELECT, INSERT, UPDATE and DELETE on %s.idempotency: %w", schema, err)
	}
	return err
}
