package testkit

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

// cleanupTimeout bounds every clean-up; a lock that a test left behind must not hang the run.
const cleanupTimeout = 30 * time.Second

// DB is a freshly migrated schema.
type DB struct {
	// URL of the database that holds the schema; behind a pooler with the option that plain pools of pgx need there.
	URL string
	// Direct is the URL past any pooler, for tests that keep something in a session.
	Direct string
	// Schema is its random name.
	Schema string
	// Pool of up to eight connections, closed when the test ends.
	Pool *pgxpool.Pool
}

// Database returns a schema of the test's own with all migrations applied; it is dropped when the test ends.
func Database(t testing.TB) DB {
	t.Helper()
	needsServices(t)
	u := service(t, databaseVar)
	require.NotEmpty(t, u, "no PostgreSQL: %s", howToStart)
	return newDatabase(t, u).behindPooler(u)
}

// behindPooler sets the URLs as they must be when u leads through a pooler.
func (db DB) behindPooler(u string) DB {
	direct := given(directVar)
	if direct == "" {
		return db
	}
	separator := "?"
	if strings.Contains(u, "?") {
		separator = "&"
	}
	db.URL, db.Direct = u+separator+"default_query_exec_mode=cache_describe", direct
	return db
}

// DatabaseBehind is [Database] as an earlier binary made it: without the newest n migrations.
func DatabaseBehind(t testing.TB, n int) DB {
	t.Helper()
	needsServices(t)
	u := service(t, databaseVar)
	db := emptyDatabase(t, u)
	dir := filepath.Join(repository(t), "internal", "pg", "migrations")
	names, err := filepath.Glob(filepath.Join(dir, "*.sql"))
	require.NoError(t, err)
	require.Greater(t, len(names), n)
	older := fstest.MapFS{}
	for _, name := range names[:len(names)-n] {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		older[filepath.Base(name)] = &fstest.MapFile{Data: bytes.ReplaceAll(text, []byte("@schema@"), []byte(db.Schema))}
	}
	_, err = db.Pool.Exec(t.Context(), "CREATE SCHEMA "+db.Schema)
	require.NoError(t, err)
	migrated := stdlib.OpenDBFromPool(db.Pool)
	defer migrated.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, migrated, older, goose.WithTableName(db.Schema+".schema_version"), goose.WithDisableGlobalRegistry(true))
	require.NoError(t, err)
	_, err = provider.Up(t.Context())
	require.NoError(t, err)
	return db.behindPooler(u)
}

func emptyDatabase(t testing.TB, u string) DB {
	t.Helper()
	db := DB{URL: u, Direct: u, Schema: Name("t"), Pool: pool(t, u)}
	t.Cleanup(func() { dropSchema(t, db) })
	return db
}

func newDatabase(t testing.TB, u string) DB {
	t.Helper()
	db := emptyDatabase(t, u)
	_, err := pg.Migrate(t.Context(), pg.MigrateOptions{URL: u, Schema: db.Schema})
	require.NoError(t, err, "migrate a test schema (is PostgreSQL there? %s)", howToStart)
	return db
}

func pool(t testing.TB, u string) *pgxpool.Pool {
	t.Helper()
	pool, err := pg.Open(context.WithoutCancel(t.Context()), pg.Options{URL: u, Name: "test " + t.Name(), MaxConns: 8})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// dropSchema uses the test's own pool; it reports a lock that the test still holds instead of waiting for it.
func dropSchema(t testing.TB, db DB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), cleanupTimeout)
	defer cancel()
	if _, err := db.Pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+db.Schema+" CASCADE"); err != nil {
		t.Errorf("drop test schema %s (is a transaction still open?): %v", db.Schema, err)
	}
}
