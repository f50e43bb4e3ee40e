package program

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/answer"
	"github.com/surefoot-mq/surefoot/internal/strictjson"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// request is the line that a process reads. The body is the text of body, or what body_base64 encodes: one of them is there.
type request struct {
	ID            string  `json:"id"`
	Type          string  `json:"type"`
	Key           string  `json:"key,omitempty"`
	Queue         string  `json:"queue"`
	Attempt       int     `json:"attempt"`
	DeadlineMs    int64   `json:"deadline_ms,omitempty"`
	ContentType   string  `json:"content_type,omitempty"`
	Source        string  `json:"source,omitempty"`
	OccurredAt    string  `json:"occurred_at,omitempty"`
	CorrelationID string  `json:"correlation_id,omitempty"`
	CausationID   string  `json:"causation_id,omitempty"`
	RequestID     string  `json:"request_id,omitempty"`
	TraceParent   string  `json:"traceparent,omitempty"`
	Body          *string `json:"body,omitempty"`
	BodyBase64    []byte  `json:"body_base64,omitempty"`
}

func requestOf(ctx context.Context, m message.Message, queue string) request {
	text := func(s string) string { return message.Storable(s, maxVariable) }
	r := request{
		ID: text(m.ID), Type: text(m.Type), Key: text(m.Key), Queue: queue, Attempt: m.Attempts + 1, ContentType: text(m.ContentType),
		Source: text(m.Source), CorrelationID: text(m.CorrelationID), CausationID: text(m.CausationID), RequestID: text(m.RequestID),
		TraceParent: text(m.TraceParent),
	}
	if left, limited := resilience.Left(ctx); limited {
		r.DeadlineMs = left.Milliseconds()
	}
	if !m.OccurredAt.IsZero() {
		r.OccurredAt = m.OccurredAt.UTC().Format(time.RFC3339)
	}
	if body := string(m.Payload); utf8.ValidString(body) {
		r.Body = &body
	} else {
		r.BodyBase64 = m.Payload
	}
	return r
}

func (r request) line() ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(r); err != nil {
		return nil, fmt.Errorf("write request: %w", err)
	}
	return out.Bytes(), nil
}

// reply is the line that a process writes.
type reply struct {
	result string
	text   string
	after  time.Duration
	events []message.Message
	wrong  error // of the events
}

// parseReply refuses what is not the answer to the message with that id: then nobody knows what the process is doing.
func parseReply(line []byte, id string) (reply, error) {
	members, err := strictjson.Members(line)
	if err != nil {
		return reply{}, fmt.Errorf("its answer %w; only answers go to standard output", err)
	}
	var r reply
	var forID string
	var afterMs int64
	targets := map[string]any{"id": &forID, "result": &r.result, "error": &r.text, "retry_after_ms": &afterMs}
	for name, value := range members {
		target, known := targets[name]
		switch {
		case name == "events":
			r.events, r.wrong = answer.Events(value)
		case !known:
			return reply{}, fmt.Errorf("its answer has the unknown member %q; known are id, result, error, retry_after_ms and events", message.Clip(name, 64))
		case json.Unmarshal(value, target) != nil:
			return reply{}, fmt.Errorf("its answer has a wrong %s", name)
		}
	}
	r.after = time.Duration(min(max(afterMs, 0), (24*time.Hour).Milliseconds())) * time.Millisecond
	switch {
	case forID != id:
		return reply{}, errors.New("its answer has the id of another message, or none")
	case r.result != "done" && r.result != "retry" && r.result != "reject":
		return reply{}, errors.New("its answer has a result that is none of done, retry and reject")
	}
	return r, nil
}

// meaning is what an answer means for the message. What the process has written to standard error may come after its answer: why it
// gives that belongs into the answer.
func (r reply) meaning(stderr string) ([]message.Message, error) {
	if r.text != "" {
		stderr = r.text + "\n" + stderr
	}
	failed := &Error{err: fmt.Errorf("answered %s", r.result), name: r.result, stderr: stderr}
	switch {
	case r.result == "retry":
		return nil, consumer.RetryAfter(failed, r.after)
	case r.result == "reject":
		return nil, consumer.Permanent(failed)
	case r.wrong != nil:
		failed.err, failed.name = fmt.Errorf("the message is done, but of its events: %w; no event was emitted", r.wrong), "answer"
		return nil, consumer.Permanent(failed)
	}
	return r.events, nil
}
