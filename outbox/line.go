package outbox

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/surefoot-mq/surefoot/internal/strictjson"
	"github.com/surefoot-mq/surefoot/message"
)

// ParseLine reads a message from one line of JSON, an object with the members
//
//	id, type (required), key, exchange, routing_key, occurred_at (RFC 3339), source, correlation_id,
//	causation_id, request_id, content_type, traceparent, tracestate   texts
//	headers                                                           an object, as [message.ParseHeadersJSON] reads it
//	payload                                                           any JSON; its bytes are sent as they stand here
//	payload_base64                                                    any bytes, instead of payload
//
// Nothing is guessed: unknown and repeated members are refused, and so is everything that the broker would
// refuse. Payloads are never part of an error.
func ParseLine(line []byte, maxBody int) (message.Message, error) {
	if !utf8.Valid(line) {
		return message.Message{}, errors.New("is not valid UTF-8; send other bytes as payload_base64")
	}
	members, err := strictjson.Members(line)
	if err != nil {
		return message.Message{}, err
	}
	var m message.Message
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if err := setMember(&m, name, members[name]); err != nil {
			return message.Message{}, err
		}
	}
	_, plain := members["payload"]
	if _, encoded := members["payload_base64"]; plain == encoded {
		return message.Message{}, errors.New("needs one of payload (any JSON) and payload_base64")
	}
	return m, m.Validate(maxBody)
}

func setMember(m *message.Message, name string, value json.RawMessage) error {
	switch name {
	case "payload":
		m.Payload = value
		return nil
	case "headers":
		headers, err := message.ParseHeadersJSON(value)
		m.Headers = headers
		return err
	}
	target := textMember(m, name)
	var text string
	switch {
	case target == nil && name != "payload_base64" && name != "occurred_at":
		return fmt.Errorf("has the unknown member %q; known are id, type, key, exchange, routing_key, occurred_at, source, correlation_id, "+
			"causation_id, request_id, content_type, traceparent, tracestate, headers, payload and payload_base64", message.Clip(name, 64))
	case value[0] != '"' || json.Unmarshal(value, &text) != nil:
		return fmt.Errorf("%s must be a text", name)
	case target != nil:
		*target = text
		return nil
	case name == "occurred_at":
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return errors.New("occurred_at must be a time like 2006-01-02T15:04:05Z")
		}
		m.OccurredAt = at
		return nil
	}
	payload, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return errors.New("payload_base64 is not base64 (standard alphabet, padded)")
	}
	m.Payload = payload
	return nil
}

func textMember(m *message.Message, name string) *string {
	switch name {
	case "id":
		return &m.ID
	case "type":
		return &m.Type
	case "key":
		return &m.Key
	case "exchange":
		return &m.Exchange
	case "routing_key":
		return &m.RoutingKey
	case "source":
		return &m.Source
	case "correlation_id":
		return &m.CorrelationID
	case "causation_id":
		return &m.CausationID
	case "request_id":
		return &m.RequestID
	case "content_type":
		return &m.ContentType
	case "traceparent":
		return &m.TraceParent
	case "tracestate":
		return &m.TraceState
	}
	return nil
}
