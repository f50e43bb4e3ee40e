package deadletter

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/dlqindex"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
)

// ExportRequest says what to export.
type ExportRequest struct {
	// Queue is the work queue, or its dead-letter queue. Required.
	Queue string
	// Filter chooses letters. Default: all.
	Filter Filter
	// Who looks, for the lock. Required.
	Who string
	// Wait and Waiting are as in [Common].
	Wait    time.Duration
	Waiting func(Holder)
	// Write takes each record, the oldest first; an error ends the export. Required.
	Write func(Record) error
}

// Export hands out the chosen letters whole, and changes nothing. It returns how many. The queue's other users wait meanwhile.
// Memory is bounded however many there are.
func (d *DeadLetters) Export(ctx context.Context, r ExportRequest) (count int, err error) {
	n, err := namesOf(r.Queue)
	if err = errors.Join(err, r.Filter.validate()); err != nil {
		return 0, err
	}
	if r.Who == "" {
		return 0, fmt.Errorf("%w: Who is empty; the lock needs to know who looks", ErrBadRequest)
	}
	choose := newChooser(r.Filter, n, true, "")
	c := claim{who: r.Who, action: "dlq export", wait: r.Wait, waiting: r.Waiting}
	err = d.connected(ctx, n, c, func(ctx context.Context, conn *rabbit.Conn, _ *lock) error {
		var failed error
		err := d.lookAll(ctx, conn, n, func(delivery *amqp.Delivery) bool {
			if f := factsOf(delivery, n); !choose.matches(&f, delivery.Body) {
				return true
			}
			record, err := recordOfLetter(delivery, n.work, true)
			if err == nil {
				err = r.Write(record)
			}
			if err != nil {
				failed = err
				return false
			}
			count++
			return true
		})
		return errors.Join(failed, err)
	})
	return count, err
}

// lookAll visits all that is there now.
func (d *DeadLetters) lookAll(ctx context.Context, conn *rabbit.Conn, n names, visit func(*amqp.Delivery) bool) error {
	q, err := inspect(ctx, conn, n.dlq)
	if err != nil || q.Messages == 0 {
		return missing(err, n.dlq, ErrNoDLQ)
	}
	w, err := d.openWalker(ctx, conn, n.dlq, 0, q.Messages)
	if err != nil {
		return err
	}
	return errors.Join(w.each(ctx, q.Messages, visit), w.close(ctx))
}

// MaxRecord is the longest line of an import, in bytes.
const MaxRecord = 256 << 20

// RecordError says which line of an import is wrong.
type RecordError struct {
	Line int
	Err  error
}

// Error implements error.
func (e *RecordError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Err) }

// Unwrap returns the cause.
func (e *RecordError) Unwrap() error { return e.Err }

// ImportRequest says what to put into dead-letter queues.
type ImportRequest struct {
	// Open returns the records, one JSON object a line, as Export wrote them. It is called twice: all are checked before the
	// first is sent. Required.
	Open func() (io.ReadCloser, error)
	// Queue is the work queue into whose dead-letter queue all go. Default: that of each record.
	Queue string
	// DryRun only checks and counts. Default: false.
	DryRun bool
	// Who acts, and why, for the audit. Who is required.
	Who, Reason string
	// Confirm is asked before anything is sent, with how many go where. Default: nobody is asked.
	Confirm func(ctx context.Context, counts map[string]int) error
	// Progress is told of each batch that is there. Default: nobody is told.
	Progress func(done int)
}

// Import puts exported letters into dead-letter queues, behind what is there: the same messages under the same ids, without what the
// broker owns. One that is there already is then there twice.
func (d *DeadLetters) Import(ctx context.Context, r ImportRequest) (result Returned, err error) {
	if r.Who == "" || len(r.Reason) > maxReason || !audit.IsPlain(r.Reason) {
		return result, fmt.Errorf("%w: an import needs who acts, and a reason of at most %d bytes of plain text", ErrBadRequest, maxReason)
	}
	counts := map[string]int{}
	if err := r.each(func(n names, _ *amqp.Publishing) error { counts[n.work]++; result.Found++; return nil }); err != nil {
		return result, err
	}
	op := d.operation(r.Who, "dlq import", strings.Join(slices.Sorted(maps.Keys(counts)), " "), r.Reason)
	result.Operation, result.DryRun = op.ID, r.DryRun
	if err := d.exist(ctx, counts); err != nil {
		return result, err
	}
	if r.DryRun || result.Found == 0 {
		return result, nil
	}
	if r.Confirm != nil {
		if err := r.Confirm(ctx, counts); err != nil {
			return result, err
		}
	}
	done := func(tokens []any) error {
		if err := d.imported(ctx, op, tokens); err != nil {
			return err
		}
		result.Done += len(tokens)
		if r.Progress != nil {
			r.Progress(result.Done)
		}
		return nil
	}
	err = d.returned(ctx, op, result.Found, done, func(ctx context.Context, s *sender) error {
		return r.each(func(n names, p *amqp.Publishing) error {
			return s.send(ctx, n.dlq, *p, imported{n.work, entryOf(p, n)})
		})
	})
	return result, err
}

// imported is a message that is on its way into a dead-letter queue.
type imported struct {
	queue string
	entry dlqindex.Entry
}

func entryOf(p *amqp.Publishing, n names) dlqindex.Entry {
	d := amqp.Delivery{
		MessageId: p.MessageId, Type: p.Type, AppId: p.AppId, CorrelationId: p.CorrelationId, Timestamp: p.Timestamp, Headers: p.Headers, Body: p.Body,
	}
	f := factsOf(&d, n)
	return entryOfFacts(&d, &f)
}

func entryOfFacts(d *amqp.Delivery, f *facts) dlqindex.Entry { return dlqindex.Of(f.indexed(d)) }

// imported records messages that are there, and tells the index, which can do without.
func (d *DeadLetters) imported(ctx context.Context, op audit.Operation, tokens []any) error {
	entries, byQueue := make([]audit.Entry, len(tokens)), map[string][]dlqindex.Entry{}
	for i, t := range tokens {
		m := t.(imported)
		entries[i] = audit.Entry{MessageID: orNone(m.entry.MessageID), Outcome: "imported", Detail: map[string]any{"type": m.entry.Type, "queue": m.queue}}
		byQueue[m.queue] = append(byQueue[m.queue], m.entry)
	}
	if err := d.recordReturned(ctx, op, entries, func(pgx.Tx) error { return nil }); err != nil {
		return err
	}
	for queue, indexed := range byQueue {
		id, err := d.index.Queue(ctx, d.vhost(), queue)
		if err == nil {
			err = d.index.Died(ctx, id, indexed)
		}
		if err != nil {
			d.opts.Logger.Warn().Err(err).Msg("imported messages not indexed; the next scan adds them")
		}
	}
	return nil
}

// exist makes sure that every dead-letter queue is there.
func (d *DeadLetters) exist(ctx context.Context, queues map[string]int) (err error) {
	if len(queues) == 0 {
		return nil
	}
	conn, err := d.connect(ctx, "dlq")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for queue := range queues {
		if _, err := inspect(ctx, conn, DLQ(queue)); err != nil {
			return missing(err, DLQ(queue), ErrNoDLQ)
		}
	}
	return nil
}

// each reads all records, one at a time.
func (r *ImportRequest) each(visit func(names, *amqp.Publishing) error) (err error) {
	file, err := r.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 64<<10), MaxRecord)
	for at := 1; lines.Scan(); at++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		n, p, err := r.parse(line)
		if err != nil {
			return &RecordError{at, err}
		}
		if err := visit(n, p); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read records: %w", err)
	}
	return nil
}

func (r *ImportRequest) parse(line []byte) (n names, p *amqp.Publishing, err error) {
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	var record Record
	if err := decoder.Decode(&record); err != nil {
		return n, nil, fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	queue := r.Queue
	if queue == "" {
		queue = string(record.Queue)
	}
	if n, err = namesOf(queue); err != nil {
		return n, nil, err
	}
	letter, err := record.delivery()
	if err != nil {
		return n, nil, fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	returned := returning(letter, n)
	if err := sendable(&returned); err != nil {
		return n, nil, fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	return n, &returned, nil
}

// sendable finds at once what most often cannot be sent; the rest is refused when it is.
func sendable(p *amqp.Publishing) error {
	size := message.TableSize(p.Headers)
	for _, text := range []string{p.MessageId, p.Type, p.ContentType, p.ContentEncoding, p.CorrelationId, p.ReplyTo, p.AppId} {
		if size += len(text); len(text) > message.MaxShortString {
			return fmt.Errorf("a property has %d bytes, more than the limit of %d", len(text), message.MaxShortString)
		}
	}
	for name := range p.Headers {
		if name == "" || len(name) > message.MaxShortString {
			return fmt.Errorf("the name of a header has %d bytes; it may have 1 to %d", len(name), message.MaxShortString)
		}
	}
	if size > maxFrame {
		return fmt.Errorf("headers and properties take %d bytes, more than the limit of %d", size, maxFrame)
	}
	return nil
}

// maxFrame is RabbitMQ's default, less what stands beside headers and properties.
const maxFrame = 131_000

// OperationOf reads an operation's id.
func OperationOf(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return id, fmt.Errorf("%w: %q is not the id of an operation", ErrBadRequest, text)
	}
	return id, nil
}
