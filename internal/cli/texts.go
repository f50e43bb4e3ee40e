package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/message"
)

// stampText is a time as tables and notes have it, "" for the zero time.
func stampText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// timeText is stampText of a time that may be missing.
func timeText(t *time.Time) string {
	if t == nil {
		return ""
	}
	return stampText(*t)
}

// counted is a number of things in words: "1 message", "2 messages".
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// orDash stands in a sentence for what may be empty. Cells of tables need it not.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// maxErrorCell bounds an error in a list, in bytes; whoever wants all of it looks at one message.
const maxErrorCell = 80

// firstLine is the beginning of an error, for a list.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return message.Clip(line, maxErrorCell)
}

// jsonText is a JSON value on one line, "" for none.
func jsonText(raw json.RawMessage) string {
	if string(raw) == "null" {
		return ""
	}
	return string(raw)
}
