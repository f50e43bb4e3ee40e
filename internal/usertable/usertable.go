// Package usertable looks at a table of the user's own that a rule names: whether it is there with its columns, their types fit, and this database role
// may read and write them. And it holds what those who work on such tables do alike as they start, stop and wait.
package usertable

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/message"
)

const (
	findTableSQL = `
SELECT c.oid, c.relkind IN ('r', 'p'), has_schema_privilege(n.oid, 'USAGE')
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2`

	// format_type with -1 gives the type without its length: a cast to varchar(4) would cut a status and match another one.
	listColumnsSQL = `
SELECT a.attname, a.attnum, format_type(a.atttypid, -1), a.attnotnull, a.attgenerated <> '',
       has_column_privilege(a.attrelid, a.attnum, 'SELECT'), has_column_privilege(a.attrelid, a.attnum, 'UPDATE')
FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`

	findIndexesSQL = `
SELECT coalesce(bool_or(i.indkey[0] = ANY ($2::int2[])), false), coalesce(bool_or(i.indkey[0] = $3::int2), false),
       coalesce(bool_or(i.indisunique AND i.indnkeyatts = 1 AND i.indkey[0] = $3::int2 AND i.indpred IS NULL), false)
FROM pg_catalog.pg_index AS i WHERE i.indrelid = $1 AND i.indisvalid`
)

// clockType is the one type of a time that means the same in every session.
const clockType = "timestamp with time zone"

// Column is what the catalog says of one.
type Column struct {
	Name                string
	Number              int16
	Type                string
	NotNull, Generated  bool
	MaySelect, MayWrite bool
}

// Look is one look at one table, in a transaction. Faults are what a person must mend; errors of the database are returned as such. For one goroutine.
type Look struct {
	// Fault makes the error of a fault; denied says that only a right is missing.
	Fault func(problem string, denied bool) error
	// NotATable says what to do when the name is a view's.
	NotATable string

	tx      pgx.Tx
	table   string
	oid     uint32
	columns map[string]Column
	faults  []error
}

// At looks at a table in a transaction whose search path is empty, so that types are named with their schemas and mean the same in every session. check
// is called when the table is there. Found faults are returned joined, as they are.
func (l *Look) At(ctx context.Context, pool *pgxpool.Pool, table string, check func(context.Context) error) error {
	l.table = table
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		l.tx = tx
		if _, err := tx.Exec(ctx, `SET LOCAL search_path = pg_catalog`); err != nil {
			return err
		}
		if err := l.find(ctx); err != nil || len(l.faults) > 0 {
			return err
		}
		return check(ctx)
	})
	if err != nil {
		return fmt.Errorf("look at table %s: %w", message.Clip(table, maxIdentifier), err)
	}
	return errors.Join(l.faults...)
}

// Faulty says whether a fault was found.
func (l *Look) Faulty() bool { return len(l.faults) > 0 }

// Wrong notes a fault.
func (l *Look) Wrong(format string, args ...any) {
	l.faults = append(l.faults, l.Fault(fmt.Sprintf(format, args...), false))
}

func (l *Look) denied(format string, args ...any) {
	l.faults = append(l.faults, l.Fault(fmt.Sprintf(format, args...), true))
}

func (l *Look) find(ctx context.Context) error {
	name, err := ParseName(l.table)
	if err != nil {
		return err
	}
	var isTable, usable bool
	err = l.tx.QueryRow(ctx, findTableSQL, name[0], name[1]).Scan(&l.oid, &isTable, &usable)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		l.Wrong("table %s does not exist; write it as schema.table, exactly as it is in the database", name.Sanitize())
		return nil
	case err != nil:
		return err
	case !isTable:
		l.Wrong("%s is not a table; %s", name.Sanitize(), l.NotATable)
		return nil
	case !usable:
		l.denied("this database role may not use schema %s; grant it USAGE", name[:1].Sanitize())
		return nil
	}
	rows, _ := l.tx.Query(ctx, listColumnsSQL, l.oid) // its error is that of the rows
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Column])
	l.columns = make(map[string]Column, len(list))
	for _, c := range list {
		l.columns[c.Name] = c
	}
	return err
}

// Type of a column that was found; "" of another.
func (l *Look) Type(column string) string { return l.columns[column].Type }

// Column looks one up for a field of the rule, and notes when it is missing or cannot be used.
func (l *Look) Column(field, name string, written bool) (Column, bool) {
	c, ok := l.columns[name]
	switch {
	case !ok:
		l.Wrong("column %q (%s) does not exist in %s, which has %s", name, field, l.table, strings.Join(slices.Sorted(maps.Keys(l.columns)), ", "))
	case !c.MaySelect:
		l.denied("this database role may not read column %q (%s) of %s; grant it SELECT", name, field, l.table)
	case written && !c.MayWrite:
		l.denied("this database role may not write column %q (%s) of %s; grant it UPDATE", name, field, l.table)
	case written && c.Generated:
		l.Wrong("column %q (%s) of %s is generated and cannot be set", name, field, l.table)
	}
	return c, ok
}

// Key looks up the column that names a row.
func (l *Look) Key(field, name string) {
	if key, ok := l.Column(field, name, false); ok && !key.NotNull {
		l.Wrong("column %q (%s) may be NULL, and such a row could never be changed; make it NOT NULL", name, field)
	}
}

// Clock looks up a column that holds a time.
func (l *Look) Clock(field, name string, written bool) {
	if c, ok := l.Column(field, name, written); ok && c.Type != clockType {
		l.Wrong("column %q (%s) has the type %s, but must be %s: anything else depends on the session's zone", name, field, c.Type, clockType)
	}
}

// Indexes says whether an index begins with one of some columns, one with the key, and one is unique on the key alone.
func (l *Look) Indexes(ctx context.Context, key string, leading ...string) (led, keyed, unique bool, err error) {
	numbers := make([]int16, len(leading))
	for i, name := range leading {
		numbers[i] = l.columns[name].Number
	}
	err = l.tx.QueryRow(ctx, findIndexesSQL, l.oid, numbers, l.columns[key].Number).Scan(&led, &keyed, &unique)
	return led, keyed, unique, err
}

// Values asks the database whether texts are values of a column's type, an enum's for example.
func (l *Look) Values(ctx context.Context, field, name string, values ...string) error {
	c := l.columns[name]
	for _, value := range values {
		sub, err := l.tx.Begin(ctx)
		if err != nil {
			return err
		}
		_, invalid := sub.Exec(ctx, `SELECT $1::text::`+c.Type, value)
		if err := sub.Rollback(ctx); err != nil {
			return err
		}
		if invalid != nil {
			l.Wrong("column %q (%s) has the type %s, which does not take %q: %s", c.Name, field, c.Type, value, Bounded(invalid))
		}
	}
	return nil
}

const maxError = 1024

// Bounded makes the text of an error fit for the database and for logs.
func Bounded(err error) string { return message.Storable(err.Error(), maxError) }
