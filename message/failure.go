package message

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Bounds of a failure record in bytes; longer texts are cut.
const (
	MaxErrorMessage = 1 << 10
	MaxErrorStack   = 8 << 10
	// MaxAttemptLog is how many attempts the log keeps; the oldest go first.
	MaxAttemptLog = 10

	maxLogMessage = 200
)

// Failure is the record that a failed message carries into the retry tier and the dead-letter queue.
type Failure struct {
	// Class is the error class, for example "transient", "permanent" or "panic".
	Class string
	// Type is the error's Go type, or the name that an external handler gave it.
	Type string
	// Message is the error's text, cut to [MaxErrorMessage].
	Message string
	// Stack is the stack of a panic, or what an external handler wrote; cut to [MaxErrorStack].
	Stack string
	// Fingerprint groups failures of one cause. Default: [Fingerprint] of the other fields.
	Fingerprint string
	// FirstFailedAt and LastFailedAt span the failures of this message.
	FirstFailedAt, LastFailedAt time.Time
	// Host and Version of the process that failed last.
	Host, Version string
	// Log is one line per attempt, oldest first, at most [MaxAttemptLog].
	Log []Attempt
}

// Attempt is one line of the attempt log.
type Attempt struct {
	// Number of the attempt, from 1.
	Number int
	At     time.Time
	Class  string
	Type   string
	// Message is the beginning of the error's text.
	Message string
	Host    string
}

// FailureOf reads the record from headers; the zero value means that there is none.
func FailureOf(h amqp.Table) Failure {
	return Failure{
		Class:         Text(h, HeaderErrorClass),
		Type:          Text(h, HeaderErrorType),
		Message:       Text(h, HeaderErrorMessage),
		Stack:         Text(h, HeaderErrorStack),
		Fingerprint:   Text(h, HeaderFingerprint),
		FirstFailedAt: Time(h, HeaderFirstFailedAt),
		LastFailedAt:  Time(h, HeaderLastFailedAt),
		Host:          Text(h, HeaderFailedHost),
		Version:       Text(h, HeaderFailedVersion),
		Log:           attemptLog(h),
	}
}

// Write records the failure in headers, over an earlier one whose first time and log it carries on:
// number is the count of failed attempts including this one. All headers together stay within
// [MaxHeaders]: the stack gives way first, then the log, then the text of the message.
func (f Failure) Write(h amqp.Table, number int) {
	f = f.bounded()
	earlier := FailureOf(h)
	if !earlier.FirstFailedAt.IsZero() {
		f.FirstFailedAt = earlier.FirstFailedAt
	}
	log := append(earlier.Log, Attempt{
		Number: number, At: f.LastFailedAt, Class: f.Class, Type: f.Type, Host: f.Host,
		Message: Clip(f.Message, maxLogMessage),
	})
	f.Log = log[max(0, len(log)-MaxAttemptLog):]
	f.put(h)
	giveWay(h)
}

func (f Failure) bounded() Failure {
	f.Class, f.Type = Clip(f.Class, 64), Clip(f.Type, 128)
	f.Host, f.Version = Clip(f.Host, 128), Clip(f.Version, 128)
	f.Message, f.Stack = Clip(f.Message, MaxErrorMessage), Clip(f.Stack, MaxErrorStack)
	if f.LastFailedAt.IsZero() {
		f.LastFailedAt = time.Now()
	}
	if f.FirstFailedAt.IsZero() {
		f.FirstFailedAt = f.LastFailedAt
	}
	if f.Fingerprint == "" {
		f.Fingerprint = Fingerprint(f.Class, f.Type, f.Message)
	}
	f.Fingerprint = Clip(f.Fingerprint, 64)
	return f
}

func (f Failure) put(h amqp.Table) {
	h[HeaderErrorClass] = f.Class
	h[HeaderErrorType] = f.Type
	h[HeaderErrorMessage] = f.Message
	delete(h, HeaderErrorStack)
	setText(h, HeaderErrorStack, f.Stack)
	h[HeaderFingerprint] = f.Fingerprint
	h[HeaderFirstFailedAt] = f.FirstFailedAt.UTC().Format(time.RFC3339Nano)
	h[HeaderLastFailedAt] = f.LastFailedAt.UTC().Format(time.RFC3339Nano)
	h[HeaderFailedHost] = f.Host
	h[HeaderFailedVersion] = f.Version
	log := make([]any, len(f.Log))
	for i, a := range f.Log {
		log[i] = a.table()
	}
	h[HeaderAttemptLog] = log
}

func giveWay(h amqp.Table) {
	for _, name := range []string{HeaderErrorStack, HeaderAttemptLog, HeaderErrorMessage} {
		if TableSize(h) <= MaxHeaders {
			return
		}
		delete(h, name)
	}
}

func (a Attempt) table() amqp.Table {
	return amqp.Table{
		"n": int64(a.Number), "at": a.At.UTC().Format(time.RFC3339Nano),
		"class": a.Class, "type": a.Type, "message": a.Message, "host": a.Host,
	}
}

// attemptLog reads the log; entries of a foreign shape are left out, and only the last MaxAttemptLog kept.
func attemptLog(h amqp.Table) []Attempt {
	entries, _ := h[HeaderAttemptLog].([]any)
	entries = entries[max(0, len(entries)-MaxAttemptLog):]
	var log []Attempt
	for _, entry := range entries {
		t, ok := entry.(amqp.Table)
		if !ok {
			continue
		}
		n, _ := Integer(t["n"])
		log = append(log, Attempt{
			Number: int(n), At: Time(t, "at"), Class: Clip(Text(t, "class"), 64), Type: Clip(Text(t, "type"), 128),
			Message: Clip(Text(t, "message"), maxLogMessage), Host: Clip(Text(t, "host"), 128),
		})
	}
	return log
}

var (
	idLike     = regexp.MustCompile(`(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{16,}\b`)
	numberLike = regexp.MustCompile(`\d+`)
	quoted     = regexp.MustCompile(`"[^"]*"|'[^']*'`)
)

// Fingerprint groups failures of one cause: ids, numbers and quoted values are replaced before the text
// is hashed, so that the same fault with another order id gives the same result. 16 hexadecimal digits.
func Fingerprint(class, errType, text string) string {
	text = idLike.ReplaceAllString(Clip(text, MaxErrorMessage), "<id>")
	text = quoted.ReplaceAllString(text, "<value>")
	text = numberLike.ReplaceAllString(text, "<n>")
	sum := sha256.Sum256([]byte(strings.Join([]string{class, errType, text}, "\x00")))
	return hex.EncodeToString(sum[:8])
}
