package pg

import (
	"bytes"
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrations embed.FS

// placeholder stands for the schema in the migrations. They name it in every statement instead of relying
// on search_path, which a pooler in transaction mode does not keep.
const placeholder = "@schema@"

const (
	createSchema  = `CREATE SCHEMA IF NOT EXISTS ` + placeholder
	versionTable  = "schema_version"
	lockTable     = "schema_lock"
	lockInterval  = 200 * time.Millisecond
	lockTries     = 600
	lockLease     = 30 * time.Second
	lockHeartbeat = 5 * time.Second
)

// MigrateOptions say what to migrate.
type MigrateOptions struct {
	// URL of the database, or file:///path of a file that holds it. Required.
	URL string
	// Schema to create and migrate. Default: "surefoot".
	Schema string
	// To is the last step that Migrate applies. Default: all.
	To int64
}

// Migration is one step of the schema.
type Migration struct {
	Version int64     `json:"version"`
	Name    string    `json:"name"`
	Applied bool      `json:"applied"`
	At      time.Time `json:"applied_at,omitzero"`
}

// Migrate brings the schema up to the version of this binary and returns the steps it applied. Several
// processes may call it at once: one works, the others wait up to two minutes. The lock is a row with a
// lease, not a session lock, so that it also holds behind a pooler in transaction mode. A database that is
// ahead of the binary is left alone.
func Migrate(ctx context.Context, o MigrateOptions) ([]Migration, error) {
	db, schema, err := open(o)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	if err := ensureSchema(ctx, db, schema); err != nil {
		return nil, err
	}
	locker, err := lock.NewPostgresTableLocker(
		lock.WithTableName(schema+"."+lockTable), lock.WithTableLockTimeout(lockInterval, lockTries),
		lock.WithTableLeaseDuration(lockLease), lock.WithTableHeartbeatInterval(lockHeartbeat))
	if err != nil {
		return nil, fmt.Errorf("prepare migration lock: %w", err)
	}
	provider, err := newProvider(db, schema, goose.WithLocker(locker))
	if err != nil {
		return nil, err
	}
	to := o.To
	if to == 0 {
		to = Version()
	}
	results, err := provider.UpTo(ctx, to)
	if err != nil {
		return nil, fmt.Errorf("migrate schema %s: %w", schema, err)
	}
	applied := make([]Migration, 0, len(results))
	for _, r := range results {
		applied = append(applied, Migration{Version: r.Source.Version, Name: r.Source.Path, Applied: true, At: time.Now()})
	}
	return applied, nil
}

// ensureSchema looks before it creates, so that a role without CREATE on the database can migrate a schema
// that its administrator made.
func ensureSchema(ctx context.Context, db *sql.DB, schema string) error {
	var there bool
	err := db.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, schema).Scan(&there)
	if err != nil {
		return fmt.Errorf("look up schema %s: %w", schema, err)
	}
	if there {
		return nil
	}
	if _, err := db.ExecContext(ctx, inSchema(createSchema, schema)); err != nil {
		// Two that create at once can both pass IF NOT EXISTS; the loser's schema is there all the same.
		if _, again := db.ExecContext(ctx, inSchema(createSchema, schema)); again != nil {
			return fmt.Errorf("create schema %s: %w", schema, err)
		}
	}
	return nil
}

// Status lists the steps that this binary knows, in order, and whether each is applied. It changes nothing.
func Status(ctx context.Context, o MigrateOptions) ([]Migration, error) {
	db, schema, err := open(o)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	applied, err := appliedVersions(ctx, db, schema)
	if err != nil {
		return nil, err
	}
	provider, err := newProvider(db, schema)
	if err != nil {
		return nil, err
	}
	var all []Migration
	for _, source := range provider.ListSources() {
		at, ok := applied[source.Version]
		all = append(all, Migration{Version: source.Version, Name: source.Path, Applied: ok, At: at})
	}
	return all, nil
}

// Version returns the newest step that this binary carries.
func Version() int64 {
	names, _ := fs.Glob(migrations, "migrations/*.sql")
	var newest int64
	for _, name := range names {
		if v, err := goose.NumericComponent(name); err == nil {
			newest = max(newest, v)
		}
	}
	return newest
}

const fitsSQL SQL = `SELECT @schema@.schema_fits($1)`

// CheckVersion reports what stands between this binary and the schema: nil when they fit. A newer schema
// is refused, because its rules are unknown here, unless its last step says that this binary works with it.
func CheckVersion(ctx context.Context, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, schema string,
) error {
	var version int64
	err := q.QueryRow(ctx, inSchema(`SELECT coalesce(max(version_id), 0) FROM `+placeholder+`.`+versionTable, Schema(schema))).Scan(&version)
	switch {
	case isUndefined(err), err == nil && version == 0:
		return fmt.Errorf("schema %s is not there yet: run `surefoot migrate up`", Schema(schema))
	case isNotPrepared(err):
		return fmt.Errorf("read schema version: a pooler is between, and prepared statements are lost there: add default_query_exec_mode=cache_describe to the URL of this pool: %w", err)
	case err != nil:
		return fmt.Errorf("read schema version: %w", err)
	case version < Version():
		return fmt.Errorf("schema %s has version %d, this program needs %d: run `surefoot migrate up`", Schema(schema), version, Version())
	case version > Version():
		var fits bool
		if err := q.QueryRow(ctx, fitsSQL.In(schema), Version()).Scan(&fits); err == nil && fits {
			return nil
		}
		return fmt.Errorf("schema %s has version %d, this program knows only %d: use a newer surefoot", Schema(schema), version, Version())
	}
	return nil
}

func appliedVersions(ctx context.Context, db *sql.DB, schema string) (map[int64]time.Time, error) {
	applied := map[int64]time.Time{}
	rows, err := db.QueryContext(ctx, inSchema(
		`SELECT version_id, tstamp FROM `+placeholder+`.`+versionTable+` WHERE is_applied AND version_id > 0`, schema))
	if isUndefined(err) {
		return applied, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read applied migrations: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var version int64
		var at time.Time
		if err := rows.Scan(&version, &at); err != nil {
			return nil, fmt.Errorf("read applied migrations: %w", err)
		}
		applied[version] = at
	}
	return applied, rows.Err()
}

func open(o MigrateOptions) (*sql.DB, string, error) {
	if err := CheckSchema(o.Schema); err != nil {
		return nil, "", err
	}
	pool, err := parse(o.URL)
	if err != nil {
		return nil, "", err
	}
	config := pool.ConnConfig
	// Unprepared statements work through every kind of pooler.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.RuntimeParams["application_name"] = "surefoot migrate"
	// goose keeps times without a zone; in UTC they mean one instant.
	config.RuntimeParams["TimeZone"] = "UTC"
	config.ConnectTimeout = 5 * time.Second
	return stdlib.OpenDB(*config), Schema(o.Schema), nil
}

func newProvider(db *sql.DB, schema string, options ...goose.ProviderOption) (*goose.Provider, error) {
	options = append(options, goose.WithTableName(schema+"."+versionTable), goose.WithDisableGlobalRegistry(true))
	sub, err := fs.Sub(schemaFS{schema}, "migrations")
	if err != nil {
		return nil, fmt.Errorf("read embedded migrations: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, sub, options...)
	if err != nil {
		return nil, fmt.Errorf("prepare migrations: %w", err)
	}
	return provider, nil
}

// InSchema replaces the schema placeholder in a statement.
func inSchema(statement, schema string) string {
	return string(bytes.ReplaceAll([]byte(statement), []byte(placeholder), []byte(schema)))
}

// schemaFS is the embedded directory with the placeholder replaced in every file.
type schemaFS struct{ schema string }

// Open implements fs.FS.
func (s schemaFS) Open(name string) (fs.File, error) {
	file, err := migrations.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil || info.IsDir() {
		return file, err
	}
	defer file.Close()
	data, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	return &schemaFile{info: info, Reader: bytes.NewReader([]byte(inSchema(string(data), s.schema)))}, nil
}

type schemaFile struct {
	*bytes.Reader
	info fs.FileInfo
}

// Stat implements fs.File.
func (f *schemaFile) Stat() (fs.FileInfo, error) { return f.info, nil }

// Close implements fs.File.
func (f *schemaFile) Close() error { return nil }
