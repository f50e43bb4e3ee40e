package timeline

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	lettersSQL pg.SQL = `
SELECT q.vhost, q.queue, g.type, g.class, g.error_message, l.died_at, l.dated, l.version, l.redrives, l.redrive_run, l.copies, l.gone_at, l.gone,
       p.class, p.error_message, l.previous_died_at,
       CASE WHEN l.gone_at IS NULL THEN (SELECT coalesce(sum(copies), 0) FROM @schema@.dlq_letters WHERE queue_id = q.id AND gone_at IS NULL) ELSE 0 END
FROM @schema@.dlq_queues q
CROSS JOIN LATERAL (SELECT * FROM @schema@.dlq_letters WHERE queue_id = q.id AND key = @schema@.inbox_key($1) AND message_id = $1) l
JOIN @schema@.dlq_groups g ON g.id = l.group_id LEFT JOIN @schema@.dlq_groups p ON p.id = l.previous_group ORDER BY q.vhost, q.queue`

	runsSQL pg.SQL = `
SELECT r.id, r.queue, r.state, r.created_at, r.started_at, r.who, r.note, l.state, l.reason, l.wave
FROM @schema@.dlq_run_letters l JOIN @schema@.dlq_runs r ON r.id = l.run
WHERE l.key = @schema@.inbox_key($1) AND l.message_id = $1 AND r.state <> 'planned' ORDER BY r.created_at LIMIT 100`

	// The envelope is left out when it is too large to be worth reading for its failure record.
	historyOfArchiveSQL pg.SQL = `
SELECT operation, queue, type, at, who, reason, restored_at, CASE WHEN octet_length(envelope) <= 1000000 THEN envelope END
FROM @schema@.dlq_archive WHERE message_id = $1 ORDER BY id LIMIT 100`

	editsSQL pg.SQL = `
SELECT operation, queue, old_id, new_id, at, who, reason FROM @schema@.dlq_edits WHERE old_id = $1
UNION ALL SELECT operation, queue, old_id, new_id, at, who, reason FROM @schema@.dlq_edits WHERE new_id = $1 ORDER BY 5 LIMIT 100`
)

// letterRow is a row of the index.
type letterRow struct {
	VHost, Queue, Type, Class, Example string
	DiedAt                             time.Time
	Dated                              bool
	Version                            string
	Redrives                           int
	Run                                uuid.NullUUID
	Copies                             int
	GoneAt                             *time.Time
	Gone                               string
	EarlierClass, EarlierExample       *string
	EarlierAt                          *time.Time
	Depth                              int
}

func (r *reader) letters(ctx context.Context) error {
	rows, _ := r.tx.Query(ctx, lettersSQL.In(r.schema), r.t.ID)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[letterRow])
	if err != nil {
		return fmt.Errorf("read the index of dead letters: %w", err)
	}
	for i := range found {
		r.t.letter(&found[i])
	}
	return nil
}

func (t *Timeline) letter(l *letterRow) {
	t.left = true
	if t.Type == "" {
		t.Type = l.Type
	}
	if l.EarlierAt != nil {
		detail := "of the failure before the last redrive the index keeps no more"
		if l.EarlierClass != nil {
			detail = *l.EarlierClass + ", like: " + *l.EarlierExample
		}
		t.add(Step{At: message.Stamp{Time: *l.EarlierAt}, Store: StoreIndex, What: "died", Queue: l.Queue, Detail: detail, Failed: true})
	}
	died := Step{Store: StoreIndex, What: "died", Queue: l.Queue, Detail: l.Class + ", like: " + l.Example, Operation: l.Run, Failed: true}
	if died.At = (message.Stamp{Time: l.DiedAt}); !l.Dated {
		died.What, died.Detail = "seen dead", died.Detail+" (when it died is not known)"
	}
	if l.Redrives > 0 {
		died.Detail += fmt.Sprintf("; redriven %s before", times(l.Redrives))
	}
	t.add(died)
	if l.GoneAt == nil {
		t.settled[l.Queue] = true
		t.Letters = append(t.Letters, Letter{VHost: l.VHost, Queue: l.Queue, Depth: l.Depth})
		copies := ""
		if l.Copies > 1 {
			copies = fmt.Sprintf(", %d copies", l.Copies)
		}
		t.place("in %s.dlq%s", l.Queue, copies)
		return
	}
	gone := Step{At: message.Stamp{Time: *l.GoneAt}, Store: StoreIndex, What: "left the dead-letter queue", Queue: l.Queue, Detail: l.Gone}
	if l.Gone == "vanished" {
		gone.Detail = "vanished: taken by something else than these tools"
	}
	t.add(gone)
}

func (r *reader) runs(ctx context.Context) error {
	rows, _ := r.tx.Query(ctx, runsSQL.In(r.schema), r.t.ID)
	var id uuid.UUID
	var queue, state, who, note, letter, reason string
	var created time.Time
	var started *time.Time
	var wave int
	_, err := pgx.ForEachRow(rows, []any{&id, &queue, &state, &created, &started, &who, &note, &letter, &reason, &wave}, func() error {
		r.t.left = true
		s := Step{At: message.Stamp{Time: created}, Store: StoreRun, Queue: queue, Operation: uuid.NullUUID{UUID: id, Valid: true}, Who: who}
		if started != nil {
			s.At = message.Stamp{Time: *started}
		}
		s.What, s.Detail = "in a redrive", fmt.Sprintf("run is %s, the message %s", state, letter)
		if wave > 0 {
			s.Detail += fmt.Sprintf(", wave %d", wave)
		}
		if reason != "" {
			s.Detail += ": " + reason
		}
		s.Failed = letter == "failed" || letter == "missing" || letter == "left"
		live := state == "running" || state == "paused" || state == "stopped"
		if live && letter != "ineligible" {
			s.Detail += "; it belongs to the run until that is done or cancelled"
		}
		if letter == "moved" && !r.t.settled[queue] { // what became of it is written into the run only when somebody looks at that
			r.t.place("sent to %s by run %s: neither processed nor dead again, as far as is known", queue, id)
		}
		r.t.add(s)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read runs: %w", err)
	}
	return nil
}

func (r *reader) archive(ctx context.Context) error {
	rows, _ := r.tx.Query(ctx, historyOfArchiveSQL.In(r.schema), r.t.ID)
	var operation uuid.UUID
	var queue, typ, who, reason string
	var at time.Time
	var restored *time.Time
	var envelope []byte
	_, err := pgx.ForEachRow(rows, []any{&operation, &queue, &typ, &at, &who, &reason, &restored, &envelope}, func() error {
		r.t.left = true
		if r.t.Type == "" {
			r.t.Type = typ
		}
		s := Step{At: message.Stamp{Time: at}, Store: StoreArchive, What: "archived", Detail: reason, Queue: queue, Who: who, Operation: uuid.NullUUID{UUID: operation, Valid: true}}
		r.t.add(s)
		if restored != nil {
			r.t.add(Step{At: message.Stamp{Time: *restored}, Store: StoreArchive, What: "restored", Queue: queue})
		} else {
			r.t.place("in the archive of %s, restorable until %s", queue, at.Add(deadletter.ArchiveRetention).UTC().Format(time.RFC3339))
		}
		r.t.attempts(queue, attemptsOf(envelope))
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	return nil
}

// attemptsOf reads the failure record of an archived message, whose headers are written as deadletter.Record says. What cannot be read
// has none.
func attemptsOf(envelope []byte) []message.Attempt {
	var record struct {
		Headers []archivedField `json:"headers"`
	}
	if json.Unmarshal(envelope, &record) != nil {
		return nil
	}
	log := slices.IndexFunc(record.Headers, func(f archivedField) bool { return f.Name == message.HeaderAttemptLog })
	if log < 0 {
		return nil
	}
	return message.FailureOf(amqp.Table{message.HeaderAttemptLog: record.Headers[log].value(0)}).Log
}

// archivedField is a header in the archive, or an entry of one. A name that is no text is of nobody's interest here.
type archivedField struct {
	Name  any             `json:"name"`
	Type  string          `json:"type"`
	Value json.RawMessage `json:"value"`
}

// attemptDepth is that of an attempt's fields: a list of tables of values.
const attemptDepth = 3

func (f *archivedField) value(depth int) any {
	var text string
	var number int64
	var fields []archivedField
	switch {
	case depth > attemptDepth:
	case f.Type == "string" && json.Unmarshal(f.Value, &text) == nil:
		return text
	case strings.HasPrefix(f.Type, "int") && json.Unmarshal(f.Value, &number) == nil:
		return number
	case f.Type == "list" && json.Unmarshal(f.Value, &fields) == nil:
		list := make([]any, len(fields))
		for i := range fields {
			list[i] = fields[i].value(depth + 1)
		}
		return list
	case f.Type == "table" && json.Unmarshal(f.Value, &fields) == nil:
		table := amqp.Table{}
		for i := range fields {
			if name, ok := fields[i].Name.(string); ok {
				table[name] = fields[i].value(depth + 1)
			}
		}
		return table
	}
	return nil
}

func (r *reader) edits(ctx context.Context) error {
	rows, _ := r.tx.Query(ctx, editsSQL.In(r.schema), r.t.ID)
	var operation uuid.UUID
	var queue, oldID, newID, who, reason string
	var at time.Time
	_, err := pgx.ForEachRow(rows, []any{&operation, &queue, &oldID, &newID, &at, &who, &reason}, func() error {
		r.t.left = true
		s := Step{At: message.Stamp{Time: at}, Store: StoreEdit, Queue: queue, Who: who, Operation: uuid.NullUUID{UUID: operation, Valid: true}}
		if oldID == r.t.ID {
			s.What, s.Detail = "replaced", "by "+newID+": "+reason
			r.t.place("replaced by %s", newID)
			r.t.Links = append(r.t.Links, Link{Relation: "edited to", ID: newID})
		} else {
			s.What, s.Detail = "made by an edit", "from "+oldID+": "+reason
			r.t.Links = append(r.t.Links, Link{Relation: "edited from", ID: oldID})
		}
		r.t.add(s)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read edits: %w", err)
	}
	return nil
}
