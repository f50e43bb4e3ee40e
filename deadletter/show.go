package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
)

// Bounds of a look.
const (
	// MaxShow is the most letters of one look.
	MaxShow = 1000
	// MaxPreview is the most bytes of a body in one look.
	MaxPreview = 16 << 20
	// maxShown bounds all previews of a look together, in bytes.
	maxShown = 64 << 20
)

// ShowRequest says what to look at.
type ShowRequest struct {
	// Queue is the work queue, or its dead-letter queue. Required.
	Queue string
	// Filter chooses letters. Default: all.
	Filter Filter
	// Limit is the most letters, oldest first. Default: 10; at most [MaxShow].
	Limit int
	// Preview is the most bytes of each body. Default: 512; negative: none; at most [MaxPreview].
	Preview int
	// Who looks, for the lock. Required.
	Who string
	// Wait and Waiting are as in [Common].
	Wait    time.Duration
	Waiting func(Holder)
}

// Letter is a dead letter as it lies there. Every text in it comes from outside: escape it before it is shown.
type Letter struct {
	// Position in the queue, from 1, the oldest first.
	Position      int           `json:"position"`
	ID            string        `json:"id"`
	Type          string        `json:"type"`
	Key           string        `json:"key,omitempty"`
	Source        string        `json:"source,omitempty"`
	CorrelationID string        `json:"correlation_id,omitempty"`
	CausationID   string        `json:"causation_id,omitempty"`
	RequestID     string        `json:"request_id,omitempty"`
	TraceParent   string        `json:"traceparent,omitempty"`
	OccurredAt    message.Stamp `json:"occurred_at,omitzero"`
	Attempts      int           `json:"attempts"`
	Exchange      string        `json:"origin_exchange,omitempty"`
	RoutingKey    string        `json:"origin_routing_key,omitempty"`
	OriginQueue   string        `json:"origin_queue,omitempty"`
	// ErrorClass is the record's, or for a letter without one the broker's reason.
	ErrorClass string `json:"error_class"`
	// Fingerprint of the failure, or of the broker's reason; see [FailureGroup].
	Fingerprint string `json:"fingerprint"`
	// DiedAt is when it failed last, else when the broker dead-lettered it.
	DiedAt message.Stamp `json:"died_at,omitzero"`
	// Failure is the record of the failure; nil when there is none.
	Failure *FailureRecord `json:"failure"`
	// Death is the broker's record; nil unless the broker dead-lettered it itself.
	Death *Death `json:"death"`
	// Redrives before, the time of the last one and its run.
	Redrives   int64         `json:"redrives"`
	RedrivenAt message.Stamp `json:"redriven_at,omitzero"`
	RedriveRun string        `json:"redrive_run,omitempty"`
	// Earlier is the failure before the last redrive; nil when there is none, or the index does not know.
	Earlier *Earlier `json:"earlier,omitempty"`
	// Headers are all of them, bounded; UserHeaders those that neither Surefoot nor the broker wrote.
	Headers     map[string]any `json:"headers"`
	UserHeaders map[string]any `json:"-"`
	ContentType string         `json:"content_type"`
	// Size of the body in bytes; Payload is its beginning.
	Size    int     `json:"size"`
	Payload Payload `json:"payload"`

	key [16]byte
}

// FailureRecord is a [message.Failure] for output.
type FailureRecord struct {
	Class   string `json:"class"`
	Type    string `json:"type"`
	Message string `json:"message"`
	// Stack of a panic; of a program's failure Stderr instead, the end of what it wrote to standard error, and of an HTTP endpoint's
	// Response, the beginning of what it answered.
	Stack         string          `json:"stack,omitempty"`
	Stderr        string          `json:"stderr,omitempty"`
	Response      string          `json:"response,omitempty"`
	Fingerprint   string          `json:"fingerprint"`
	FirstFailedAt message.Stamp   `json:"first_failed_at,omitzero"`
	LastFailedAt  message.Stamp   `json:"last_failed_at,omitzero"`
	Host          string          `json:"host"`
	Version       string          `json:"version"`
	Log           []AttemptRecord `json:"attempt_log"`
}

// AttemptRecord is a [message.Attempt] for output.
type AttemptRecord struct {
	Number  int           `json:"number"`
	At      message.Stamp `json:"at,omitzero"`
	Class   string        `json:"class"`
	Type    string        `json:"type"`
	Message string        `json:"message"`
	Host    string        `json:"host"`
}

// Show looks at letters, oldest first, without changing anything. It fails with a *LockedError while another
// operation has the queue.
func (d *DeadLetters) Show(ctx context.Context, r ShowRequest) ([]Letter, error) {
	r = r.withDefaults()
	n, err := namesOf(r.Queue)
	if err = errors.Join(err, r.validate()); err != nil {
		return nil, err
	}
	letters := []Letter{}
	choose := newChooser(r.Filter, n, true, "")
	c := claim{who: r.Who, action: "dlq show", wait: r.Wait, waiting: r.Waiting}
	err = d.connected(ctx, n, c, func(ctx context.Context, conn *rabbit.Conn, _ *lock) error {
		position, shown := 0, 0
		return d.look(ctx, conn, n, r.Limit, !r.Filter.isZero(), func(delivery *amqp.Delivery) bool {
			position++
			f := factsOf(delivery, n)
			if choose.matches(&f, delivery.Body) {
				l := letterOf(delivery, &f, position, min(r.Preview, maxShown-shown))
				shown += len(l.Payload.bytes)
				letters = append(letters, l)
			}
			return len(letters) < r.Limit && (len(choose.ids) == 0 || len(letters) < len(choose.ids))
		})
	})
	if err == nil {
		if err := d.earlier(ctx, n.work, letters); err != nil {
			d.opts.Logger.Warn().Err(err).Msg("the failures before the last redrive are not shown")
		}
	}
	return letters, err
}

// look visits letters from the head, until visit says that it has seen enough, and gives all of them back. Without a search it
// takes no more than limit: whatever it takes, others do not see meanwhile.
func (d *DeadLetters) look(ctx context.Context, conn *rabbit.Conn, n names, limit int, search bool, visit func(*amqp.Delivery) bool) error {
	found, err := inspect(ctx, conn, n.dlq)
	if err != nil {
		return missing(err, n.dlq, ErrNoDLQ)
	}
	if found.Messages == 0 {
		return nil
	}
	need := found.Messages
	if !search {
		need = min(limit, need)
	}
	w, err := d.openWalker(ctx, conn, n.dlq, 0, need)
	if err != nil {
		return err
	}
	return errors.Join(w.each(ctx, need, visit), w.close(ctx))
}

func (f *Filter) isZero() bool {
	return f.Type == "" && f.ErrorClass == "" && f.Fingerprint == "" && len(f.Where) == 0 && f.ErrorContains == "" && len(f.IDs) == 0 && f.Since.IsZero()
}

func (r ShowRequest) withDefaults() ShowRequest {
	r.Limit = cmp.Or(r.Limit, 10)
	r.Preview = cmp.Or(r.Preview, 512)
	r.Preview = max(r.Preview, 0)
	return r
}

func (r *ShowRequest) validate() error {
	switch {
	case r.Who == "":
		return fmt.Errorf("%w: Who is empty; the lock needs to know who looks", ErrBadRequest)
	case r.Limit < 1 || r.Limit > MaxShow:
		return fmt.Errorf("%w: show 1 to %d messages at once", ErrBadRequest, MaxShow)
	case r.Preview > MaxPreview:
		return fmt.Errorf("%w: show at most %d bytes of a body", ErrBadRequest, MaxPreview)
	case r.Wait < 0:
		return fmt.Errorf("%w: Wait is negative", ErrBadRequest)
	}
	return r.Filter.validate()
}

func letterOf(d *amqp.Delivery, f *facts, position, preview int) Letter {
	m := message.FromDelivery(d)
	l := Letter{
		Position: position, ID: m.ID, Type: m.Type, Key: m.Key, Source: m.Source,
		CorrelationID: m.CorrelationID, CausationID: m.CausationID, RequestID: m.RequestID, TraceParent: m.TraceParent,
		OccurredAt: message.Stamp{Time: m.OccurredAt}, Attempts: m.Attempts,
		Exchange: f.origin.Exchange, RoutingKey: f.origin.RoutingKey, OriginQueue: f.origin.Queue,
		ErrorClass: f.class, Fingerprint: f.fingerprint(), key: f.key, DiedAt: message.Stamp{Time: f.diedAt}, Death: f.death,
		Redrives: f.redrives, RedrivenAt: message.Stamp{Time: message.Time(d.Headers, message.HeaderReprocess)}, RedriveRun: f.run,
		Headers: shownTable(d.Headers, 0), UserHeaders: shownTable(amqp.Table(m.Headers), 0), ContentType: d.ContentType, Size: len(d.Body), Payload: previewOf(d.Body, preview),
	}
	if record := message.FailureOf(d.Headers); record.Class != "" || record.Message != "" {
		l.Failure = recordOf(record)
	}
	return l
}

func recordOf(f message.Failure) *FailureRecord {
	r := &FailureRecord{
		Class: f.Class, Type: f.Type, Message: f.Message, Stack: f.Stack, Fingerprint: f.Fingerprint,
		FirstFailedAt: message.Stamp{Time: f.FirstFailedAt}, LastFailedAt: message.Stamp{Time: f.LastFailedAt}, Host: f.Host, Version: f.Version,
		Log: make([]AttemptRecord, len(f.Log)),
	}
	switch {
	case f.OfProgram():
		r.Stack, r.Stderr = "", f.Stack
	case f.OfEndpoint():
		r.Stack, r.Response = "", f.Stack
	}
	for i, a := range f.Log {
		r.Log[i] = AttemptRecord{
			Number: a.Number, At: message.Stamp{Time: a.At}, Class: a.Class, Type: a.Type, Message: a.Message, Host: a.Host,
		}
	}
	return r
}
