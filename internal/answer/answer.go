// Package answer reads what a worker in another process or service answers to a message: above all the events that it emits.
// Answers are as hostile as messages. Errors name what is wrong and where, and quote nothing but names of members.
package answer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strings"

	"github.com/surefoot-mq/surefoot/internal/strictjson"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

const (
	// MaxBytes bounds an answer.
	MaxBytes = 1 << 20
	// MaxEvents bounds the events of one.
	MaxEvents = 1000
)

// FromHTTP returns the events in the body of a success. A JSON object with the member events is an answer in which nothing may be
// wrong; anything else is the endpoint's own and says nothing here, unless it claims to be JSON and is broken: what got lost
// may have been events.
func FromHTTP(contentType string, body []byte) ([]message.Message, error) {
	body = bytes.TrimSpace(body)
	if len(body) == 0 || body[0] != '{' {
		return nil, nil
	}
	members, err := strictjson.Members(body)
	if err != nil {
		if !isJSON(contentType) {
			return nil, nil
		}
		return nil, err
	}
	if _, some := members["events"]; !some {
		return nil, nil
	}
	for name := range members {
		if name != "events" {
			return nil, fmt.Errorf("has the member %q beside events, where nothing else is known", message.Clip(name, 64))
		}
	}
	return Events(members["events"])
}

// Events reads a list of events, each an object as [outbox.ParseLine] reads it. One that is wrong makes all of them wrong.
func Events(list json.RawMessage) ([]message.Message, error) {
	var each []json.RawMessage
	if json.Unmarshal(list, &each) != nil || each == nil {
		return nil, errors.New("events must be a list of objects")
	}
	if len(each) > MaxEvents {
		return nil, fmt.Errorf("has %d events; at most %d go with one message", len(each), MaxEvents)
	}
	events := make([]message.Message, len(each))
	for i, one := range each {
		var err error
		if events[i], err = outbox.ParseLine(one, 0); err != nil {
			return nil, fmt.Errorf("events[%d] %w", i, err)
		}
	}
	return events, nil
}

func isJSON(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json"))
}
