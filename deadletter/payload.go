package deadletter

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/message"
)

// Payload is the beginning of a body. As JSON it is an object: {"text": ...} for UTF-8, else {"base64": ...}, and
// "truncated": true when the body goes on.
type Payload struct {
	bytes     []byte
	truncated bool
}

// previewOf copies, so that a small preview does not keep a large body alive, and cuts no rune.
func previewOf(body []byte, limit int) Payload {
	if len(body) <= limit {
		return Payload{bytes: append([]byte(nil), body...)}
	}
	end := max(limit, 0)
	for back := 0; back < utf8.UTFMax-1 && end > 0 && !utf8.RuneStart(body[end]); back++ {
		end--
	}
	return Payload{bytes: append([]byte(nil), body[:end]...), truncated: true}
}

// Bytes is what is shown of the body, not escaped.
func (p Payload) Bytes() []byte { return p.bytes }

// Truncated says that the body goes on.
func (p Payload) Truncated() bool { return p.truncated }

// MarshalJSON writes text as text and anything else as base64.
func (p Payload) MarshalJSON() ([]byte, error) {
	shown := struct {
		Text      *string `json:"text,omitempty"`
		Base64    *string `json:"base64,omitempty"`
		Truncated bool    `json:"truncated"`
	}{Truncated: p.truncated}
	text := string(p.bytes)
	if utf8.ValidString(text) {
		shown.Text = &text
	} else {
		text = base64.StdEncoding.EncodeToString(p.bytes)
		shown.Base64 = &text
	}
	return json.Marshal(shown)
}

const (
	// maxHeaderText bounds one shown header value in bytes; the stack has its own bound.
	maxHeaderText = 8 << 10
	// maxHeaderItems bounds one list or table.
	maxHeaderItems = 256
	// maxHeaderDepth bounds nesting.
	maxHeaderDepth = 8
)

// shownValue is a header fit for JSON: bounded, no NaN, bytes as text.
func shownValue(value any, depth int) any {
	if depth > maxHeaderDepth {
		return "(nested too deep)"
	}
	switch v := value.(type) {
	case string:
		return shownText(v)
	case []byte:
		return shownText(string(v))
	case float32:
		return shownFloat(float64(v))
	case float64:
		return shownFloat(v)
	case amqp.Table:
		return shownTable(v, depth)
	case []any:
		list := make([]any, min(len(v), maxHeaderItems))
		for i := range list {
			list[i] = shownValue(v[i], depth+1)
		}
		return list
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	default:
		return v
	}
}

// shownText keeps what is not valid UTF-8 as escapes, such as \xff, so that it is not taken for text.
func shownText(s string) string {
	if utf8.ValidString(s) {
		return message.Clip(s, maxHeaderText)
	}
	var out strings.Builder
	for at := 0; at < len(s) && out.Len() <= maxHeaderText; {
		char, size := utf8.DecodeRuneInString(s[at:])
		if char == utf8.RuneError && size == 1 {
			fmt.Fprintf(&out, `\x%02x`, s[at])
		} else {
			out.WriteString(s[at : at+size])
		}
		at += size
	}
	return message.Clip(out.String(), maxHeaderText)
}

func shownFloat(f float64) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return "(not a number)"
	}
	return f
}

func shownTable(t amqp.Table, depth int) map[string]any {
	shown := make(map[string]any, min(len(t), maxHeaderItems))
	for name, value := range t {
		if len(shown) >= maxHeaderItems {
			break
		}
		shown[message.Clip(strings.ToValidUTF8(name, "?"), message.MaxShortString)] = shownValue(value, depth+1)
	}
	return shown
}
