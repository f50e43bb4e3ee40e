package pg

import "github.com/surefoot-mq/surefoot/resilience"

// What PostgreSQL says of a statement that more than one package has its own answer to; see [resilience.SQLStateOf].
const (
	InsufficientPrivilege = "42501"
	UndefinedDatabase     = "3D000"
	UndefinedSchema       = "3F000"
	UndefinedTable        = "42P01"
	LockNotAvailable      = "55P03"
)

// SQL is a statement with the schema left open: each owner of a table keeps its statements as constants
// that name tables as "@schema@.table", and asks for the finished text once, when it is made.
type SQL string

// In returns the statement for a schema, which [CheckSchema] must have accepted.
func (s SQL) In(schema string) string {
	return inSchema(string(s), Schema(schema))
}

func isUndefined(err error) bool {
	state := resilience.SQLStateOf(err)
	return state == UndefinedTable || state == UndefinedSchema
}

// isNotPrepared recognises what a prepared statement meets on another server connection than its own.
func isNotPrepared(err error) bool {
	state := resilience.SQLStateOf(err)
	return state == "26000" || state == "42P05"
}
