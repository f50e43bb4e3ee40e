// Package store gives each service of the shop a schema of its own in one database, and creates it.
package store

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// SQL is a statement that names its service's schema as "@schema@".
type SQL string

// In returns the statement for a schema that [Schema] made.
func (s SQL) In(schema string) string { return strings.ReplaceAll(string(s), "@schema@", schema) }

// DefaultPrefix begins the names of the shop's schemas.
const DefaultPrefix = "shop"

// prefixName keeps schemas usable unquoted.
var prefixName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`)

// CheckPrefix reports whether prefix can begin the names of schemas. Empty stands for [DefaultPrefix].
func CheckPrefix(prefix string) error {
	if prefix != "" && !prefixName.MatchString(prefix) {
		return fmt.Errorf("prefix %q: use 1 to 40 lower-case letters, digits and underscores, not starting with a digit", prefix)
	}
	return nil
}

// Schema is the name of a service's schema: prefix_service.
func Schema(prefix, service string) string {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	return prefix + "_" + service
}

// lockSQL keeps two that create at once from failing on each other.
const lockSQL = `SELECT pg_advisory_xact_lock(hashtext('surefoot shop ' || $1))`

// Create creates a service's schema and its tables; doing it again changes nothing.
func Create(ctx context.Context, db interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}, schema string, tables SQL,
) error {
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockSQL, schema); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+schema+";"+tables.In(schema))
		return err
	})
	if err != nil {
		return fmt.Errorf("create schema %s: %w", schema, err)
	}
	return nil
}

// AppendOnly are the statements that keep rows of a table from being changed: what is written down stays as it was. Rows may
// still be deleted, when their time is over or their tenant wants it.
func AppendOnly(table string) SQL {
	return SQL(strings.ReplaceAll(`
CREATE OR REPLACE FUNCTION @schema@.@table@_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of %.% are never changed', TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE OR REPLACE TRIGGER @table@_append_only BEFORE UPDATE ON @schema@.@table@ FOR EACH STATEMENT EXECUTE FUNCTION @schema@.@table@_append_only();`,
		"@table@", table))
}

// One runs a statement that answers with one row of one column and tells whether there was one.
func One[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) (value T, found bool, err error) {
	err = tx.QueryRow(ctx, sql, args...).Scan(&value)
	if errors.Is(err, pgx.ErrNoRows) {
		return value, false, nil
	}
	return value, err == nil, err
}
