// Package strictjson splits JSON objects that come from anywhere. Readers of JSON differ in what they make of a member that is there twice, or of
// names that differ in case; here names are taken as they are written, each at most once. Errors quote nothing but such names.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// TwiceError says that an object has a member twice.
type TwiceError struct{ Name string }

// Error implements error.
func (e *TwiceError) Error() string {
	return fmt.Sprintf("has the member %.64q twice", e.Name)
}

// Members splits one object, with nothing behind it, and leaves the bytes of its values as they are.
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
		if err != nil {
			return nil, broken(err)
		}
		name, _ := token.(string)
		if _, twice := members[name]; twice {
			return nil, &TwiceError{name}
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, broken(err)
		}
		members[name] = value
	}
	if _, err := decoder.Token(); err != nil {
		return nil, broken(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("has something behind the object")
	}
	return members, nil
}

// broken keeps the place of a fault and leaves out the text around it.
func broken(err error) error {
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		if strings.Contains(syntax.Error(), "max depth") { // it may be right, but nothing here reads it
			return fmt.Errorf("is nested too deep near byte %d; send such a payload as payload_base64", syntax.Offset)
		}
		return fmt.Errorf("is broken JSON near byte %d", syntax.Offset)
	}
	return errors.New("is broken or unfinished JSON")
}
