package dlqindex

import (
	"crypto/sha256"
	"encoding/binary"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
)

// Bounds of the texts in bytes; longer ones are cut.
const (
	maxClass   = 64
	maxName    = 128
	maxExample = 300
)

// Letter is what an entry is made of: a message as it lies in the dead-letter queue.
type Letter struct {
	ID, Type, Source, CorrelationID string
	Timestamp                       time.Time
	Headers                         amqp.Table
	Body                            []byte
	// Class is that of its failure, or the broker's reason.
	Class string
	// DiedAt is when it failed last, or was dead-lettered by the broker; zero when that is not known.
	DiedAt time.Time
}

// Entry is a row of the index.
type Entry struct {
	Key                      uuid.UUID
	MessageID                string
	Type, Class, Fingerprint string
	ErrorType, ErrorMessage  string
	Version                  string
	DiedAt                   time.Time // zero: not known
	Redrives                 int
	Run                      uuid.NullUUID
	Copies                   int
}

// Of makes an entry of one letter.
func Of(l Letter) Entry {
	f := message.FailureOf(l.Headers)
	redrives, _ := message.Integer(l.Headers[message.HeaderRedriveCount])
	return Entry{
		Key: Key(l), MessageID: message.Storable(l.ID, message.MaxShortString),
		Type: message.Storable(l.Type, message.MaxShortString), Class: message.Storable(l.Class, maxClass),
		Fingerprint: Fingerprint(l.Class, f.Type, f.Message, f.Fingerprint),
		ErrorType:   message.Storable(f.Type, maxName), ErrorMessage: message.Storable(f.Message, maxExample),
		Version: message.Storable(f.Version, maxName), DiedAt: storableTime(l.DiedAt),
		Redrives: int(min(max(redrives, 0), 1<<30)), Run: runOf(l.Headers), Copies: 1,
	}
}

func runOf(h amqp.Table) uuid.NullUUID {
	id, err := uuid.Parse(message.Text(h, message.HeaderRedriveRun))
	return uuid.NullUUID{UUID: id, Valid: err == nil}
}

var isFingerprint = regexp.MustCompile(`^[0-9a-f]{16}$`)

// Fingerprint is the one that the record has, believed only in its own form, for the headers come from anywhere; else one of
// the failure's class, type and text.
func Fingerprint(class, errType, text, recorded string) string {
	if isFingerprint.MatchString(recorded) {
		return recorded
	}
	return message.Fingerprint(class, errType, text)
}

// storableTime drops times that PostgreSQL or a reader of RFC 3339 could not take.
func storableTime(t time.Time) time.Time {
	if year := t.UTC().Year(); year < 1970 || year > 9999 {
		return time.Time{}
	}
	return t
}

// Key identifies a message wherever its letter stands: by its id, as the inbox does; one without an id by its body and by what
// retries and redrives keep of it.
func Key(l Letter) uuid.UUID {
	if l.ID != "" {
		return pg.InboxKey(l.ID)
	}
	sum := sha256.Sum256(l.Body)
	var at [8]byte
	if !l.Timestamp.IsZero() {
		binary.BigEndian.PutUint64(at[:], uint64(l.Timestamp.Unix()))
	}
	return pg.InboxKey(strings.Join([]string{
		"dead letter without id", l.Type, l.Source, l.CorrelationID, message.Text(l.Headers, message.HeaderKey), string(at[:]), string(sum[:]),
	}, "\x00"))
}

// merge makes one entry of each message: copies add up, and the one that died last speaks for all.
func merge(entries []Entry) []Entry {
	at := make(map[uuid.UUID]int, len(entries))
	merged := make([]Entry, 0, len(entries))
	for _, e := range entries {
		i, there := at[e.Key]
		if !there {
			at[e.Key] = len(merged)
			merged = append(merged, e)
			continue
		}
		copies := merged[i].Copies + e.Copies
		if e.DiedAt.After(merged[i].DiedAt) {
			merged[i] = e
		}
		merged[i].Copies = copies
	}
	return merged
}
