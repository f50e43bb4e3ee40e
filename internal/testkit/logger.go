package testkit

import (
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/strictjson"
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
		_, err := strictjson.Members(line)
		if twice, ok := errors.AsType[*strictjson.TwiceError](err); ok {
			w.t.Errorf("this log line %s: %s", twice, line)
		}
	}
	return len(line), nil
}

func (w *logWriter) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.t = nil
}
