package telemetry

import (
	"fmt"
	"runtime/debug"

	"github.com/rs/zerolog"
)

// maxPanic bounds the text of a panic in the log, in bytes.
const maxPanic = 1 << 10

// FatalOnPanic is deferred at the start of a goroutine that no handler runs in: a panic there is a fault of
// ours that leaves the process in an unknown state. It writes one fatal line with the stack and exits with
// code 1 at once, without any clean-up, so that nothing is acknowledged that was not finished.
func FatalOnPanic(logger zerolog.Logger) {
	if cause := recover(); cause != nil {
		text := fmt.Sprint(cause)
		logger.Fatal().Str("panic", text[:min(len(text), maxPanic)]).
			Bytes(FieldStack, debug.Stack()).Msg("panic outside a handler")
	}
}
