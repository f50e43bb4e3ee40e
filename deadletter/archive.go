package deadletter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
)

// ArchiveRetention is how long a discarded message can be restored.
const ArchiveRetention = 30 * 24 * time.Hour

const (
	archiveSQL pg.SQL = `
INSERT INTO @schema@.dlq_archive (operation, vhost, queue, key, message_id, type, who, reason, envelope, body)
SELECT $1, $2, $3, e.key, e.message_id, e.type, $4, $5, e.envelope, e.body
FROM unnest($6::uuid[], $7::text[], $8::text[], $9::bytea[], $10::bytea[]) AS e(key, message_id, type, envelope, body)`

	archivedSQL pg.SQL = `
SELECT id, operation, key, message_id, type FROM @schema@.dlq_archive
WHERE vhost = $1 AND queue = $2 AND ($3::uuid IS NULL OR operation = $3) AND (cardinality($4::text[]) = 0 OR message_id = ANY($4))
  AND id > $5 AND at >= clock_timestamp() - $6::interval AND restored_at IS NULL
ORDER BY id LIMIT $7`

	archivedLetterSQL pg.SQL = `SELECT envelope, body FROM @schema@.dlq_archive WHERE id = $1 AND restored_at IS NULL`

	restoredSQL pg.SQL = `UPDATE @schema@.dlq_archive SET restored_at = clock_timestamp() WHERE id = ANY($1)`

	ageArchiveSQL pg.SQL = `
DELETE FROM @schema@.dlq_archive WHERE id IN (
    SELECT id FROM @schema@.dlq_archive WHERE at < clock_timestamp() - $1::interval ORDER BY at LIMIT $2)`

	archiveSizeSQL pg.SQL = `SELECT pg_total_relation_size('@schema@.dlq_archive')`
)

// archive keeps letters that are about to leave for good, in the transaction of their record.
func (d *DeadLetters) archive(ctx context.Context, tx pgx.Tx, op audit.Operation, n names, letters []*amqp.Delivery) error {
	if len(letters) == 0 {
		return nil
	}
	var (
		keys              []uuid.UUID
		ids, types        []string
		envelopes, bodies [][]byte
	)
	for _, l := range letters {
		r, err := recordOfLetter(l, n.work, false)
		if err != nil {
			return err
		}
		envelope, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("archive a message: %w", err)
		}
		f := factsOf(l, n)
		keys, envelopes, bodies = append(keys, f.key), append(envelopes, envelope), append(bodies, bytes.Clone(nonNil(l.Body)))
		ids, types = append(ids, storableID(l.MessageId)), append(types, message.Storable(l.Type, message.MaxShortString))
	}
	_, err := tx.Exec(ctx, archiveSQL.In(d.opts.Schema), op.ID, d.vhost(), n.work, op.Who, op.Reason, pg.UUIDs(keys), ids, types, envelopes, bodies)
	if err != nil {
		return fmt.Errorf("archive messages: %w", err)
	}
	return nil
}

func nonNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func storableID(id string) string { return message.Storable(id, message.MaxShortString) }

// RestoreRequest says which discarded messages to put back.
type RestoreRequest struct {
	// Queue is the work queue, or its dead-letter queue. Required.
	Queue string
	// Operation is the id of the discard. Default: any.
	Operation uuid.UUID
	// IDs are message ids, any of them. Default: any. One of Operation and IDs is required.
	IDs []string
	// DryRun only counts. Default: false.
	DryRun bool
	// Who acts, and why, for the audit. Who is required.
	Who, Reason string
	// Confirm is asked before anything is put back. Default: nobody is asked.
	Confirm func(ctx context.Context, count int) error
	// Progress is told of each batch that is back. Default: nobody is told.
	Progress func(done int)
}

// Returned is what came back into dead-letter queues.
type Returned struct {
	// Operation identifies it in the audit.
	Operation uuid.UUID `json:"operation"`
	DryRun    bool      `json:"dry_run"`
	// Found is how many were asked for and are there, Done how many are back.
	Found int `json:"found"`
	Done  int `json:"done"`
}

// Restore puts discarded messages back into their dead-letter queue, behind what is there, in the order in which they were discarded.
// It does not redrive them. A message is restored once; after a crash those on their way may be there twice, under one id.
func (d *DeadLetters) Restore(ctx context.Context, r RestoreRequest) (result Returned, err error) {
	n, err := namesOf(r.Queue)
	if err = errors.Join(err, r.validate()); err != nil {
		return result, err
	}
	op := d.operation(r.Who, "dlq restore", n.dlq, r.Reason)
	result = Returned{Operation: op.ID, DryRun: r.DryRun}
	if err := d.eachArchived(ctx, n, r, func(archived) error { result.Found++; return nil }); err != nil {
		return result, err
	}
	if r.DryRun || result.Found == 0 {
		return result, nil
	}
	if r.Confirm != nil {
		if err := r.Confirm(ctx, result.Found); err != nil {
			return result, err
		}
	}
	done := func(tokens []any) error {
		ids, keys, entries := make([]int64, len(tokens)), make([]uuid.UUID, len(tokens)), make([]audit.Entry, len(tokens))
		for i, t := range tokens {
			a := t.(archived)
			ids[i], keys[i] = a.ID, a.Key
			entries[i] = audit.Entry{MessageID: orNone(a.MessageID), Outcome: "restored", Detail: map[string]any{"type": a.Type, "discarded_by": a.Operation}}
		}
		if err := d.recordReturned(ctx, op, entries, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, restoredSQL.In(d.opts.Schema), ids); err != nil {
				return err
			}
			return d.index.Back(ctx, tx, d.vhost(), n.work, keys)
		}); err != nil {
			return err
		}
		result.Done += len(tokens)
		if r.Progress != nil {
			r.Progress(result.Done)
		}
		return nil
	}
	err = d.returned(ctx, op, result.Found, done, func(ctx context.Context, s *sender) error {
		return d.eachArchived(ctx, n, r, func(a archived) error {
			p, err := d.archivedLetter(ctx, n, a)
			if err != nil || p == nil {
				return err
			}
			return s.send(ctx, n.dlq, *p, a)
		})
	})
	return result, err
}

func (r *RestoreRequest) validate() error {
	switch {
	case r.Who == "":
		return fmt.Errorf("%w: Who is empty; the audit needs to know who acts", ErrBadRequest)
	case r.Operation == uuid.Nil && len(r.IDs) == 0:
		return fmt.Errorf("%w: name the discard by its operation, or the messages by their ids", ErrBadRequest)
	case len(r.IDs) > maxIDs:
		return fmt.Errorf("%w: %d ids, more than the limit of %d", ErrBadRequest, len(r.IDs), maxIDs)
	case len(r.Reason) > maxReason || !audit.IsPlain(r.Reason):
		return fmt.Errorf("%w: the reason must be at most %d bytes of plain text", ErrBadRequest, maxReason)
	}
	return nil
}

// archived is a message in the archive, without its content.
type archived struct {
	ID        int64
	Operation uuid.UUID
	Key       uuid.UUID
	MessageID string
	Type      string
}

// archivePage is how many are read at once; bodies are read one by one.
const archivePage = 500

func (d *DeadLetters) eachArchived(ctx context.Context, n names, r RestoreRequest, visit func(archived) error) error {
	ids := make([]string, len(r.IDs))
	for i, id := range r.IDs {
		ids[i] = storableID(id)
	}
	operation := uuid.NullUUID{UUID: r.Operation, Valid: r.Operation != uuid.Nil}
	for after := int64(0); ; {
		rows, _ := d.opts.Pool.Query(ctx, archivedSQL.In(d.opts.Schema), d.vhost(), n.work, operation, ids, after, ArchiveRetention, archivePage)
		page, err := pgx.CollectRows(rows, pgx.RowToStructByPos[archived])
		if err != nil {
			return fmt.Errorf("read archived messages: %w", err)
		}
		for _, a := range page {
			if err := visit(a); err != nil {
				return err
			}
			after = a.ID
		}
		if len(page) < archivePage {
			return nil
		}
	}
}

// archivedLetter is nil when somebody else has restored it meanwhile.
func (d *DeadLetters) archivedLetter(ctx context.Context, n names, a archived) (*amqp.Publishing, error) {
	var envelope, body []byte
	err := d.opts.Pool.QueryRow(ctx, archivedLetterSQL.In(d.opts.Schema), a.ID).Scan(&envelope, &body)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	var r Record
	if err == nil {
		err = json.Unmarshal(envelope, &r)
	}
	if err != nil {
		return nil, fmt.Errorf("read archived message: %w", err)
	}
	letter, err := r.delivery()
	if err != nil {
		return nil, fmt.Errorf("read archived message %s: %w", message.Clip(a.MessageID, 64), err)
	}
	letter.Body = body
	p := returning(letter, n)
	return &p, nil
}
