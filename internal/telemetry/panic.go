package telemetry

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/rs/zerolog"
)

// maxPanic bounds the text of a panic in the log, in bytes.
const maxPanic = 1 << 10

// FatalOnPanic is deferred at the start of a goroutine that no handler runs in: a panic there is a fault of
// ours that leaves the process in an unknown state. It writes one fatal line with the stack and exits with
// code 1 at once, without any clean-up, so that nothing is acknowledged that was not finished. A logger that is
// off must not hide why the process ended: then the line goes to standard error.
func FatalOnPanic(logger zerolog.Logger) {
	if cause := recover(); cause != nil {
		text := fmt.Sprint(cause)
		text = text[:min(len(text), maxPanic)]
		if !logger.WithLevel(zerolog.FatalLevel).Enabled() { //nolint:zerologlint // asks only, sends nothing
			logger = zerolog.New(os.Stderr)
		}
		logger.Fatal().Str("panic", text).Bytes(FieldStack, debug.Stack()).Msg("panic outside a handler")
	}
}
