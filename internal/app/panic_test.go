package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// panicSchema tells a child of this test binary to be the process that panics, in this schema.
const panicSchema = "APP_TEST_PANIC_SCHEMA"

func TestPanicOutsideAHandler(t *testing.T) {
	t.Parallel()
	if schema := os.Getenv(panicSchema); schema != "" {
		panicInARole(t, testkit.DB{URL: os.Getenv("APP_TEST_URL"), Schema: schema})
		return
	}
	db := testkit.Database(t)
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPanicOutsideAHandler$")
	child.Env = append(os.Environ(), panicSchema+"="+db.Schema, "APP_TEST_URL="+db.URL)
	var stderr bytes.Buffer
	child.Stderr = &stderr
	var exit *exec.ExitError
	require.ErrorAs(t, child.Run(), &exit)
	require.Equal(t, 1, exit.ExitCode())

	lines := bytes.Split(bytes.TrimSpace(stderr.Bytes()), []byte("\n"))
	var last struct{ Level, Message, Role, Panic, Stack string }
	require.NoError(t, json.Unmarshal(lines[len(lines)-1], &last), stderr.String())
	require.Equal(t, "fatal", last.Level)
	require.Equal(t, "panic outside a handler", last.Message)
	require.Equal(t, "a", last.Role)
	require.Equal(t, "runtime error: index out of range [2] with length 0", last.Panic)
	require.Contains(t, last.Stack, "panicInARole")
}

func panicInARole(t *testing.T, db testkit.DB) {
	t.Helper()
	_ = app.Run(t.Context(), app.Options{
		Config: loaded(settings(db)), Logger: zerolog.New(os.Stderr),
		Available: []app.Role{role("a", func(context.Context, app.Deps) error {
			var none []int
			return fmt.Errorf("never: %d", none[len(os.Args)])
		})},
	})
}
