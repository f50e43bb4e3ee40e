// Package answer reads what a worker in another process or service answers to a message: above all the events that it emits.
// Answers are as hostile as messages. Errors name what is wrong and where, and quote nothing but names of members.
package answer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"strings"
	"unicode/utf8"

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
	members, err := Members(body)
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

// Members splits a JSON object. Unlike encoding/json it takes names as they are written, each at most once.
func Members(text []byte) (map[string]json.RawMessage, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("is not valid UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return nil, errors.New("is not a JSON object")
	}
	members := map[string]json.RawMessage{}
	for decoder.More() {
		token, err := decoder.Token()
		name, _ := token.(string)
		var value json.RawMessage
		if err != nil || decoder.Decode(&value) != nil {
			return nil, errBroken
		}
		if _, twice := members[name]; twice {
			return nil, fmt.Errorf("has the member %q twice", message.Clip(name, 64))
		}
		members[name] = value
	}
	if _, err := decoder.Token(); err != nil {
		return nil, errBroken
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("has something behind the object")
	}
	return members, nil
}

var errBroken = errors.New("is broken or unfinished JSON")

func isJSON(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json"))
}
