package message

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Types that JSON cannot tell apart are written as an object with one member of these names.
const (
	jsonBytes = "$bytes"
	jsonTime  = "$time"
	// jsonFloat was written for NaN and infinities, which are refused now: RabbitMQ cannot read them.
	jsonFloat = "$float"
	// jsonMap escapes a user's map that would be read as one of these.
	jsonMap = "$map"
)

// HeadersJSON encodes headers as the outbox table keeps them; nil when there are none. Integers keep their
// 64 bits, a float stays a float, bytes and times are tagged ({"$bytes": base64}, {"$time": RFC 3339}).
func HeadersJSON(h Headers) ([]byte, error) {
	table, err := h.table()
	if err != nil || len(table) == 0 {
		return nil, err
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // six bytes for each "<" would be waste
	if err := encoder.Encode(taggedMap(table)); err != nil {
		return nil, fmt.Errorf("encode headers: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

func tagged(value any) any {
	switch v := value.(type) {
	case []byte:
		return map[string]any{jsonBytes: base64.StdEncoding.EncodeToString(v)}
	case time.Time:
		return map[string]any{jsonTime: v.UTC().Format(time.RFC3339)}
	case float64:
		return taggedFloat(v)
	case []any:
		list := make([]any, len(v))
		for i, field := range v {
			list[i] = tagged(field)
		}
		return list
	case amqp.Table:
		if _, ok := soleTag(v); ok {
			return map[string]any{jsonMap: taggedMap(v)}
		}
		return taggedMap(v)
	default:
		return v
	}
}

// soleTag returns the name of a map's only member when it reads like a tag.
func soleTag(m map[string]any) (string, bool) {
	if len(m) != 1 {
		return "", false
	}
	for name := range m {
		switch name {
		case jsonBytes, jsonTime, jsonFloat, jsonMap:
			return name, true
		}
	}
	return "", false
}

func taggedMap(m map[string]any) map[string]any {
	out := make(map[string]any, len(m))
	for name, field := range m {
		out[name] = tagged(field)
	}
	return out
}

// taggedFloat keeps a float with a whole value from coming back as an integer.
func taggedFloat(f float64) any {
	text := strconv.FormatFloat(f, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return json.Number(text)
}

// ParseHeadersJSON decodes what [HeadersJSON] or a caller of the SQL function wrote. A whole number is an
// int64, any other a float64. It fails for anything that could not be sent, reserved names included.
func ParseHeadersJSON(data []byte) (Headers, error) {
	if len(data) == 0 {
		return nil, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var raw map[string]any
	if err := decoder.Decode(&raw); err != nil {
		return nil, fmt.Errorf("headers are not a JSON object: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("headers are more than one JSON object")
	}
	headers := make(Headers, len(raw))
	for name, value := range raw {
		field, err := untagged(value, 1)
		if err != nil {
			return nil, fmt.Errorf("header %q: %w", Clip(name, 64), err)
		}
		headers[name] = field
	}
	if _, err := headers.table(); err != nil {
		return nil, fmt.Errorf("headers %w", err)
	}
	return headers, nil
}

func untagged(value any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested more than %d levels deep", maxDepth)
	}
	switch v := value.(type) {
	case json.Number:
		return number(v)
	case []any:
		for i, field := range v {
			var err error
			if v[i], err = untagged(field, depth+1); err != nil {
				return nil, err
			}
		}
		return v, nil
	case map[string]any:
		return untaggedMap(v, depth)
	default:
		return v, nil
	}
}

func untaggedMap(m map[string]any, depth int) (any, error) {
	if tag, ok := soleTag(m); ok {
		switch value := m[tag].(type) {
		case string:
			return taggedValue(tag, value)
		case map[string]any:
			if tag != jsonMap {
				break
			}
			return untaggedFields(value, depth)
		}
		return nil, fmt.Errorf("the tag %s has a value of the wrong type", tag)
	}
	return untaggedFields(m, depth)
}

func untaggedFields(m map[string]any, depth int) (any, error) {
	for name, field := range m {
		var err error
		if m[name], err = untagged(field, depth+1); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func taggedValue(tag, text string) (any, error) {
	switch tag {
	case jsonBytes:
		return base64.StdEncoding.DecodeString(text)
	case jsonTime:
		t, err := time.Parse(time.RFC3339, text)
		return t.UTC(), err
	case jsonFloat:
		return strconv.ParseFloat(text, 64)
	default:
		return nil, fmt.Errorf("the tag %s needs an object", tag)
	}
}

func number(n json.Number) (any, error) {
	if i, err := n.Int64(); err == nil {
		return i, nil
	}
	if !strings.ContainsAny(n.String(), ".eE") {
		return nil, fmt.Errorf("the number %s does not fit into 64 signed bits; send it as text", Clip(n.String(), 32))
	}
	f, err := n.Float64()
	if err != nil {
		return nil, fmt.Errorf("the number %s is out of range", Clip(n.String(), 32))
	}
	return f, nil
}
