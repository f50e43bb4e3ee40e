package consumer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/message"
)

// MuxOptions say how strict a [Mux] is.
type MuxOptions struct {
	// AckUnknown acknowledges messages of a type without a handler. Default: false, they are dead letters.
	AckUnknown bool
	// RefuseUnknownFields makes a payload with a field that its Go type does not have malformed. Default: false,
	// because producers add fields before their consumers know them.
	RefuseUnknownFields bool
}

// Mux routes messages to handlers by their type. Register everything before it serves; then it is safe for concurrent
// use.
type Mux struct {
	opts   MuxOptions
	routes map[string]Handler
}

// NewMux returns a Mux without routes.
func NewMux(o MuxOptions) *Mux { return &Mux{opts: o, routes: map[string]Handler{}} }

// Handle registers the handler of a type. It panics when the type is empty or has one already, for that is a mistake
// in the program.
func (m *Mux) Handle(eventType string, h Handler) {
	if _, taken := m.routes[eventType]; taken || eventType == "" || h == nil {
		panic(fmt.Sprintf("consumer: Handle(%q): the type is empty or registered already, or the handler is nil", eventType))
	}
	m.routes[eventType] = h
}

// Serve is the [Handler] that routes.
func (m *Mux) Serve(ctx context.Context, tx pgx.Tx, msg message.Message) error {
	h, known := m.routes[msg.Type]
	switch {
	case known:
		return h(ctx, tx, msg)
	case m.opts.AckUnknown:
		return nil
	default:
		return &UnknownTypeError{Type: msg.Type}
	}
}

// On registers a handler that gets the payload as T. See [Decode] for what is malformed.
func On[T any](m *Mux, eventType string, h func(ctx context.Context, tx pgx.Tx, msg message.Message, payload T) error) {
	m.Handle(eventType, func(ctx context.Context, tx pgx.Tx, msg message.Message) error {
		payload, err := Decode[T](msg, m.opts.RefuseUnknownFields)
		if err != nil {
			return err
		}
		return h(ctx, tx, msg, payload)
	})
}

// Decode reads a JSON payload as T. It returns a [*MalformedError], which makes the message a dead letter, for what is
// not valid UTF-8 and JSON, null, of another shape than T, followed by anything else, or, when T has a method
// Validate() error, refused by it; with refuseUnknownFields also for fields that T does not have. The error's text, which is logged, quotes
// no values; those of your own UnmarshalJSON and Validate must not either.
func Decode[T any](msg message.Message, refuseUnknownFields bool) (T, error) {
	var payload T
	if err := decode(msg.Payload, &payload, refuseUnknownFields); err != nil {
		var zero T
		return zero, &MalformedError{err}
	}
	return payload, nil
}

func decode(data []byte, into any, refuseUnknownFields bool) error {
	if !utf8.Valid(data) {
		return errors.New("not valid UTF-8")
	}
	if bytes.Equal(bytes.TrimSpace(data), []byte("null")) {
		return errors.New("null instead of a value")
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	if refuseUnknownFields {
		decoder.DisallowUnknownFields()
	}
	if err := decoder.Decode(into); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("empty")
		}
		return withoutValue(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more data after the JSON value")
	}
	return validate(into)
}

// withoutValue leaves out what the library quotes of the payload: the text goes to logs.
func withoutValue(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		bare := *wrong
		bare.Value, _, _ = strings.Cut(wrong.Value, " ") // "number 42"
		return &bare
	}
	if _, ok := errors.AsType[*time.ParseError](err); ok {
		return errors.New("a time that is not like 2006-01-02T15:04:05Z")
	}
	if strings.Contains(err.Error(), "invalid use of ,string struct tag") {
		return errors.New("a text that does not hold a value of its field's type")
	}
	return err
}

// validate asks the payload itself; a method of the value and one of the pointer both count.
func validate(payload any) error {
	if v, ok := payload.(interface{ Validate() error }); ok {
		return v.Validate()
	}
	return nil
}
