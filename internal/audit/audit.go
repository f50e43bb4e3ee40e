// Package audit writes what operators did: who, when, what, why, and the outcome for each message. Entries
// are append-only; the database refuses to change one.
package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
)

// Retention is how long entries are kept.
const Retention = 400 * 24 * time.Hour

// Bounds of the texts in bytes; longer ones are cut.
const (
	maxName   = 255
	maxReason = 1 << 10
)

const insertSQL pg.SQL = `
INSERT INTO @schema@.audit (operation, who, action, target, reason, origin, message_id, outcome, detail)
SELECT $1, $2, $3, $4, $5, $9, m, o, d::jsonb FROM unnest($6::text[], $7::text[], $8::text[]) AS e(m, o, d)`

const expireSQL pg.SQL = `
DELETE FROM @schema@.audit WHERE id IN (
    SELECT id FROM @schema@.audit WHERE at < clock_timestamp() - $1::interval ORDER BY id LIMIT $2)`

// Operation is one act of an operator; all its entries share ID.
type Operation struct {
	// ID ties the entries together. Default: set it with [NewOperation].
	ID uuid.UUID
	// Who acted, for example "ann@host". Required.
	Who string
	// Action in the words of the command line, for example "dlq redrive". Required.
	Action string
	// Target is what it was done to, for example a queue.
	Target string
	// Reason that was given, if any.
	Reason string
	// Origin is from where: the program and its host. Default: not said.
	Origin string
}

// Entry is the outcome for one message, or for the operation as a whole when MessageID is empty.
type Entry struct {
	MessageID string
	Outcome   string
	// Detail is kept as JSON; no payloads. Nil: none.
	Detail map[string]any
}

// Execer runs a statement: a pool, a connection or a transaction.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// NewOperation returns an operation with a new id.
func NewOperation(who, action, target, reason string) Operation {
	return Operation{
		ID: uuid.Must(uuid.NewV7()), Who: clean(who, maxName), Action: clean(action, maxName),
		Target: clean(target, maxName), Reason: clean(reason, maxReason),
	}
}

// Write appends entries in one statement. Inside a transaction they stand or fall with it.
func Write(ctx context.Context, db Execer, schema string, op Operation, entries ...Entry) error {
	if len(entries) == 0 {
		return nil
	}
	ids, outcomes, details := make([]string, len(entries)), make([]string, len(entries)), make([]*string, len(entries))
	for i, e := range entries {
		ids[i], outcomes[i] = clean(e.MessageID, maxName), clean(e.Outcome, maxReason)
		if e.Detail == nil {
			continue
		}
		text, err := json.Marshal(e.Detail)
		if err != nil {
			return fmt.Errorf("encode audit detail: %w", err)
		}
		detail := withoutNUL(text)
		details[i] = &detail
	}
	_, err := db.Exec(ctx, insertSQL.In(schema), op.ID, op.Who, op.Action, op.Target, op.Reason, ids, outcomes, details, clean(op.Origin, maxName))
	if err != nil {
		return fmt.Errorf("write audit: %w", err)
	}
	return nil
}

// Expire deletes at most limit entries older than [Retention] and returns how many.
func Expire(ctx context.Context, db Execer, schema string, limit int) (int64, error) {
	tag, err := db.Exec(ctx, expireSQL.In(schema), Retention, limit)
	if err != nil {
		return 0, fmt.Errorf("expire audit: %w", err)
	}
	return tag.RowsAffected(), nil
}

// withoutNUL removes the escape of NUL, which jsonb cannot hold, from JSON. A backslash that is escaped itself
// starts no escape.
func withoutNUL(text []byte) string {
	var out strings.Builder
	for at := 0; at < len(text); at++ {
		switch {
		case text[at] != '\\':
			out.WriteByte(text[at])
		case bytes.HasPrefix(text[at:], []byte(`\u0000`)):
			at += len(`\u0000`) - 1
		default:
			out.Write(text[at : at+2])
			at++
		}
	}
	return out.String()
}

// clean makes a text from anywhere fit for PostgreSQL and for a terminal: bounded, valid UTF-8, control characters escaped.
func clean(s string, limit int) string {
	s = message.Storable(s, limit)
	if IsPlain(s) {
		return s
	}
	var out strings.Builder
	for _, char := range s {
		if isPlain(char) {
			out.WriteRune(char)
			continue
		}
		out.WriteString(strings.Trim(strconv.QuoteRuneToASCII(char), "'"))
	}
	return message.Clip(out.String(), limit)
}

// IsPlain says whether a text is one line that changes nothing where it is shown: no control characters, and none that
// turn the direction of text.
func IsPlain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !isPlain(r) })
}

func isPlain(char rune) bool {
	return !unicode.In(char, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}
