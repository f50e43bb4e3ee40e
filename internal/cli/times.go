package cli

import "time"

// stampText is a time as tables and notes have it, "" for the zero time.
func stampText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// timeText is stampText of a time that may be missing.
func timeText(t *time.Time) string {
	if t == nil {
		return ""
	}
	return stampText(*t)
}
