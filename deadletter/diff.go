package deadletter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/message"
)

// Change is one difference between two messages. Its texts come from them.
type Change struct {
	// Field is "header NAME", a path into a JSON body such as "body.items.0.sku", or "body" as a whole.
	Field string `json:"field"`
	// Old and New are JSON, or what stands for a body that is not; nil: it is not there.
	Old *string `json:"old"`
	New *string `json:"new"`
}

// Bounds of a comparison; what is beyond them is said to differ as a whole.
const (
	maxChanges    = 100
	maxChangeText = 512
	maxDiffDepth  = 16
)

// compare lists what differs between a letter and what replaces it: headers of the user, and the body.
func compare(d *amqp.Delivery, p *amqp.Publishing) []Change {
	changes := []Change{}
	old, replaced := message.Clean(d.Headers), p.Headers
	for _, name := range slices.Sorted(maps.Keys(union(old, replaced))) {
		if message.Reserved(name) {
			continue
		}
		before, had := old[name]
		after, has := replaced[name]
		if a, b := shownJSON(before, had), shownJSON(after, has); !equalText(a, b) {
			changes = append(changes, Change{"header " + message.Clip(name, 255), a, b})
		}
	}
	if bytes.Equal(d.Body, p.Body) {
		return changes
	}
	a, b := decoded(d.Body), decoded(p.Body)
	if a == nil || b == nil {
		return append(changes, Change{"body", sized(d.Body), sized(p.Body)})
	}
	before := len(changes)
	changes = compareJSON(changes, "body", a.value, b.value, 0)
	if len(changes) == before { // the same values, written otherwise
		changes = append(changes, Change{"body", sized(d.Body), sized(p.Body)})
	}
	if len(changes) > maxChanges {
		changes = append(changes[:maxChanges], Change{"body", sized(d.Body), sized(p.Body)})
	}
	return changes
}

func union(a, b amqp.Table) amqp.Table {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

type document struct{ value any }

func decoded(body []byte) *document {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var v any
	if !json.Valid(body) || decoder.Decode(&v) != nil {
		return nil
	}
	return &document{v}
}

func compareJSON(changes []Change, path string, a, b any, depth int) []Change {
	if len(changes) > maxChanges {
		return changes
	}
	left, right := membersOf(a), membersOf(b)
	_, isList := a.([]any)
	_, wasList := b.([]any)
	if left == nil || right == nil || isList != wasList || depth > maxDiffDepth {
		if x, y := shownJSON(a, true), shownJSON(b, true); !equalText(x, y) {
			changes = append(changes, Change{message.Clip(path, 255), x, y})
		}
		return changes
	}
	names := maps.Clone(left)
	maps.Copy(names, right)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		x, had := left[name]
		y, has := right[name]
		if had && has {
			changes = compareJSON(changes, path+"."+name, x, y, depth+1)
		} else if len(changes) <= maxChanges {
			changes = append(changes, Change{message.Clip(path+"."+name, 255), shownJSON(x, had), shownJSON(y, has)})
		}
	}
	return changes
}

// membersOf are those of an object or a list; nil for anything else.
func membersOf(v any) map[string]any {
	switch v := v.(type) {
	case map[string]any:
		return v
	case []any:
		members := make(map[string]any, len(v))
		for i, item := range v {
			members[strconv.Itoa(i)] = item
		}
		return members
	}
	return nil
}

// shownJSON is a value as bounded JSON; nil when it is not there.
func shownJSON(value any, there bool) *string {
	if !there {
		return nil
	}
	text, err := json.Marshal(shownValue(value, 0))
	if err != nil {
		text = []byte("(cannot be shown)")
	}
	shown := message.Clip(string(text), maxChangeText)
	return &shown
}

func equalText(a, b *string) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }

func sized(body []byte) *string {
	text := fmt.Sprintf("(%d bytes)", len(body))
	return &text
}
