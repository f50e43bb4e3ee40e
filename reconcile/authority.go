package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/message"
)

// NotFound is the answer of an authority that knows its things and has never heard of this one.
const NotFound = "not_found"

// Suspect is a row that may be wrong.
type Suspect struct {
	// Rule that suspects it.
	Rule string
	// Key and Status of the row, as text.
	Key, Status string
	// Since is the row's clock.
	Since time.Time
	// Columns that the rule or its query named, as JSON, as they were when the row was claimed.
	Columns map[string]json.RawMessage
}

// Value is the text of {name}: key, status, or a column that is neither NULL nor an object or a list.
func (s Suspect) Value(name string) (string, error) {
	switch name {
	case "key":
		return s.Key, nil
	case "status":
		return s.Status, nil
	}
	raw, known := s.Columns[name]
	if !known {
		return "", fmt.Errorf("the suspect has no column %q", message.Clip(name, maxText))
	}
	text, err := scalar(raw)
	if err != nil {
		return "", fmt.Errorf("column %q of the suspect %w", message.Clip(name, maxText), err)
	}
	return text, nil
}

// scalar is the text of a JSON string, number or truth value.
func scalar(raw json.RawMessage) (string, error) {
	if len(raw) > 0 && raw[0] == '"' {
		var text string
		err := json.Unmarshal(raw, &text)
		return text, err
	}
	if len(raw) == 0 || raw[0] == '{' || raw[0] == '[' || string(raw) == "null" {
		return "", errors.New("is no single value")
	}
	return string(raw), nil
}

// Authority knows the truth about a suspect.
type Authority interface {
	// Ask returns the answer, 1 to 255 bytes, one of those that the rule names; [NotFound] says that the authority is sure not to know
	// it. An error is no answer, whatever it is: the suspect stays and is asked about again. It must not change anything, must return
	// when ctx ends, and is called from several goroutines at once.
	Ask(ctx context.Context, s Suspect) (answer string, err error)
}

// Func is an [Authority] in Go. A panic in it is no answer.
type Func func(ctx context.Context, s Suspect) (answer string, err error)

// Ask calls f.
func (f Func) Ask(ctx context.Context, s Suspect) (string, error) { return f(ctx, s) }

// SQLOptions of an authority that is a database.
type SQLOptions struct {
	// Pool of the database. Required.
	Pool *pgxpool.Pool
	// Query returns one row with one column, the answer, or no row, which is [NotFound]. NULL is no answer. In it {key}, {status} and
	// {column} stand for what is known of the suspect, as parameters of type text: WHERE id = {orderId}::bigint. It runs in a
	// read-only transaction. Required.
	Query string
}

// SQLAuthority asks a database. It is safe for concurrent use.
type SQLAuthority struct {
	pool  *pgxpool.Pool
	query string
	names []string // of the parameters, in order
}

// NewSQL returns an authority that is a database. It does no I/O.
func NewSQL(o SQLOptions) (*SQLAuthority, error) {
	if o.Pool == nil {
		return nil, errors.New("reconcile: the Pool of the SQL authority is missing")
	}
	if o.Query == "" || len(o.Query) > maxQuery {
		return nil, fmt.Errorf("reconcile: the Query of the SQL authority has %d bytes, but must have 1 to %d", len(o.Query), maxQuery)
	}
	query, names := parameters(o.Query)
	return &SQLAuthority{pool: o.Pool, query: query, names: names}, nil
}

func (a *SQLAuthority) placeholders() []string { return a.names }

// Ask implements [Authority].
func (a *SQLAuthority) Ask(ctx context.Context, s Suspect) (answer string, err error) {
	args := make([]any, len(a.names))
	for i, name := range a.names {
		if args[i], err = s.Value(name); err != nil {
			return "", err
		}
	}
	err = pgx.BeginTxFunc(ctx, a.pool, readOnly(), func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, a.query, args...) // its error is that of the rows
		answers, err := pgx.CollectRows(rows, pgx.RowTo[*string])
		switch {
		case err != nil:
			return err
		case len(answers) == 0:
			answer = NotFound
		case len(answers) > 1:
			return fmt.Errorf("%d rows, but one is needed", len(answers))
		case answers[0] == nil:
			return errors.New("NULL is no answer")
		default:
			answer = *answers[0]
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("ask in SQL: %w", err)
	}
	return answer, nil
}

// check lets the database look at the query without running it.
func (a *SQLAuthority) check(ctx context.Context) error {
	return pgx.BeginTxFunc(ctx, a.pool, readOnly(), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "EXPLAIN "+a.query, make([]any, len(a.names))...)
		return err
	})
}

func readOnly() pgx.TxOptions {
	return pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}
}
