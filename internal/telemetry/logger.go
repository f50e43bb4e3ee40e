package telemetry

import (
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"
)

// LoggerOptions says how log lines look.
type LoggerOptions struct {
	// Writer takes the lines, one Write for each. Required.
	Writer io.Writer
	// Level is the lowest level that is written: trace, debug, info, warn or error. Default info.
	Level string
	// Pretty writes lines for people instead of JSON. Default false.
	Pretty bool
	// NoColor keeps pretty lines free of colours. Default false.
	NoColor bool
}

// NewLogger returns a logger with timestamps in RFC 3339 with milliseconds, in UTC.
func NewLogger(opts LoggerOptions) (zerolog.Logger, error) {
	level := zerolog.InfoLevel
	if opts.Level != "" {
		var err error
		if level, err = zerolog.ParseLevel(opts.Level); err != nil {
			return zerolog.Nop(), fmt.Errorf("log level %q: use trace, debug, info, warn or error", opts.Level)
		}
	}
	writer := opts.Writer
	if opts.Pretty {
		writer = zerolog.ConsoleWriter{Out: opts.Writer, NoColor: opts.NoColor, TimeFormat: timeOfDay}
	}
	return zerolog.New(writer).Level(level).Hook(timestamp{}), nil
}

const (
	timeOfDay = "15:04:05.000"
	stamp     = "2006-01-02T15:04:05.000Z07:00"
)

// timestamp puts the time on each line. zerolog's own Timestamp takes its format from a global.
type timestamp struct{}

func (timestamp) Run(e *zerolog.Event, _ zerolog.Level, _ string) {
	e.Str(zerolog.TimestampFieldName, time.Now().UTC().Format(stamp))
}
