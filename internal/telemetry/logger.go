package telemetry

import (
	"bytes"
	"fmt"
	"io"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

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
	// Without names fields that pretty lines leave out, for people who watch one process. Default: none.
	Without []string
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
	writer := io.Writer(plainWriter{opts.Writer})
	if opts.Pretty { // quotes what is not ASCII
		writer = zerolog.ConsoleWriter{Out: opts.Writer, NoColor: opts.NoColor, TimeFormat: timeOfDay, FieldsExclude: opts.Without}
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

// plainWriter takes finished lines of JSON and escapes in them what could steer a terminal or hide text there: logs are read on
// terminals, and ids and types come from anywhere. To every reader of JSON the escapes mean the same. zerolog escapes only what
// is below U+0020.
type plainWriter struct{ out io.Writer }

// Write implements io.Writer.
func (w plainWriter) Write(line []byte) (int, error) {
	shown := line
	if bytes.ContainsFunc(line, steers) {
		shown = make([]byte, 0, len(line)+64)
		for _, char := range string(line) {
			switch {
			case !steers(char):
				shown = utf8.AppendRune(shown, char)
			case char > 0xffff:
				high, low := utf16.EncodeRune(char)
				shown = fmt.Appendf(shown, `\u%04x\u%04x`, high, low)
			default:
				shown = fmt.Appendf(shown, `\u%04x`, char)
			}
		}
	}
	if _, err := w.out.Write(shown); err != nil {
		return 0, err
	}
	return len(line), nil
}

func steers(char rune) bool { return char != '\n' && !unicode.IsPrint(char) }
