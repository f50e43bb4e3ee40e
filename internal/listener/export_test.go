package listener

import (
	"io"
	"time"

	"github.com/rs/zerolog"
)

// LogHosts is of how many hosts a log knows what it said.
const LogHosts = logHosts

// NewErrorLog is what is under ErrorLog.
func NewErrorLog(logger zerolog.Logger, clock func() time.Time) io.Writer {
	return newErrorLog(logger, clock)
}
