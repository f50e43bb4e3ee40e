package pg

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQL is a statement with the schema left open: each owner of a table keeps its statements as constants
// that name tables as "@schema@.table", and asks for the finished text once, when it is made.
type SQL string

// In returns the statement for a schema, which [CheckSchema] must have accepted.
func (s SQL) In(schema string) string {
	return inSchema(string(s), Schema(schema))
}

func isUndefined(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && (server.Code == "42P01" || server.Code == "3F000")
}

// isNotPrepared recognises what a prepared statement meets on another server connection than its own.
func isNotPrepared(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && (server.Code == "26000" || server.Code == "42P05")
}
