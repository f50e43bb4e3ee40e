package cli_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// What operators did goes into a log sink line by line, from a place that the reader knows.
func TestAuditFollow(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	write := func(message string) {
		op := audit.NewOperation("ann", "dlq redrive", "q.dlq", "")
		require.NoError(t, audit.Write(t.Context(), db.Pool, db.Schema, op, audit.Entry{MessageID: message, Outcome: "redriven"}))
	}
	e := env("")
	e.Environ = []string{"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema}
	follow := func(args ...string) (next func() audit.Item, end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		reader, writer := io.Pipe()
		e.Stdout, e.Stderr = writer, io.Discard
		code := make(chan int, 1)
		go func() {
			code <- cli.Main(ctx, append([]string{"audit", "follow"}, args...), e)
			_ = writer.Close()
		}()
		lines := bufio.NewScanner(reader)
		next = func() (i audit.Item) {
			require.True(t, lines.Scan(), "it ended")
			require.NoError(t, json.Unmarshal(lines.Bytes(), &i))
			return i
		}
		return next, func() {
			cancel()
			select {
			case c := <-code:
				require.Equal(t, cli.ExitInterrupted, c)
			case <-time.After(10 * time.Second):
				require.Fail(t, "it does not end")
			}
		}
	}
	write("one")
	write("two")
	next, end := follow("--since", "1h")
	require.Equal(t, "one", next().MessageID)
	two := next()
	require.Equal(t, "two", two.MessageID)
	write("three")
	three := next()
	require.Equal(t, "three", three.MessageID)
	end()

	write("four")
	next, end = follow("--after", "2")
	require.Equal(t, three, next(), "the same as before")
	require.Equal(t, "four", next().MessageID)
	end()

	for _, args := range [][]string{{"--after", "-1"}, {"--after", "1", "--since", "1h"}, {"--since", "yesterday"}, {"x"}} {
		require.Equal(t, cli.ExitUsage, run(t, e, append([]string{"audit", "follow"}, args...)...).code, args)
	}
}
