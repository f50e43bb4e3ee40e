package telemetry

// Names of the fields in log lines. Every part uses these, so that one search finds an event everywhere.
const (
	FieldRole       = "role"
	FieldEventID    = "event_id"
	FieldType       = "type"
	FieldQueue      = "queue"
	FieldKey        = "key"
	FieldAttempt    = "attempt"
	FieldRequestID  = "request_id"
	FieldErrorClass = "error_class"
	FieldSQLState   = "sqlstate"
	FieldReason     = "reason"
	FieldRule       = "rule"
	FieldRun        = "run"
	FieldShard      = "shard"
	FieldStack      = "stack"
)
