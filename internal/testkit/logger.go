package testkit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
)

// Logger writes to the test's log at debug level: see [LogWriter].
func Logger(t testing.TB) zerolog.Logger {
	t.Helper()
	return zerolog.New(LogWriter(t)).With().Timestamp().Logger()
}

// LogWriter takes lines of JSON and writes them to the test's log, shown when the test fails or under -v. A line that
// has a key twice, which strict readers of JSON refuse and others read by luck, fails the test. What is logged after the
// test has ended is dropped.
func LogWriter(t testing.TB) io.Writer {
	t.Helper()
	w := &logWriter{t: t}
	t.Cleanup(w.stop)
	return w
}

// logWriter guards t.Log, which panics once the test is over.
type logWriter struct {
	mu sync.Mutex
	t  testing.TB // nil: over
}

// Write implements io.Writer.
func (w *logWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Log(strings.TrimSuffix(string(line), "\n"))
		if key := doubledKey(line); key != "" {
			w.t.Errorf("this log line has the key %q twice: %s", key, line)
		}
	}
	return len(line), nil
}

// doubledKey returns a key that the line's object has twice, or "".
func doubledKey(line []byte) string {
	decoder := json.NewDecoder(bytes.NewReader(line))
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return ""
	}
	seen := map[json.Token]bool{}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return ""
		}
		if seen[key] {
			return fmt.Sprint(key)
		}
		seen[key] = true
		if decoder.Decode(new(json.RawMessage)) != nil {
			return ""
		}
	}
	return ""
}

func (w *logWriter) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.t = nil
}
