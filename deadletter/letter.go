package deadletter

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/dlqindex"
	"github.com/surefoot-mq/surefoot/message"
)

// maxDeaths bounds how much of a death history is read; the headers come from anywhere.
const maxDeaths = 32

// Death is what the broker recorded when it dead-lettered a message itself: there is no failure record then.
type Death struct {
	// Reason is delivery_limit, rejected, expired or maxlen.
	Reason     string        `json:"reason"`
	Queue      string        `json:"queue"`
	Exchange   string        `json:"exchange"`
	RoutingKey string        `json:"routing_key"`
	Count      int64         `json:"count"`
	At         message.Stamp `json:"at,omitzero"`
}

// deathOf reads the newest entry of the history that concerns the work queue, else the newest one.
func deathOf(h amqp.Table, queue string) *Death {
	entries, _ := h["x-death"].([]any)
	var newest *Death
	for _, entry := range entries[:min(len(entries), maxDeaths)] {
		t, ok := entry.(amqp.Table)
		if !ok {
			continue
		}
		d := death(t)
		if d.Queue == queue {
			return d
		}
		if newest == nil {
			newest = d
		}
	}
	return newest
}

func death(t amqp.Table) *Death {
	d := &Death{
		Reason: message.Clip(message.Text(t, "reason"), 64), Queue: message.Text(t, "queue"),
		Exchange: message.Text(t, "exchange"),
	}
	d.Count, _ = message.Integer(t["count"])
	d.At.Time, _ = t["time"].(time.Time)
	if keys, _ := t["routing-keys"].([]any); len(keys) > 0 {
		d.RoutingKey, _ = keys[0].(string)
	}
	return d
}

// facts are what filters and the audit need to know of a letter; no payload.
type facts struct {
	tag             uint64
	id, typ         string
	requestID       string
	class           string
	errType, errMsg string
	stderr          string // of a program that failed
	attempts        int
	redrives        int64
	run             string
	origin          message.Origin
	death           *Death
	diedAt          time.Time
	key             uuid.UUID // of the index
	printed         string    // fingerprint as the record has it
}

func factsOf(d *amqp.Delivery, n names) facts {
	f := facts{
		tag: d.DeliveryTag, id: d.MessageId, typ: d.Type, requestID: message.Text(d.Headers, message.HeaderRequestID),
		class:   message.Text(d.Headers, message.HeaderErrorClass),
		errType: message.Text(d.Headers, message.HeaderErrorType), errMsg: message.Text(d.Headers, message.HeaderErrorMessage),
		attempts: message.Attempts(d.Headers), run: message.Text(d.Headers, message.HeaderRedriveRun),
		origin: message.OriginOf(d.Headers), death: deathOf(d.Headers, n.work),
		diedAt: message.Time(d.Headers, message.HeaderLastFailedAt),
	}
	if failure := (message.Failure{Type: f.errType}); failure.OfProgram() || failure.OfEndpoint() {
		f.stderr = message.Text(d.Headers, message.HeaderErrorStack)
	}
	f.redrives, _ = message.Integer(d.Headers[message.HeaderRedriveCount])
	if f.death != nil {
		if f.class == "" {
			f.class = f.death.Reason
		}
		if f.diedAt.IsZero() {
			f.diedAt = f.death.At.Time
		}
	}
	f.printed = message.Text(d.Headers, message.HeaderFingerprint)
	f.key = dlqindex.Key(f.indexed(d))
	return f
}

// indexed is the letter as the index takes it.
func (f *facts) indexed(d *amqp.Delivery) dlqindex.Letter {
	return dlqindex.Letter{
		ID: d.MessageId, Type: d.Type, Source: d.AppId, CorrelationID: d.CorrelationId, Timestamp: d.Timestamp,
		Headers: d.Headers, Body: d.Body, Class: f.class, DiedAt: f.diedAt,
	}
}

// fingerprint groups letters of one cause, as the index does.
func (f *facts) fingerprint() string {
	return dlqindex.Fingerprint(f.class, f.errType, f.errMsg, f.printed)
}

// misrouted says that the letter came from another queue than the one this dead-letter queue belongs to.
func (f *facts) misrouted(n names) bool { return f.origin.Queue != "" && f.origin.Queue != n.work }

// contains looks for text in the error's message, its type, and what a program wrote to standard error, whatever the case.
func (f *facts) contains(text string) bool {
	text = strings.ToLower(text)
	return slices.ContainsFunc([]string{f.errMsg, f.errType, f.stderr}, func(s string) bool { return strings.Contains(strings.ToLower(s), text) })
}
