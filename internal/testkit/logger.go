package testkit

import (
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
)

// Logger writes to the test's log at debug level, shown when the test fails or under -v. What is logged after the
// test has ended is dropped.
func Logger(t testing.TB) zerolog.Logger {
	t.Helper()
	w := &logWriter{t: t}
	t.Cleanup(w.stop)
	return zerolog.New(w).With().Timestamp().Logger()
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
	}
	return len(line), nil
}

func (w *logWriter) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.t = nil
}
