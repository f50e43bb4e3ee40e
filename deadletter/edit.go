package deadletter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
)

// HeaderEditedFrom is the id of the message that an edited one replaces.
const HeaderEditedFrom = "sf-edited-from"

var (
	// ErrNoLetter says that no message of that id is in the dead-letter queue.
	ErrNoLetter = errors.New("no message of that id is in the dead-letter queue")
	// ErrProcessed says that a message was processed already, or that this is not known any more.
	ErrProcessed = errors.New("the message may have been processed already")
)

const (
	editedSQL pg.SQL = `
INSERT INTO @schema@.dlq_edits (operation, vhost, queue, old_id, new_id, who, reason, diff) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`

	ageEditsSQL pg.SQL = `
DELETE FROM @schema@.dlq_edits WHERE operation IN (
    SELECT operation FROM @schema@.dlq_edits WHERE at < clock_timestamp() - $1::interval ORDER BY at LIMIT $2)`
)

// EditRequest says which message to change, and how.
type EditRequest struct {
	// Queue is the work queue, or its dead-letter queue. Required.
	Queue string
	// ID of the message. Required.
	ID string
	// Body replaces that of the message. Default: nil, it stays.
	Body []byte
	// SetHeaders sets headers of the user, as text; RemoveHeaders removes some. Default: none.
	SetHeaders    map[string]string
	RemoveHeaders []string
	// AllowReprocess also takes a message that was processed, or of which that is not known. Default: false.
	AllowReprocess bool
	// DryRun only compares. Default: false.
	DryRun bool
	// Who acts and why, for the audit. Required.
	Who, Reason string
	// Wait and Waiting are as in [Common].
	Wait    time.Duration
	Waiting func(Holder)
	// Confirm is asked before anything is changed. Default: nobody is asked.
	Confirm func(context.Context, Edit) error
}

// Edit is a message that was changed and sent to work.
type Edit struct {
	Operation uuid.UUID `json:"operation"`
	Queue     string    `json:"queue"`
	DryRun    bool      `json:"dry_run"`
	// OldID is that of the dead letter, NewID that of the message which replaces it: the same change of the same message has the same.
	OldID string   `json:"old_id"`
	NewID string   `json:"new_id"`
	Diff  []Change `json:"diff"`
}

func (r *EditRequest) validate() error {
	switch {
	case r.Who == "" || r.ID == "" || len(r.ID) > message.MaxShortString:
		return fmt.Errorf("%w: an edit needs who acts, and the id of a message", ErrBadRequest)
	case r.Reason == "" || len(r.Reason) > maxReason || !audit.IsPlain(r.Reason):
		return fmt.Errorf("%w: an edit needs a reason, of at most %d bytes of plain text", ErrBadRequest, maxReason)
	case r.Body == nil && len(r.SetHeaders) == 0 && len(r.RemoveHeaders) == 0:
		return fmt.Errorf("%w: an edit changes the body or a header", ErrBadRequest)
	}
	for _, name := range append(slices.Collect(maps.Keys(r.SetHeaders)), r.RemoveHeaders...) {
		if name == "" || len(name) > message.MaxShortString || message.Reserved(name) {
			return fmt.Errorf("%w: the header %q cannot be changed", ErrBadRequest, message.Clip(name, 64))
		}
	}
	return nil
}

// Edit replaces a dead letter by a changed message in its work queue: a new message with an id of its own, which names the old one in
// [HeaderEditedFrom]. The old one goes into the archive, and what differs is kept. The letter leaves only after the broker has confirmed the
// new one and both are recorded; after a crash in between, the same edit sends the same message again, under the same id, which the inbox absorbs.
func (d *DeadLetters) Edit(ctx context.Context, r EditRequest) (Edit, error) {
	r.Reason = strings.TrimSpace(r.Reason)
	n, err := namesOf(r.Queue)
	if err = errors.Join(err, r.validate()); err != nil {
		return Edit{}, err
	}
	e := &editor{d: d, request: r, names: n, op: d.operation(r.Who, "dlq edit", n.dlq, r.Reason)}
	e.edit = Edit{Operation: e.op.ID, Queue: n.work, DryRun: r.DryRun, OldID: r.ID, Diff: []Change{}}
	c := claim{who: r.Who, action: "dlq edit", wait: r.Wait, waiting: r.Waiting}
	err = d.connected(ctx, n, c, func(ctx context.Context, conn *rabbit.Conn, _ *lock) error { return e.run(ctx, conn) })
	return e.edit, err
}

// editor is one edit under the queue's lock.
type editor struct {
	d       *DeadLetters
	request EditRequest
	names   names
	op      audit.Operation
	edit    Edit
	letter  *amqp.Delivery
	facts   facts
}

func (e *editor) run(ctx context.Context, conn *rabbit.Conn) (err error) {
	if _, err := inspect(ctx, conn, e.names.work); err != nil {
		return missing(err, e.names.work, ErrNoQueue)
	}
	found, err := inspect(ctx, conn, e.names.dlq)
	if err != nil {
		return missing(err, e.names.dlq, ErrNoDLQ)
	}
	if found.Messages == 0 {
		return ErrNoLetter
	}
	w, err := e.d.openWalker(ctx, conn, e.names.dlq, 0, found.Messages)
	if err != nil {
		return err
	}
	err = w.each(ctx, found.Messages, func(l *amqp.Delivery) bool {
		if l.MessageId == e.request.ID {
			e.letter, e.facts = l, factsOf(l, e.names)
		}
		return e.letter == nil
	})
	if err == nil {
		err = e.change(ctx, w)
	}
	return errors.Join(err, w.close(ctx))
}

func (e *editor) change(ctx context.Context, w *walker) error {
	if e.letter == nil {
		return ErrNoLetter
	}
	if e.facts.misrouted(e.names) {
		return fmt.Errorf("%w: it came from queue %s", ErrBadRequest, message.Clip(e.facts.origin.Queue, 64))
	}
	if err := e.allowed(ctx); err != nil {
		return err
	}
	p := e.changed()
	if e.edit.Diff = compare(e.letter, &p); len(e.edit.Diff) == 0 {
		return fmt.Errorf("%w: nothing differs", ErrBadRequest)
	}
	if e.request.DryRun {
		return nil
	}
	if e.request.Confirm != nil {
		if err := e.request.Confirm(ctx, e.edit); err != nil {
			return err
		}
	}
	recorded := false
	err := e.d.sending(ctx, func([]any) error {
		if err := fault.Point("redrive.after-confirm"); err != nil {
			return err
		}
		if err := e.record(ctx); err != nil {
			return err
		}
		recorded = true
		return nil
	}, func(ctx context.Context, s *sender) error { return s.send(ctx, e.names.work, p, nil) })
	if err != nil || !recorded {
		return errors.Join(err, e.unknown(recorded))
	}
	// The walker holds the letter; it is counted as held until here.
	return w.ack(e.letter.DeliveryTag)
}

func (e *editor) unknown(recorded bool) error {
	if recorded {
		return nil
	}
	return fmt.Errorf("the message is still in %s; do the same edit again: it keeps its id %s", e.names.dlq, e.edit.NewID)
}

// allowed refuses what was processed, what may have been, and what a run has.
func (e *editor) allowed(ctx context.Context) error {
	p := &planner{d: e.d, names: e.names, request: PlanRequest{AllowReprocess: e.request.AllowReprocess}}
	if err := p.memories(ctx); err != nil {
		return err
	}
	keys := []uuid.UUID{e.facts.key}
	handled, err := p.keys(ctx, handledSQL, p.consumers, keys)
	if err != nil {
		return err
	}
	held, err := e.d.holdings(ctx, e.d.opts.Pool, e.names.work, uuid.Nil, keys)
	if err != nil {
		return err
	}
	if run, ok := held.holder(e.facts.key); ok {
		run.Count++
		return &HeldError{*run}
	}
	l := plannedLetter{entry: entryOfFacts(e.letter, &e.facts), outcome: outcomeChosen}
	switch got := p.judge(&l, handled, nil); {
	case got == outcomeProcessed && !e.request.AllowReprocess, got == outcomeExpired:
		return fmt.Errorf("%w: %s", ErrProcessed, got)
	}
	return nil
}

// changed is the message that replaces the letter. Its id comes from the letter and from what has become of it.
func (e *editor) changed() amqp.Publishing {
	p := republishing(e.letter, &e.facts, e.names, e.op.ID.String(), time.Now())
	if e.request.Body != nil {
		p.Body = e.request.Body
	}
	for _, name := range e.request.RemoveHeaders {
		delete(p.Headers, name)
	}
	for name, value := range e.request.SetHeaders {
		p.Headers[name] = value
	}
	p.Headers[HeaderEditedFrom] = e.letter.MessageId
	content := bytes.NewBuffer(bytes.Clone(p.Body))
	for _, name := range slices.Sorted(maps.Keys(p.Headers)) {
		if !message.Reserved(name) {
			fmt.Fprintf(content, "\x00%s\x00%#v", name, p.Headers[name])
		}
	}
	e.edit.NewID = uuid.NewSHA1(e.facts.key, content.Bytes()).String()
	p.MessageId = e.edit.NewID
	return p
}

func (e *editor) record(ctx context.Context) error {
	diff, err := json.Marshal(e.edit.Diff)
	if err != nil {
		return fmt.Errorf("record edit: %w", err)
	}
	detail := map[string]any{"old": storableID(e.edit.OldID), "new": e.edit.NewID, "type": e.facts.typ}
	entries := []audit.Entry{
		{Outcome: "edited", Detail: detail},
		{MessageID: e.edit.OldID, Outcome: "replaced by " + e.edit.NewID, Detail: detail},
		{MessageID: e.edit.NewID, Outcome: "redriven", Detail: detail},
	}
	return e.d.recordReturned(ctx, e.op, entries, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, editedSQL.In(e.d.opts.Schema), e.op.ID, e.d.vhost(), e.names.work, storableID(e.edit.OldID), e.edit.NewID, e.op.Who, e.op.Reason, diff)
		if err != nil {
			return err
		}
		if err := e.d.archive(ctx, tx, e.op, e.names, []*amqp.Delivery{e.letter}); err != nil {
			return err
		}
		return e.d.index.Gone(ctx, tx, e.d.vhost(), e.names.work, "edited", []uuid.UUID{e.facts.key})
	})
}
