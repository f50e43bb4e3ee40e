package consumer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

const (
	registerSQL pg.SQL = `
INSERT INTO @schema@.inbox_consumers (name, queue, retention) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET queue = EXCLUDED.queue, retention = EXCLUDED.retention, seen_at = clock_timestamp()
RETURNING id`

	// beginSQL marks the transaction, so that none is committed but the one that was begun: a handler that ends it by SQL
	// would otherwise have its message acknowledged without an inbox row. AND CHAIN can be seen in nothing else: the
	// connection is in a transaction again. The mark ends with the transaction, however it ends, and the server tells
	// every change of application_name by itself: looking at it costs no statement.
	beginSQL = "begin; set local application_name = '" + mark + "'"
	mark     = "surefoot handling"

	// ownSQL asks whether the open transaction is the one that wrote the inbox row, when a handler has changed the mark.
	ownSQL pg.SQL = `SELECT EXISTS (SELECT FROM @schema@.inbox WHERE consumer = $1 AND message = $2 AND xmin = pg_current_xact_id()::xid)`

	// insertSQL is sent together with BEGIN, in one round trip. A duplicate is a unique violation: ON CONFLICT
	// would cost a round trip for every message to learn what happened. Text is analysed and planned at every message, so where the
	// connection keeps prepared statements the insert is one.
	insertSQL   pg.SQL = `INSERT INTO @schema@.inbox (consumer, message) VALUES `
	preparedSQL        = insertSQL + `($1, $2)`

	// insertAfterSQL is for handlers without a transaction.
	insertAfterSQL pg.SQL = `INSERT INTO @schema@.inbox (consumer, message) SELECT $1, unnest($2::uuid[]) ON CONFLICT DO NOTHING`

	handledSQL pg.SQL = `SELECT message FROM @schema@.inbox WHERE consumer = $1 AND message = ANY ($2::uuid[])`
)

const (
	uniqueViolation = "23505"
	noSuchStatement = "26000"
)

// rollbackTimeout bounds the end of a failed transaction; afterwards the connection is given up.
const rollbackTimeout = 5 * time.Second

// inbox remembers what was handled. id is written once, before the first message.
type inbox struct {
	pool    *pgxpool.Pool
	schema  string
	id      int32
	begin   string      // beginSQL and the insert, up to the message's key
	execute string      // the same by the prepared statement
	prepare string      // the statement's name
	dropped atomic.Bool // statements do not stay prepared here
	owned   string

	looks, records *gather // of messages whose handlers have no transaction
}

func newInbox(pool *pgxpool.Pool, schema string) *inbox {
	b := &inbox{pool: pool, schema: pg.Schema(schema), owned: ownSQL.In(schema)}
	// Of the records two at a time: where a commit takes its time, the next one need not wait for all of it.
	b.looks, b.records = newGather(1, b.handled(handledSQL.In(schema))), newGather(2, b.write(insertAfterSQL.In(schema)))
	return b
}

// register announces the consumer and learns its number.
func (b *inbox) register(ctx context.Context, o Options) error {
	if err := pg.CheckVersion(ctx, b.pool, b.schema); err != nil {
		return err
	}
	if err := b.pool.QueryRow(ctx, registerSQL.In(b.schema), o.Name, o.Queue, o.InboxRetention).Scan(&b.id); err != nil {
		return fmt.Errorf("register consumer %s: %w", message.Clip(o.Name, 64), err)
	}
	number := strconv.Itoa(int(b.id))
	b.begin = beginSQL + "; " + insertSQL.In(b.schema) + "(" + number + ", '"
	b.prepare = statementName(b.schema)
	b.execute = beginSQL + "; execute " + pgx.Identifier{b.prepare}.Sanitize() + "(" + number + ", '"
	return nil
}

// errDuplicate says that the message was handled before.
var errDuplicate = errors.New("handled before")

// inTx runs fn in a transaction that begins with the inbox row of key, and commits it. A row of another
// transaction that is still open is waited for. errDuplicate says that the row is there already.
func (b *inbox) inTx(ctx context.Context, key *uuid.UUID, fn func(tx pgx.Tx) error) error {
	conn, err := b.pool.Acquire(ctx)
	if err != nil {
		return &databaseError{"take a database connection", err, true}
	}
	defer conn.Release()
	tx, err := b.beginTx(ctx, conn, key)
	if err != nil {
		return err
	}
	err = fn(tx)
	if err == nil {
		err = b.own(ctx, tx, key)
	}
	if err != nil {
		return b.rollback(ctx, tx, err)
	}
	if err := tx.Commit(ctx); err != nil {
		return b.commitFailed(tx, err)
	}
	return nil
}

func (b *inbox) beginTx(ctx context.Context, conn *pgxpool.Conn, key *uuid.UUID) (pgx.Tx, error) {
	prepared := key != nil && b.isPrepared(ctx, conn.Conn())
	tx, err := conn.BeginTx(ctx, b.txOptions(key, prepared))
	if err == nil {
		return tx, nil
	}
	failed := b.beginFailed(ctx, conn, err)
	if server, ok := errors.AsType[*pgconn.PgError](err); ok && server.Code == noSuchStatement && prepared {
		b.dropped.Store(true) // by something in between, or by a hook of the pool
		return b.beginTx(ctx, conn, key)
	}
	return nil, failed
}

// txOptions needs no quoting: the key is rendered from 16 bytes.
func (b *inbox) txOptions(key *uuid.UUID, prepared bool) pgx.TxOptions {
	switch {
	case key == nil:
		return pgx.TxOptions{BeginQuery: beginSQL}
	case prepared:
		return pgx.TxOptions{BeginQuery: b.execute + key.String() + "')"}
	default:
		return pgx.TxOptions{BeginQuery: b.begin + key.String() + "')"}
	}
}

// isPrepared prepares the insert once on each connection. One whose statements go unprepared has a pooler behind it, which would not
// know the statement in the next transaction.
func (b *inbox) isPrepared(ctx context.Context, conn *pgx.Conn) bool {
	if b.dropped.Load() {
		return false
	}
	about := conn.PgConn().CustomData()
	prepared, known := about[b.prepare].(bool)
	if known {
		return prepared
	}
	if conn.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		if _, err := conn.Prepare(ctx, b.prepare, preparedSQL.In(b.schema)); err != nil {
			return false // the transaction tells why
		}
		prepared = true
	}
	about[b.prepare] = prepared
	return prepared
}

func (b *inbox) beginFailed(ctx context.Context, conn *pgxpool.Conn, err error) error {
	if !conn.Conn().IsClosed() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		if _, failed := conn.Exec(ctx, "rollback"); failed != nil {
			_ = conn.Conn().Close(ctx)
		}
	}
	if b.isDuplicate(err) {
		return errDuplicate
	}
	return &databaseError{"begin transaction with inbox row", err, true}
}

func (b *inbox) isDuplicate(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Code == uniqueViolation && server.TableName == "inbox" && server.SchemaName == b.schema
}

// What a handler can do to the transaction that it does not own. A second try would do it again.
var (
	errEnded = resilience.Permanent(errors.New(
		"the handler ended the transaction, which belongs to the consumer; return an error to roll back, nil to commit"))
	errBusy = resilience.Permanent(errors.New(
		"the handler returned while it still read from the transaction; close rows, and wait for goroutines that use it"))
	errSwallowed = errors.New("the handler returned nil although one of its statements had failed; nothing was committed")
)

// misuse looks at the transaction after a handler that returned nil, before anything else uses it. A lost connection is
// for the commit to find.
func misuse(tx pgx.Tx) error {
	conn := tx.Conn().PgConn()
	switch {
	case conn.IsBusy():
		return errBusy
	case conn.IsClosed():
		return nil
	case conn.TxStatus() == 'I':
		return errEnded
	case conn.TxStatus() == 'E':
		return errSwallowed
	}
	return nil
}

// own makes sure that the transaction is still the one that was begun.
func (b *inbox) own(ctx context.Context, tx pgx.Tx, key *uuid.UUID) error {
	conn := tx.Conn()
	if conn.IsClosed() || conn.PgConn().ParameterStatus("application_name") == mark {
		return nil
	}
	if key == nil || conn.PgConn().TxStatus() == 'I' { // a message without an id has no row to look for
		return errEnded
	}
	var own bool
	if err := tx.QueryRow(ctx, b.owned, b.id, *key).Scan(&own); err != nil {
		return fmt.Errorf("look for the inbox row: %w", err)
	}
	if !own {
		return errEnded
	}
	return nil
}

// isBusy knows pgx's refusal to use a connection that is still being read from, which also asks to be tried again.
func isBusy(err error) bool {
	return pgconn.SafeToRetry(err) && strings.Contains(err.Error(), "conn busy")
}

// rollback keeps the handler's error, and says when the connection was lost under it. One that pgx gave up because the
// handler used it while it was busy is not lost.
func (b *inbox) rollback(ctx context.Context, tx pgx.Tx, err error) error {
	lost := tx.Conn().IsClosed() && ctx.Err() == nil && !isBusy(err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx) // its failure closes the connection, which rolls back
	if lost {
		return &databaseError{"handler's transaction", err, false}
	}
	return err
}

func (b *inbox) commitFailed(tx pgx.Tx, err error) error {
	switch {
	case errors.Is(err, pgx.ErrTxClosed):
		return errEnded
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return errSwallowed
	case tx.Conn().IsClosed():
		return &databaseError{"commit", err, false}
	default:
		return fmt.Errorf("commit: %w", err)
	}
}

// remember writes the row of a message that a handler without a transaction has handled.
func (b *inbox) remember(ctx context.Context, key uuid.UUID) error {
	if _, err := b.records.do(ctx, key); err != nil {
		return &databaseError{"write inbox row", err, true}
	}
	return nil
}

func (b *inbox) write(sql string) gathering {
	return func(ctx context.Context, keys pgtype.FlatArray[pgtype.UUID]) (map[uuid.UUID]bool, error) {
		_, err := b.pool.Exec(ctx, sql, b.id, keys)
		return nil, err
	}
}

// knows tells whether a message was handled.
func (b *inbox) knows(ctx context.Context, key uuid.UUID) (known bool, err error) {
	if known, err = b.looks.do(ctx, key); err != nil {
		return false, &databaseError{"look into inbox", err, true}
	}
	return known, nil
}

func (b *inbox) handled(sql string) gathering {
	return func(ctx context.Context, keys pgtype.FlatArray[pgtype.UUID]) (map[uuid.UUID]bool, error) {
		rows, err := b.pool.Query(ctx, sql, b.id, keys)
		if err != nil {
			return nil, err
		}
		known := map[uuid.UUID]bool{}
		var key pgtype.UUID
		_, err = pgx.ForEachRow(rows, []any{&key}, func() error { known[key.Bytes] = true; return nil })
		return known, err
	}
}

// statementName tells whoever looks at the server's activity which inbox it is. PostgreSQL cuts names.
func statementName(schema string) string {
	const most = 63
	if name := "surefoot " + schema + ".inbox"; len(name) <= most {
		return name
	}
	sum := sha256.Sum256([]byte(schema))
	return "surefoot inbox " + hex.EncodeToString(sum[:8])
}

// bodyKey stands in for the id of a message that has none, to recognise it after a crash.
func bodyKey(m message.Message) uuid.UUID {
	sum := sha256.Sum256(m.Payload)
	return pg.InboxKey("body of a message without id: " + m.Type + " " + hex.EncodeToString(sum[:]))
}

// databaseError is a failure of the consumer's own use of the database.
type databaseError struct {
	op    string
	err   error
	early bool // outside the handler's run, so that its message is not to blame
}

// Error implements error.
func (e *databaseError) Error() string { return e.op + ": " + e.err.Error() }

// Unwrap returns the cause.
func (e *databaseError) Unwrap() error { return e.err }
