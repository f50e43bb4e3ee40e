package telemetry

import (
	"encoding/hex"
	"strings"
)

// TraceIDMark stands for a trace's id in a link.
const TraceIDMark = "{id}"

// TraceID is the id in a traceparent, by which a tracing backend finds the trace; "" when the text is none.
func TraceID(parent string) string {
	parts := strings.Split(parent, "-")
	if len(parts) < 4 || len(parts[1]) != 32 {
		return ""
	}
	if _, err := hex.DecodeString(parts[1]); err != nil {
		return ""
	}
	return parts[1]
}

// TraceLink is where a person finds a trace; "" without a link or an id. The id is one of [TraceID].
func TraceLink(link, id string) string {
	if link == "" || id == "" {
		return ""
	}
	return strings.ReplaceAll(link, TraceIDMark, id)
}
