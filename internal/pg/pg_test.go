package pg_test

import (
	"context"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestSchemaNames(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"", "surefoot", "_a", "a1", strings.Repeat("a", 40)} {
		require.NoError(t, pg.CheckSchema(good), good)
	}
	for _, bad := range []string{"1a", "A", "a-b", "a b", `a"b`, "a;b", "ä", "a.b", strings.Repeat("a", 41), " ", "a\n"} {
		require.ErrorContains(t, pg.CheckSchema(bad), "lower-case letters", bad)
	}
	require.Equal(t, "surefoot", pg.Schema(""))
	require.Equal(t, "SELECT FROM x.t", pg.SQL("SELECT FROM @schema@.t").In("x"))
	require.Equal(t, "SELECT FROM surefoot.t", pg.SQL("SELECT FROM @schema@.t").In(""))
}

func TestBadURLsNeverShowThePassword(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		"postgres://ann:hunter2@host:port/db", "postgres://ann:hunter2@[::1/db", "postgres://ann:hun%zzter2@host/db",
		"host=x password=hunter2 port=abc", "postgres://ann:hunter2@host/db?sslmode=maybe", "postgres://ann:hunter2@host/db?connect_timeout=x",
		"postgres//ann:hunter2@host", "hunter2", "host=x password='hunter2",
	} {
		_, err := pg.Open(t.Context(), pg.Options{URL: bad})
		require.Error(t, err, bad)
		require.NotContains(t, err.Error(), "hunter2", bad)
		require.ErrorContains(t, err, "postgres://user:password@host:port/database", bad)
		_, err = pg.Migrate(t.Context(), pg.MigrateOptions{URL: bad})
		require.Error(t, err, bad)
		require.NotContains(t, err.Error(), "hunter2", bad)
		_, err = pg.Status(t.Context(), pg.MigrateOptions{URL: bad})
		require.Error(t, err, bad)
		require.NotContains(t, err.Error(), "hunter2", bad)
	}
}

// No test may tell the password when the server is away or refuses it, either.
func TestConnectErrorsNeverShowThePassword(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for name, u := range map[string]string{"refused": asUser(t, db.Direct, "nobody_there", "hunter2"), "away": "postgres://ann:hunter2@" + closedPort(t) + "/db"} {
		pool, err := pg.Open(t.Context(), pg.Options{URL: u})
		require.NoError(t, err, "Open does no I/O")
		err = pool.Ping(t.Context())
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), "hunter2")
		require.Equal(t, name == "away", pg.IsUnavailable(err), "%s: %v", name, err)
		pool.Close()
		_, err = pg.Migrate(t.Context(), pg.MigrateOptions{URL: u})
		require.Error(t, err)
		require.NotContains(t, err.Error(), "hunter2")
	}
}

// closedPort is an address where nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().String()
}

func TestStatementTimeoutIsEnforcedByTheServer(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	pool, err := pg.Open(t.Context(), pg.Options{URL: db.Direct, StatementTimeout: 50 * time.Millisecond, MaxConns: 1, Name: "surefoot test"})
	require.NoError(t, err)
	defer pool.Close()
	_, err = pool.Exec(t.Context(), `SELECT pg_sleep(20)`)
	var server *pgconn.PgError
	require.ErrorAs(t, err, &server, "%v", err)
	require.Equal(t, "57014", server.Code)
	var name string
	require.NoError(t, pool.QueryRow(t.Context(), `SHOW application_name`).Scan(&name))
	require.Equal(t, "surefoot test", name)
	require.EqualValues(t, 1, pool.Config().MaxConns)

	for options, want := range map[pg.Options]string{{}: "30s", {StatementTimeout: -1}: "0", {StatementTimeout: 1234*time.Millisecond + 567*time.Microsecond}: "1234ms"} {
		options.URL = db.Direct
		pool, err := pg.Open(t.Context(), options)
		require.NoError(t, err)
		var got string
		require.NoError(t, pool.QueryRow(t.Context(), `SHOW statement_timeout`).Scan(&got))
		require.Equal(t, want, got)
		pool.Close()
	}
}

// A positive timeout must never become 0, which is none.
func TestATinyStatementTimeoutIsNotNone(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	pool, err := pg.Open(t.Context(), pg.Options{URL: db.Direct, StatementTimeout: time.Microsecond})
	require.NoError(t, err)
	defer pool.Close()
	var got string
	err = pool.QueryRow(t.Context(), `SHOW statement_timeout`).Scan(&got)
	if err == nil { // a millisecond is enough for SHOW
		require.Equal(t, "1ms", got)
	}
}

func TestConnectTimeout(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0") // accepts, by its backlog, and says nothing
	require.NoError(t, err)
	defer listener.Close()
	pool, err := pg.Open(t.Context(), pg.Options{URL: "postgres://a:b@" + listener.Addr().String() + "/d?sslmode=disable", ConnectTimeout: 100 * time.Millisecond})
	require.NoError(t, err)
	defer pool.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.Error(t, pool.Ping(ctx))
	require.NoError(t, ctx.Err(), "the connect timeout, not the test's, ended it")
}

func TestIsUnavailable(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{
		"08006": true, "57P01": true, "57P02": true, "57P03": true, "53300": true, "40001": false, "23505": false, "57014": false, "": false, "0": false,
	} {
		require.Equal(t, want, pg.IsUnavailable(&pgconn.PgError{Code: code}), code)
	}
	require.False(t, pg.IsUnavailable(nil))
	require.False(t, pg.IsUnavailable(pgx.ErrNoRows))
}

// A pool behind every kind of pooler uses unprepared statements.
func TestMigratedSchemaWorksWithUnpreparedStatements(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	u, err := url.Parse(db.URL)
	require.NoError(t, err)
	query := u.Query()
	query.Set("default_query_exec_mode", "exec")
	u.RawQuery = query.Encode()
	pool, err := pg.Open(t.Context(), pg.Options{URL: u.String()})
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, pg.CheckVersion(t.Context(), pool, db.Schema))
	var id string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT `+db.Schema+`.enqueue($1, $2)`, "a", []byte("x")).Scan(&id))
	require.Len(t, id, 36)
}

func asUser(t *testing.T, raw, user, password string) string {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	u.User = url.UserPassword(user, password)
	return u.String()
}

func TestAnEmptyURLIsNoDatabase(t *testing.T) {
	t.Parallel()
	_, err := pg.Open(t.Context(), pg.Options{})
	require.ErrorContains(t, err, "database URL is empty")
	_, err = pg.Migrate(t.Context(), pg.MigrateOptions{})
	require.ErrorContains(t, err, "database URL is empty")
}
