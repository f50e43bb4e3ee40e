package console

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
)

const (
	// masked stands for a value that is not shown.
	masked = "•••"
	// maxMaskable is how big a body may be that is masked field by field; a bigger one is masked whole.
	maxMaskable = 1 << 20
	// maxMaskDepth bounds objects in objects, and JSON that is the text of a field of JSON.
	maxMaskDepth = 100
)

// masks say which values are shown to nobody who does not reveal them, by the names of their fields. The zero value masks bodies that are
// not JSON, and nothing by name. Safe for concurrent use.
type masks struct{ names *regexp.Regexp }

// newMasks takes names with * for any text; case does not count, nor what is neither letter nor digit.
func newMasks(patterns []string) (masks, error) {
	var all []string
	for _, pattern := range patterns {
		var text strings.Builder
		for i, part := range strings.Split(pattern, "*") {
			if i > 0 {
				text.WriteString(".*")
			}
			text.WriteString(regexp.QuoteMeta(plainName(part)))
		}
		if strings.Trim(text.String(), ".*") == "" {
			return masks{}, fmt.Errorf("%q masks everything", pattern)
		}
		all = append(all, text.String())
	}
	if len(all) == 0 {
		return masks{}, nil
	}
	names, err := regexp.Compile("(?s)^(?:" + strings.Join(all, "|") + ")$")
	if err != nil {
		return masks{}, fmt.Errorf("masks: %w", err)
	}
	return masks{names}, nil
}

func plainName(name string) string {
	return strings.Map(func(char rune) rune {
		if unicode.IsLetter(char) || unicode.IsDigit(char) {
			return unicode.ToLower(unicode.ToUpper(char)) // handlers in Go take even a long s for an s
		}
		return -1
	}, name)
}

// name says whether the values of a name are masked.
func (m masks) name(name string) bool { return m.names != nil && m.names.MatchString(plainName(name)) }

// body is a text of it that may be shown, and whether it is all masked: what is not JSON is, and what is JSON but has no names.
func (m masks) body(body []byte) (text string, whole bool) {
	if len(body) > maxMaskable || !json.Valid(body) {
		return masked, true
	}
	var out bytes.Buffer
	w := maskWriter{masks: m, out: &out}
	if w.document(body, false, 0) != nil || !w.named {
		return masked, true
	}
	return out.String(), false
}

// header is the value of a header as it may be shown: a table by the names in it.
func (m masks) header(name string, value any) string {
	if m.name(name) {
		return masked
	}
	switch value := value.(type) {
	case string:
		return m.text(value)
	case []byte:
		return m.text(string(value))
	case nil, bool, int8, uint8, int16, uint16, int32, uint32, int64, int, float32, float64, time.Time:
		return fmt.Sprint(value)
	}
	table, err := json.Marshal(value) // of a table, or a list
	if err != nil {
		return masked
	}
	return m.text(string(table))
}

// text is a text that has a name which is not masked, as it may be shown.
func (m masks) text(text string) string {
	if packed := packedJSON(text); packed != nil {
		var out bytes.Buffer
		w := maskWriter{masks: m, out: &out}
		if w.document(packed, true, 0) != nil {
			return masked
		}
		return out.String()
	}
	if m.within(text) {
		return masked
	}
	return text
}

// packedJSON is the object or list that a text is; nil if it is none.
func packedJSON(text string) []byte {
	inner := strings.TrimSpace(text)
	if inner == "" || inner[0] != '{' && inner[0] != '[' || !json.Valid([]byte(inner)) {
		return nil
	}
	return []byte(inner)
}

// pairs are names with what joins them to a value: in JSON that is cut off, in a text or in JSON again; in forms, tags, headers.
var pairs = regexp.MustCompile(`([\pL\pN_.$-]+)[\s"'\\]*[:=>]`)

// within says whether a text that is not JSON, or what it is the base64 of, gives a masked name a value. That costs texts that only look so.
func (m masks) within(text string) bool {
	bare := strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(strings.TrimSpace(text), "="))
	inner, _ := base64.RawStdEncoding.DecodeString(bare) // empty, or a beginning, if it is none
	return m.gives(text) || m.gives(string(inner))
}

// gives takes one pair after the other: all at once they need many times the memory of a big text.
func (m masks) gives(text string) bool {
	return m.givesBy(pairs, text) || m.givesBy(namedBy, text)
}

func (m masks) givesBy(pairs *regexp.Regexp, text string) bool {
	for m.names != nil {
		at := pairs.FindStringSubmatchIndex(text)
		if at == nil {
			return false
		}
		if m.name(text[at[2]:at[3]]) {
			return true
		}
		text = text[at[1]:]
	}
	return false
}

// What holds a name, and what its value, where names are values themselves: in lists such as [{"name":"Authorization","value":"..."}]. As plainName
// writes them.
var (
	nameKeys = regexp.MustCompile(`^(?:(?:header|field|param|parameter|attribute|property|variable|env)?(?:name|key)|[kn]|header|field|param|parameter|attribute|property|variable|label)$`)
	textKeys = regexp.MustCompile(`^(?:(?:header|field|param|parameter|attribute|property|variable|env|string|raw)?values?|v|val|content|data|text)$`)
	// namedBy is the same in a text.
	namedBy = regexp.MustCompile(`(?i)(?:name|key|header|field|param|parameter|attribute|property|variable|label|\b[kn])[\s"'\\]*[:=][\s"'\\]*([\pL\pN_.$-]+)`)
	// bareName is how a name looks in a list, where the next element is its value.
	bareName = regexp.MustCompile(`^[\pL\pN_.$-]+$`)
)

// field says whether a condition, FIELD=VALUE, is on something masked: by which name, or because it leads into a list without one, or to what may be the
// value of a name that is a value itself.
func (m masks) field(condition string) (name string, isMasked bool) {
	field, _, _ := strings.Cut(strings.TrimSpace(condition), "=")
	names := strings.Split(strings.TrimSuffix(field, "!"), ".")
	if _, err := strconv.Atoi(names[0]); err == nil {
		return names[0], true
	}
	for _, name := range names {
		if m.name(name) {
			return name, true
		}
	}
	last := names[len(names)-1]
	if _, err := strconv.Atoi(last); m.names != nil && (err == nil || textKeys.MatchString(plainName(last))) {
		return last, true
	}
	return "", false
}

// maskWriter writes one JSON document anew, in its order, with numbers as they are.
type maskWriter struct {
	masks masks
	out   *bytes.Buffer
	named bool   // something has a name
	said  string // the value that was written last, if it was a text
}

var errDeep = errors.New("too deep")

// document writes a valid one.
func (w *maskWriter) document(body []byte, named bool, depth int) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	return w.value(d, named, depth)
}

// value writes the next one; named says that a name that is not masked leads to it.
func (w *maskWriter) value(d *json.Decoder, named bool, depth int) error {
	if depth > maxMaskDepth {
		return errDeep
	}
	token, err := d.Token()
	if err != nil {
		return fmt.Errorf("read JSON: %w", err)
	}
	w.said = ""
	switch token := token.(type) {
	case json.Delim:
		if token == '[' {
			return w.list(d, named, depth+1)
		}
		return w.object(d, depth+1)
	case string:
		err := w.text(token, named, depth)
		w.said = token
		return err
	}
	if !named {
		return w.json(masked)
	}
	return w.json(token)
}

// list writes the rest of one, in which a masked name may be followed by its value.
func (w *maskWriter) list(d *json.Decoder, named bool, depth int) error {
	w.out.WriteByte('[')
	after := false // a masked name
	for first := true; d.More(); first = false {
		if !first {
			w.out.WriteByte(',')
		}
		var err error
		if after {
			err = w.hide(d)
		} else {
			err = w.value(d, named, depth)
		}
		if err != nil {
			return err
		}
		after = !after && bareName.MatchString(w.said) && w.masks.name(w.said)
	}
	return w.end(d)
}

// object writes the rest of one. Which of its values has a masked name may be known only at its end.
func (w *maskWriter) object(d *json.Decoder, depth int) error {
	w.out.WriteByte('{')
	var texts [][2]int // where values of a name that is a value are
	hidden := false
	for first := true; d.More(); first = false {
		if !first {
			w.out.WriteByte(',')
		}
		name, from, err := w.member(d, depth)
		if err != nil {
			return err
		}
		name = plainName(name)
		hidden = hidden || nameKeys.MatchString(name) && w.masks.name(w.said)
		if textKeys.MatchString(name) {
			texts = append(texts, [2]int{from, w.out.Len()})
		}
	}
	if hidden {
		w.cover(texts)
	}
	return w.end(d)
}

// cover masks what was written there.
func (w *maskWriter) cover(texts [][2]int) {
	whole := bytes.Clone(w.out.Bytes())
	at := 0
	w.out.Reset()
	for _, text := range texts {
		w.out.Write(whole[at:text[0]])
		_ = w.json(masked) // a text
		at = text[1]
	}
	w.out.Write(whole[at:])
}

// end writes the end of a list or an object.
func (w *maskWriter) end(d *json.Decoder) error {
	end, err := d.Token()
	if err != nil {
		return fmt.Errorf("read JSON: %w", err)
	}
	w.out.WriteString(end.(json.Delim).String()) //nolint:forcetypeassert // the document is valid
	w.said = ""
	return nil
}

// member writes one, and returns its name and where its value begins.
func (w *maskWriter) member(d *json.Decoder, depth int) (name string, from int, err error) {
	token, err := d.Token()
	if err != nil {
		return "", 0, fmt.Errorf("read JSON: %w", err)
	}
	name, _ = token.(string)
	w.named = true
	if err := w.json(name); err != nil {
		return "", 0, err
	}
	w.out.WriteByte(':')
	from = w.out.Len()
	if w.masks.name(name) {
		return name, from, w.hide(d)
	}
	return name, from, w.value(d, true, depth)
}

// hide writes a mask for the next value.
func (w *maskWriter) hide(d *json.Decoder) error {
	var skipped json.RawMessage
	if err := d.Decode(&skipped); err != nil {
		return fmt.Errorf("read JSON: %w", err)
	}
	w.said = ""
	return w.json(masked)
}

// text may be JSON itself, as some pack it, or have some in it.
func (w *maskWriter) text(text string, named bool, depth int) error {
	if inner := packedJSON(text); inner != nil {
		var packed bytes.Buffer
		p := maskWriter{masks: w.masks, out: &packed}
		if err := p.document(inner, named, depth+1); err != nil {
			return err
		}
		return w.json(packed.String())
	}
	if !named || w.masks.within(text) {
		return w.json(masked)
	}
	return w.json(text)
}

func (w *maskWriter) json(value any) error {
	e := json.NewEncoder(w.out)
	e.SetEscapeHTML(false) // the page escapes
	if err := e.Encode(value); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	w.out.Truncate(w.out.Len() - 1) // its newline
	return nil
}
