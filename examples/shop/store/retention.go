package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Retention says how long rows are kept, and deletes those that are older.
type Retention struct {
	// Table whose rows are deleted.
	Table string
	// Keep is how long they stay after their end.
	Keep time.Duration
	// Delete removes at most [Batch] rows that ended before $1, an interval ago. A statement of more than one part must count
	// the rows of Table.
	Delete SQL
}

// Batch bounds the rows of one statement.
const Batch = 1000

// Old is the [Retention] of rows that match a condition and whose time is in a column.
func Old(table, column, condition string, keep time.Duration) Retention {
	return Retention{Table: table, Keep: keep, Delete: SQL(fmt.Sprintf(`
DELETE FROM @schema@.%[1]s WHERE ctid IN (
    SELECT ctid FROM @schema@.%[1]s WHERE %[2]s < now() - $1::interval AND %[3]s LIMIT %[4]d FOR UPDATE SKIP LOCKED)`,
		table, column, condition, Batch))}
}

// Clean deletes what is over, in batches, and returns how many rows of each table.
func Clean(ctx context.Context, db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, schema string, rules []Retention,
) (map[string]int64, error) {
	deleted := map[string]int64{}
	for _, rule := range rules {
		for {
			tag, err := db.Exec(ctx, rule.Delete.In(schema), rule.Keep)
			if err != nil {
				return deleted, fmt.Errorf("clean %s.%s: %w", schema, rule.Table, err)
			}
			deleted[rule.Table] += tag.RowsAffected()
			if tag.RowsAffected() < Batch {
				break
			}
		}
	}
	return deleted, nil
}
