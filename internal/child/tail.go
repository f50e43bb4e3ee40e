package child

import (
	"strings"
	"sync"
)

// mostKept bounds a Tail, in bytes.
const mostKept = 16 << 10

// Tail keeps the last 16 KiB of what is written to it. The zero value is ready. Safe for concurrent use.
type Tail struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p[max(0, len(p)-mostKept):]...)
	if over := len(t.text) - mostKept; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

// String is the text, without space around it.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
