package deadletter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/surefoot-mq/surefoot/message"
)

// Bounds of conditions.
const (
	maxWhere     = 20
	maxWhereText = 1 << 10
	maxWherePath = 16
)

// Where is a condition on a field of a JSON body. Make it with [ParseWhere].
type Where struct {
	text string
	path []string
	not  bool
	// want is a JSON text; word is the value as it was written, which a string of the body may equal too.
	want, word string
}

// ParseWhere reads FIELD=VALUE or FIELD!=VALUE. Dots lead into objects, and numbers into lists: items.0.sku=A-1. A value is a
// number, true, false, null or text; 42 is met by the number and by the text "42", "42" in quotes by the text alone. Numbers are
// compared exactly, however long they are; 1, 1.0 and 1e0 are one number. A field that is missing equals nothing.
func ParseWhere(text string) (Where, error) {
	field, value, found := strings.Cut(text, "=")
	field, not := strings.CutSuffix(field, "!")
	w := Where{text: text, path: strings.Split(field, "."), not: not, want: value, word: value}
	switch {
	case !found || field == "":
		return w, fmt.Errorf("%w: %q is no condition; write FIELD=VALUE, such as orderId=42 or customer.city!=Bonn", ErrBadRequest, message.Clip(text, 64))
	case len(text) > maxWhereText || len(w.path) > maxWherePath:
		return w, fmt.Errorf("%w: a condition has at most %d bytes and %d names", ErrBadRequest, maxWhereText, maxWherePath)
	}
	if !isScalar(value) {
		quoted, err := json.Marshal(value)
		if err != nil {
			return w, fmt.Errorf("%w: %q: %w", ErrBadRequest, message.Clip(text, 64), err)
		}
		w.want = string(quoted)
	}
	return w, nil
}

// isScalar says whether a text is a JSON number, string, true, false or null.
func isScalar(text string) bool {
	return json.Valid([]byte(text)) && !strings.ContainsAny(text[:1], "{[ \t\r\n")
}

// String is the condition as it was written.
func (w Where) String() string { return w.text }

// matches says whether a body meets the condition. One that is not JSON meets none.
func (w *Where) matches(body []byte) bool {
	if !json.Valid(body) {
		return false
	}
	value, there := fieldOf(body, w.path)
	return (there && w.equals(value)) != w.not
}

// fieldOf descends level by level; of a name that comes twice the last one counts, as it does for handlers in Go.
func fieldOf(value json.RawMessage, path []string) (json.RawMessage, bool) {
	for _, name := range path {
		value = bytes.TrimSpace(value)
		switch {
		case len(value) > 0 && value[0] == '{':
			var fields map[string]json.RawMessage
			if json.Unmarshal(value, &fields) != nil {
				return nil, false
			}
			var there bool
			if value, there = fields[name]; !there {
				return nil, false
			}
		case len(value) > 0 && value[0] == '[':
			var items []json.RawMessage
			at, err := strconv.Atoi(name)
			if err != nil || json.Unmarshal(value, &items) != nil || at < 0 || at >= len(items) {
				return nil, false
			}
			value = items[at]
		default:
			return nil, false
		}
	}
	return bytes.TrimSpace(value), true
}

func (w *Where) equals(value json.RawMessage) bool {
	if len(value) == 0 {
		return false
	}
	switch value[0] {
	case '{', '[':
		return false
	case '"':
		var text string
		if json.Unmarshal(value, &text) != nil {
			return false
		}
		var want string
		return text == w.word || json.Unmarshal([]byte(w.want), &want) == nil && text == want
	case 't', 'f', 'n':
		return string(value) == w.want
	default:
		have, isNumber := decimalOf(string(value))
		want, wanted := decimalOf(w.want)
		return isNumber && wanted && have == want
	}
}

// decimal is a JSON number in its one normal form: digits without zeros at either end, times ten to the power of exponent.
type decimal struct {
	negative bool
	digits   string
	exponent int64
}

// decimalOf reads a JSON number without losing a digit, and without working out its power.
func decimalOf(text string) (d decimal, ok bool) {
	text, d.negative = strings.CutPrefix(text, "-")
	if text == "" || text[0] < '0' || text[0] > '9' {
		return d, false
	}
	if at := strings.IndexAny(text, "eE"); at >= 0 {
		exponent, err := strconv.ParseInt(strings.TrimPrefix(text[at+1:], "+"), 10, 32)
		if err != nil {
			return d, false
		}
		d.exponent, text = exponent, text[:at]
	}
	whole, fraction, _ := strings.Cut(text, ".")
	d.exponent -= int64(len(fraction))
	d.digits = strings.TrimLeft(whole+fraction, "0")
	short := strings.TrimRight(d.digits, "0")
	d.exponent += int64(len(d.digits) - len(short))
	d.digits = short
	if short == "" {
		return decimal{}, true
	}
	return d, true
}
