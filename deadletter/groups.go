package deadletter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
)

// groupsSQL counts first and joins afterwards: a million rows make few groups.
const groupsSQL pg.SQL = `
SELECT g.id, q.queue, g.type, g.class, g.fingerprint, g.error_type, g.error_message, g.version, c.messages, c.copies,
       c.first_dead, c.last_dead, g.first_seen, c.hour, c.before, g.note, g.noted_by, g.noted_at
FROM (SELECT group_id, count(*) AS messages, sum(copies) AS copies, min(died_at) AS first_dead, max(died_at) AS last_dead,
             count(*) FILTER (WHERE died_at >= now() - interval '1 hour') AS hour,
             count(*) FILTER (WHERE died_at >= now() - interval '2 hours' AND died_at < now() - interval '1 hour') AS before
      FROM @schema@.dlq_letters
      WHERE gone_at IS NULL AND queue_id = ANY($1::int[]) GROUP BY group_id) c
JOIN @schema@.dlq_groups g ON g.id = c.group_id JOIN @schema@.dlq_queues q ON q.id = g.queue_id
ORDER BY c.messages DESC, g.id LIMIT $2`

const scannedSQL pg.SQL = `
SELECT id, queue, scanned_at, scan_note FROM @schema@.dlq_queues WHERE vhost = $1 AND ($2 = '' OR queue = $2) ORDER BY queue`

const noteSQL pg.SQL = `
UPDATE @schema@.dlq_groups g SET note = $3, noted_by = $4, noted_at = CASE WHEN $3 = '' THEN NULL ELSE clock_timestamp() END
FROM @schema@.dlq_queues q WHERE g.id = $2 AND q.id = g.queue_id AND q.vhost = $1 RETURNING q.queue`

// MaxGroups is the most groups of one request.
const MaxGroups = 10_000

// ErrNoGroup says that there is no such group in the index.
var ErrNoGroup = errors.New("there is no such group; see `surefoot dlq groups`")

// GroupsRequest says which groups to list.
type GroupsRequest struct {
	// Queue is the work queue, or its dead-letter queue. Default: all of the vhost.
	Queue string
	// Limit is the most groups, the largest first. Default: 100; at most [MaxGroups].
	Limit int
}

// FailureGroup is what has one cause, by the index: its texts come from messages.
type FailureGroup struct {
	// ID is for [DeadLetters.Note].
	ID    int64  `json:"id"`
	Queue string `json:"queue"`
	// Type of the messages; ErrorClass, Fingerprint of the failure; ErrorType and ErrorMessage are those of an example.
	Type         string `json:"type"`
	ErrorClass   string `json:"error_class"`
	Fingerprint  string `json:"fingerprint"`
	ErrorType    string `json:"error_type"`
	ErrorMessage string `json:"error_message"`
	// Version of the handler that failed last.
	Version string `json:"version"`
	// Messages that are there; Copies of them, which is more when a crash left some twice.
	Messages int `json:"messages"`
	Copies   int `json:"copies"`
	// FirstDead and LastDead of those that are there; FirstSeen of the whole group, ever.
	FirstDead time.Time `json:"first_dead"`
	LastDead  time.Time `json:"last_dead"`
	FirstSeen time.Time `json:"first_seen"`
	// LastHour and HourBefore are how many of these died in the last hour, and in the one before.
	LastHour   int `json:"last_hour"`
	HourBefore int `json:"hour_before"`
	// Note, who wrote it and when.
	Note    string     `json:"note,omitempty"`
	NotedBy string     `json:"noted_by,omitempty"`
	NotedAt *time.Time `json:"noted_at,omitempty"`
}

// Scanned is how far the index of a queue is in line with it.
type Scanned struct {
	Queue string `json:"queue"`
	// At is when a scan last saw the whole queue; nil: never.
	At *time.Time `json:"scanned_at"`
	// Note says why a later scan did not.
	Note string `json:"note,omitempty"`

	id int32
}

// Groups reads the index, the largest groups first. It never looks into a queue.
func (d *DeadLetters) Groups(ctx context.Context, r GroupsRequest) (groups []FailureGroup, scanned []Scanned, err error) {
	if r.Limit == 0 {
		r.Limit = 100
	}
	if r.Limit < 1 || r.Limit > MaxGroups {
		return nil, nil, fmt.Errorf("%w: list 1 to %d groups", ErrBadRequest, MaxGroups)
	}
	queue := strings.TrimSuffix(r.Queue, Suffix)
	rows, _ := d.opts.Pool.Query(ctx, scannedSQL.In(d.opts.Schema), d.vhost(), queue) // its error is that of the rows
	scanned, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Scanned, err error) {
		err = row.Scan(&s.id, &s.Queue, &s.At, &s.Note)
		return s, err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read scans of dead letters: %w", err)
	}
	ids := make([]int32, len(scanned))
	for i, s := range scanned {
		ids[i] = s.id
	}
	rows, _ = d.opts.Pool.Query(ctx, groupsSQL.In(d.opts.Schema), ids, r.Limit)
	if groups, err = pgx.CollectRows(rows, pgx.RowToStructByPos[FailureGroup]); err != nil {
		return nil, nil, fmt.Errorf("group dead letters: %w", err)
	}
	return groups, scanned, nil
}

// NoteRequest says what to note on a group.
type NoteRequest struct {
	// Group is a [FailureGroup.ID].
	Group int64
	// Text of at most 1000 bytes, one line; empty removes the note.
	Text string
	// Who notes, for the audit. Required.
	Who string
}

// Note writes on a group what is known of it, for whoever comes next. It replaces the note before it; all are in the audit.
func (d *DeadLetters) Note(ctx context.Context, r NoteRequest) error {
	if r.Who == "" || len(r.Text) > maxReason || !audit.IsPlain(r.Text) {
		return fmt.Errorf("%w: a note needs who writes it, and at most %d bytes of plain text", ErrBadRequest, maxReason)
	}
	err := pgx.BeginFunc(ctx, d.opts.Pool, func(tx pgx.Tx) error {
		var queue string
		if err := tx.QueryRow(ctx, noteSQL.In(d.opts.Schema), d.vhost(), r.Group, r.Text, r.Who).Scan(&queue); err != nil {
			if errors.Is(err, pgx.ErrNoRows) {
				return ErrNoGroup
			}
			return err
		}
		op := d.operation(r.Who, "dlq note", DLQ(queue), r.Text)
		return audit.Write(ctx, tx, d.opts.Schema, op, audit.Entry{Outcome: "noted", Detail: map[string]any{"group": r.Group}})
	})
	if err != nil {
		return fmt.Errorf("note on group %d: %w", r.Group, err)
	}
	return nil
}

const beforeSQL pg.SQL = `
SELECT l.key, g.class, g.fingerprint, g.error_message, l.previous_version, l.previous_died_at
FROM @schema@.dlq_letters l JOIN @schema@.dlq_groups g ON g.id = l.previous_group
WHERE l.queue_id = $1 AND l.key = ANY($2)`

// Earlier is the failure for which a message was redriven the last time, by the index.
type Earlier struct {
	ErrorClass  string `json:"error_class"`
	Fingerprint string `json:"fingerprint"`
	// ErrorMessage is an example of the group.
	ErrorMessage string        `json:"error_message"`
	Version      string        `json:"version"`
	DiedAt       message.Stamp `json:"died_at"`
	// Same says that it has failed for the same cause again.
	Same bool `json:"same"`
}

// earlier fills in what the index knows of the time before the last redrive. Without it a look is no less complete.
func (d *DeadLetters) earlier(ctx context.Context, queue string, letters []Letter) error {
	at := map[[16]byte][]int{}
	keys := make([][16]byte, 0, len(letters))
	for i := range letters {
		if letters[i].Redrives > 0 {
			keys = append(keys, letters[i].key)
			at[letters[i].key] = append(at[letters[i].key], i)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	id, err := d.index.Queue(ctx, d.vhost(), queue)
	if err != nil {
		return err
	}
	var key [16]byte
	var e Earlier
	rows, _ := d.opts.Pool.Query(ctx, beforeSQL.In(d.opts.Schema), id, keys)
	_, err = pgx.ForEachRow(rows, []any{&key, &e.ErrorClass, &e.Fingerprint, &e.ErrorMessage, &e.Version, &e.DiedAt.Time}, func() error {
		for _, i := range at[key] {
			told := e
			told.Same = told.Fingerprint == letters[i].Fingerprint
			letters[i].Earlier = &told
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the index of dead letters: %w", err)
	}
	return nil
}
