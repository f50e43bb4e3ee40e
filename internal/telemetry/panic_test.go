package telemetry_test

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

func TestNoPanicNoExit(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	func() { defer telemetry.FatalOnPanic(zerolog.New(&out)) }()
	require.Empty(t, out.String())
}

// panicking tells a child of this test binary to be the process that panics.
const panicking = "TELEMETRY_TEST_PANIC"

func TestAPanicIsShownAlsoWithoutALogger(t *testing.T) {
	t.Parallel()
	if os.Getenv(panicking) != "" {
		defer telemetry.FatalOnPanic(zerolog.Logger{})
		panic("out\x1b[2J of order")
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAPanicIsShownAlsoWithoutALogger$")
	child.Env = append(os.Environ(), panicking+"=1")
	var stderr bytes.Buffer
	child.Stderr = &stderr
	var exit *exec.ExitError
	require.ErrorAs(t, child.Run(), &exit)
	require.Equal(t, 1, exit.ExitCode())
	require.Contains(t, stderr.String(), `"panic":"out\u001b[2J of order"`)
	require.Contains(t, stderr.String(), "TestAPanicIsShownAlsoWithoutALogger", "the stack")
}
