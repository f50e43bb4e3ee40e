package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
)

// settlement is what became of one letter. It is written to the audit first; then, with release, the letter is let go.
type settlement struct {
	facts
	outcome outcome
	detail  string
	release bool
	kept    *amqp.Delivery // what goes into the archive; nil: nothing
}

type recordResult struct {
	batch []settlement
	err   error
}

// startRecording writes to the audit, beside the loop, all that has come together while the last batch was written.
func (s *session) startRecording(ctx context.Context) {
	batch := s.settled
	s.settled, s.recording = nil, true
	if s.verb == verbDiscard {
		if err := fault.Point("discard.before-record"); err != nil {
			s.recorded <- recordResult{batch, err}
			return
		}
	}
	go func() {
		defer telemetry.FatalOnPanic(s.d.opts.Logger)
		entries := make([]audit.Entry, len(batch))
		for i := range batch {
			entries[i] = batch[i].entry()
		}
		s.recorded <- recordResult{batch, s.recordBatch(ctx, batch, entries)}
	}()
}

// recordBatch writes to the audit, and in the same transaction tells the index what is about to leave the queue.
func (s *session) recordBatch(ctx context.Context, batch []settlement, entries []audit.Entry) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
	defer cancel()
	var gone []uuid.UUID
	var kept []*amqp.Delivery
	for i := range batch {
		if batch[i].release {
			gone = append(gone, batch[i].key)
		}
		if batch[i].kept != nil {
			kept = append(kept, batch[i].kept)
		}
	}
	err := pgx.BeginFunc(ctx, s.d.opts.Pool, func(tx pgx.Tx) error {
		if err := audit.Write(ctx, tx, s.d.opts.Schema, s.audit, entries...); err != nil {
			return err
		}
		if err := s.d.archive(ctx, tx, s.audit, s.names, kept); err != nil {
			return err
		}
		if s.also != nil {
			if err := s.also(ctx, tx, batch); err != nil {
				return err
			}
		}
		return s.d.index.Gone(ctx, tx, s.d.vhost(), s.names.work, s.verb.past(), gone)
	})
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

func (t *settlement) entry() audit.Entry {
	e := audit.Entry{MessageID: orNone(t.id), Outcome: string(t.outcome), Detail: map[string]any{"type": t.typ, "redrives": t.redrives}}
	if t.class != "" {
		e.Detail["error_class"] = message.Clip(t.class, 64)
	}
	if t.death != nil {
		e.Detail["death"] = t.death.Reason
	}
	if t.detail != "" {
		e.Detail["detail"] = message.Clip(t.detail, 300)
	}
	return e
}

// orNone is what the audit calls a message without an id.
func orNone(id string) string {
	if id == "" {
		return "(none)"
	}
	return id
}

// letGo acknowledges what is safe and recorded. A redriven letter is let go also when the audit could not be
// written, for it is in its queue and would only be there twice; a discarded one never.
func (s *session) letGo(r recordResult) {
	s.recording = false
	for i := range r.batch {
		if d := r.batch[i].kept; d != nil {
			s.keptBytes -= len(d.Body)
		}
	}
	if held, ok := errors.AsType[*HeldError](r.err); ok {
		s.stop(held)
	} else if r.err != nil {
		s.stop(fmt.Errorf("nothing more is moved without a record: %w", r.err))
	} else if err := fault.Point(string(s.verb) + ".after-record"); err != nil {
		s.stop(err)
	}
	for i := range r.batch {
		t := &r.batch[i]
		if !t.release {
			continue
		}
		s.onTheWay--
		if r.err != nil && s.verb == verbDiscard {
			s.left.NotReached++
			continue
		}
		s.release(t)
	}
}

func (s *session) release(t *settlement) {
	if err := s.walker.ack(t.tag); err != nil {
		s.left.count(outcomeTwice)
		s.result.note(&t.facts, s.unreleased(), err.Error())
		s.stop(err)
		return
	}
	s.remaining--
	s.result.Done++
	s.done.add(&t.facts)
	s.log(t)
	if err := fault.Point(string(s.verb) + ".after-ack"); err != nil {
		s.stop(err)
	}
}

func (s *session) unreleased() outcome {
	if s.verb == verbDiscard {
		return outcomeUnknown
	}
	return outcomeTwice
}

func (s *session) log(t *settlement) {
	level, text := zerolog.InfoLevel, "reprocessed from DLQ"
	if s.verb == verbDiscard {
		level, text = zerolog.WarnLevel, "discarded from DLQ"
	}
	e := s.d.opts.Logger.WithLevel(level).
		Str(telemetry.FieldEventID, t.id).Str(telemetry.FieldType, t.typ).Str(telemetry.FieldQueue, s.names.work).
		Int(telemetry.FieldAttempt, t.attempts).Str(telemetry.FieldErrorClass, t.class).
		Str(telemetry.FieldRun, s.chooser.run).Str("who", s.request.Who)
	if t.requestID != "" {
		e.Str(telemetry.FieldRequestID, message.Clip(t.requestID, 512))
	}
	if s.verb == verbDiscard {
		e.Str(telemetry.FieldReason, s.request.Reason)
	}
	e.Msg(text)
}

// pace spaces letters evenly. A letter that could not be sent gives its turn back.
type pace struct {
	interval   time.Duration
	next, last time.Time
}

func newPace(perSecond float64) pace {
	if perSecond <= 0 {
		return pace{}
	}
	return pace{interval: time.Duration(float64(time.Second) / perSecond)}
}

// take takes a turn if one is due.
func (p *pace) take() bool {
	now := time.Now()
	if p.interval == 0 {
		return true
	}
	if now.Before(p.next) {
		return false
	}
	// Missed turns are not made up for, beyond the inexactness of timers: a limit is a limit.
	p.last = p.next
	p.next = maxTime(p.next, now.Add(-10*time.Millisecond)).Add(p.interval)
	return true
}

func (p *pace) giveBack() {
	if p.interval != 0 {
		p.next = p.last
	}
}

// turn is when the next turn is due; nil when one is due already.
func (p *pace) turn() <-chan time.Time {
	wait := time.Until(p.next)
	if p.interval == 0 || wait <= 0 {
		return nil
	}
	return time.After(wait)
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
