package drill

import (
	"bytes"
	"encoding/json"
	"sync"
)

// logBook keeps log lines. Safe for concurrent use.
type logBook struct {
	mu    sync.Mutex
	lines []map[string]any
}

// maxLines bounds a logBook; what comes later is not kept.
const maxLines = 20_000

// Write implements io.Writer for lines of JSON.
func (b *logBook) Write(line []byte) (int, error) {
	var fields map[string]any
	if json.Unmarshal(bytes.TrimSpace(line), &fields) == nil {
		b.mu.Lock()
		if len(b.lines) < maxLines {
			b.lines = append(b.lines, fields)
		}
		b.mu.Unlock()
	}
	return len(line), nil
}

// find returns the lines with a message.
func (b *logBook) find(message string) (found []map[string]any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.lines {
		if line["message"] == message {
			found = append(found, line)
		}
	}
	return found
}

// count counts the lines with a message whose field has a value.
func (b *logBook) count(message, field string, value any) (n int) {
	for _, line := range b.find(message) {
		if line[field] == value {
			n++
		}
	}
	return n
}

// lines hands on whole lines of what a process writes. For one goroutine.
type lines struct {
	logs *logBook
	rest []byte // of a line that has not ended
}

// mostLine bounds a line; a longer one is no log line of ours.
const mostLine = 16 << 10

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			break
		}
		_, _ = l.logs.Write(line) // never fails
		l.rest = rest
	}
	if len(l.rest) > mostLine {
		l.rest = nil
	}
	return len(p), nil
}
