package consumer

import (
	"context"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
)

// intake is one subscription and what it has delivered.
type intake struct {
	sub      *rabbit.Subscription
	acks     *acks
	prefetch int
	alive    context.Context // ends with the subscription: its deliveries then belong to nobody here
}

// job is one delivery on its way.
type job struct {
	from     *intake
	delivery *amqp.Delivery
	msg      message.Message
	key      uuid.UUID
	suspect  bool
	received time.Time
	early    time.Time         // not to be handled before
	expires  time.Time         // by the database's clock; zero: never
	tried    time.Time         // when it last began, zero: never
	effect   bool              // a handler without transaction has done its work; only the record of it is missing
	renew    bool              // held for too long: put off instead of run
	events   []message.Message // that it returned, to be enqueued with that record
	single   bool              // ran in a batch that failed or was held: not in a batch again
}

// outcome is what became of a job's run: actDrop, actAck, actReturn, actHold, actSingly or actDiscarded.
type outcome struct {
	job    *job
	action action
	err    error         // why it is held
	delay  time.Duration // for how long, 0: unknown
}

func newJob(from *intake, d *amqp.Delivery) *job {
	j := &job{from: from, delivery: d, msg: message.FromDelivery(d), suspect: isSuspect(d), received: time.Now(), early: notBefore(d.Headers)}
	switch {
	case j.msg.ID != "":
		j.key = pg.InboxKey(j.msg.ID)
	case j.suspect: // the only use of a key without an id
		j.key = bodyKey(j.msg)
	}
	j.expires = expiryOf(j.msg, d.Headers)
	return j
}

// inboxKey is nil for a message without an id, which leaves no row.
func (j *job) inboxKey() *uuid.UUID {
	if j.msg.ID == "" {
		return nil
	}
	return &j.key
}

// over says that the broker has the message back.
func (j *job) over() bool { return j.from.alive.Err() != nil }

// MarshalZerologObject writes the fields that name a message. They come from anywhere, so they are cut.
func (j *job) MarshalZerologObject(e *zerolog.Event) {
	e.Str(telemetry.FieldEventID, message.Clip(j.msg.ID, 255)).Str(telemetry.FieldType, message.Clip(j.msg.Type, 255)).
		Str(telemetry.FieldKey, message.Clip(j.msg.Key, 255)).Str(telemetry.FieldRequestID, message.Clip(j.msg.RequestID, 128))
}
