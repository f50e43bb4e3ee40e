package message

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"regexp"
	"slices"
	"strconv"
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
	maxClass      = 64
	maxName       = 128

	// headroom is kept free for what is written beside a failure: origin, attempts, deferral, redrive.
	headroom = 2 << 10
	// maxOwn is more than any of Surefoot's own headers takes, the log and the stack apart.
	maxOwn = 2 << 10
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

// OfProgram says that a program failed, by the types of failure that package consumer/program writes: Stack is then the
// end of what it wrote to standard error.
func (f Failure) OfProgram() bool {
	switch f.Type {
	case "signal", "killed", "answer", "retry", "reject":
		return true
	}
	return numbered(f.Type, "exit ")
}

// OfEndpoint says that an HTTP endpoint refused, by the types of failure that package consumer/endpoint writes: Stack is then
// the beginning of what it answered.
func (f Failure) OfEndpoint() bool { return numbered(f.Type, "http ") }

func numbered(text, prefix string) bool {
	number, found := strings.CutPrefix(text, prefix)
	_, err := strconv.ParseUint(number, 10, 32)
	return found && err == nil
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
// number is the count of failed attempts including this one.
//
// All headers together stay within [MaxHeaders] and [MaxNames], with room for the origin, the attempts and the marks of a
// redrive: the stack gives way first, then the log, then the error's text. Only a foreign producer can
// have sent so many headers that this is not enough; then its largest go, and their number is kept in
// [HeaderDropped], because a message that cannot be published again would be stuck for ever.
func (f Failure) Write(h amqp.Table, number int) {
	f = f.bounded()
	earlier := FailureOf(h)
	if !earlier.FirstFailedAt.IsZero() {
		f.FirstFailedAt = earlier.FirstFailedAt
	}
	log := append(earlier.Log, Attempt{
		Number: max(number, 0), At: f.LastFailedAt, Class: f.Class, Type: f.Type, Host: f.Host,
		Message: Clip(f.Message, maxLogMessage),
	})
	f.Log = log[max(0, len(log)-MaxAttemptLog):]
	f.put(h)
	giveWay(h)
}

func (f Failure) bounded() Failure {
	if f.Fingerprint == "" {
		f.Fingerprint = Fingerprint(f.Class, f.Type, f.Message)
	}
	f.Class, f.Type = Clip(f.Class, maxClass), Clip(f.Type, maxName)
	f.Host, f.Version = Clip(f.Host, maxName), Clip(f.Version, maxName)
	f.Message, f.Stack = Clip(f.Message, MaxErrorMessage), Clip(f.Stack, MaxErrorStack)
	f.Fingerprint = Clip(f.Fingerprint, maxClass)
	if f.LastFailedAt.IsZero() {
		f.LastFailedAt = time.Now()
	}
	if f.FirstFailedAt.IsZero() {
		f.FirstFailedAt = f.LastFailedAt
	}
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
	size := TableSize(h)
	drop := func(name string) {
		size -= entrySize(name, h[name])
		delete(h, name)
	}
	for _, name := range []string{HeaderErrorStack, HeaderAttemptLog, HeaderErrorMessage} {
		if _, there := h[name]; there && size > MaxHeaders-headroom {
			drop(name)
		}
	}
	fits := func() bool { return size <= MaxHeaders-headroom && len(h) <= MaxNames }
	if fits() {
		return
	}
	dropped, _ := Integer(h[HeaderDropped])
	for _, name := range foreignBySize(h) {
		if fits() {
			break
		}
		drop(name)
		dropped++
	}
	h[HeaderDropped] = dropped
}

// foreignBySize returns the names of what is not Surefoot's, largest first. Its own headers are among them
// where a foreign producer blew one up, or invented one of its prefix.
func foreignBySize(h amqp.Table) []string {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(h)), func(name string) bool {
		return known(name) && entrySize(name, h[name]) <= maxOwn
	})
	slices.SortStableFunc(names, func(a, b string) int {
		return cmp.Compare(entrySize(b, h[b]), entrySize(a, h[a]))
	})
	return names
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
			Number: int(n), At: Time(t, "at"), Class: Clip(Text(t, "class"), maxClass), Type: Clip(Text(t, "type"), maxName),
			Message: Clip(Text(t, "message"), maxLogMessage), Host: Clip(Text(t, "host"), maxName),
		})
	}
	return log
}

var (
	uuidLike   = regexp.MustCompile(`[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}`)
	hexLike    = regexp.MustCompile(`\b0[xX][0-9a-fA-F]+|\b[0-9a-fA-F]{16,}\b`)
	tokenLike  = regexp.MustCompile(`[0-9A-Za-z]{12,}`)
	numberLike = regexp.MustCompile(`-?\d+([.,:]\d+)*`)
	quoted     = regexp.MustCompile(`"[^"]*"|'[^']*'`)
)

// Bounds of a fingerprint's work: what is read of the text, and what is hashed of it once the ids are out.
// The second is counted afterwards, so that an id of another length does not move the end.
const (
	fingerprintReads  = 4 << 10
	fingerprintHashes = 512
)

// Fingerprint groups failures of one cause: ids, numbers and quoted values are replaced before the text
// is hashed, so that the same fault with another order id gives the same result. 16 hexadecimal digits.
func Fingerprint(class, errType, text string) string {
	text = Clip(text, fingerprintReads)
	text = quoted.ReplaceAllString(text, "<value>")
	text = uuidLike.ReplaceAllString(text, "<id>")
	text = hexLike.ReplaceAllString(text, "<id>")
	text = tokenLike.ReplaceAllStringFunc(text, token)
	text = numberLike.ReplaceAllString(text, "<n>")
	text = Clip(text, fingerprintHashes)
	sum := sha256.Sum256([]byte(strings.Join([]string{class, errType, text}, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// token replaces a long word with digits in it (ULID, KSUID) and leaves long words alone.
func token(word string) string {
	if strings.ContainsAny(word, "0123456789") {
		return "<id>"
	}
	return word
}
