package pg

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// sessions makes each new connection fit for what is at its other end. A server of its own keeps what a session sets:
// prepared statements, and a statement_timeout. A pooler in transaction mode hands the next transaction to another
// server connection, so that prepared statements are missing there, and what was set strikes whoever comes next.
// There, statements go unprepared and their time is kept here, by a deadline that has the server told to cancel.
//
// It is a tracer because pgx lets nothing else change the connection's own configuration or the context of a
// statement. It has no state but the connection's.
type sessions struct {
	connectTimeout   time.Duration
	statementTimeout time.Duration // none unless positive
	mode             bool          // the URL chooses how statements are executed
}

// pooled is what a connection through a pooler carries among its custom data.
type pooled struct {
	ownTimeout bool // the open transaction has set one on the server
}

// IsPooled reports whether a pooler is at the other end of a connection of a pool of [Open], as far as that shows from here: see sessions.
func IsPooled(conn *pgx.Conn) bool {
	p, _ := conn.PgConn().CustomData()[customData].(*pooled)
	return p != nil
}

type cancelKey struct{}

// customData is the key of *pooled.
const customData = "surefoot pooled"

// TraceConnectStart implements pgx.ConnectTracer. The configuration is the connection's own.
func (s *sessions) TraceConnectStart(ctx context.Context, data pgx.TraceConnectStartData) context.Context {
	own := data.ConnConfig
	own.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		ctx, cancel := context.WithTimeout(ctx, s.connectTimeout)
		defer cancel()
		direct, err := s.settle(ctx, conn)
		if err != nil || direct {
			return err
		}
		conn.CustomData()[customData] = &pooled{}
		if !s.mode {
			// The types of parameters and results are asked for once, as with prepared statements.
			own.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		}
		return nil
	}
	return ctx
}

// TraceConnectEnd implements pgx.ConnectTracer.
func (s *sessions) TraceConnectEnd(context.Context, pgx.TraceConnectEndData) {}

// settle reports whether the server itself is at the other end, and sets its timeout if so: a pooler tells its clients
// a process of its own invention. One statement does both, so that not even a change in between can leave a setting
// behind on a connection that others get.
func (s *sessions) settle(ctx context.Context, conn *pgconn.PgConn) (direct bool, err error) {
	set := "''"
	if s.statementTimeout > 0 {
		// A positive timeout must never become 0, which is none.
		set = "set_config('statement_timeout', '" + strconv.FormatInt(max(s.statementTimeout.Milliseconds(), 1), 10) + "', false)"
	}
	results, err := conn.Exec(ctx, fmt.Sprintf("SELECT CASE WHEN pg_backend_pid() = %d THEN %s END", conn.PID(), set)).ReadAll()
	if err != nil {
		return false, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return false, errors.New("the database does not tell its process")
	}
	return results[0].Rows[0][0] != nil, nil
}

// TraceQueryStart implements pgx.QueryTracer.
func (s *sessions) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	p, _ := conn.PgConn().CustomData()[customData].(*pooled)
	if p == nil || s.statementTimeout <= 0 {
		return ctx
	}
	if conn.PgConn().TxStatus() == 'I' {
		p.ownTimeout = false
	}
	// A transaction that needs longer says so to the server, which keeps it for that transaction behind any pooler.
	p.ownTimeout = p.ownTimeout || strings.HasPrefix(data.SQL, "SET LOCAL statement_timeout")
	if p.ownTimeout {
		return ctx
	}
	return s.limited(ctx)
}

// TraceQueryEnd implements pgx.QueryTracer.
func (s *sessions) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	release(ctx)
}

func (s *sessions) limited(ctx context.Context) context.Context {
	ctx, cancel := context.WithTimeout(ctx, s.statementTimeout)
	return context.WithValue(ctx, cancelKey{}, cancel)
}

func release(ctx context.Context) {
	if cancel, ok := ctx.Value(cancelKey{}).(context.CancelFunc); ok {
		cancel()
	}
}
