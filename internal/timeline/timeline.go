package timeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/internal/telemetry"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// Store says who knows of a step.
type Store string

const (
	// StoreID is the message's id itself: one of version 7 has the time at which it was made.
	StoreID Store = "id"
	// StoreOutbox are rows that are pending or parked, ids enqueued once, and what operators asked of them.
	StoreOutbox Store = "outbox"
	// StoreInbox has what handlers have committed, and what was started after a crash.
	StoreInbox Store = "inbox"
	// StoreIndex is the index of the dead letters.
	StoreIndex Store = "dlq index"
	// StoreRun are redrives.
	StoreRun Store = "run"
	// StoreArchive has what was discarded or replaced.
	StoreArchive Store = "archive"
	// StoreEdit are edits.
	StoreEdit Store = "edit"
	// StoreAudit is what operators did.
	StoreAudit Store = "audit"
	// StoreMessage is the failure record in the message, where it was found.
	StoreMessage Store = "message"
)

// Step is one thing that happened to a message.
type Step struct {
	// At is when; zero: that is not known.
	At    message.Stamp `json:"at,omitzero"`
	Store Store         `json:"store"`
	// What happened, in a few words of ours.
	What string `json:"what"`
	// Detail may have text of the message, or of an operator.
	Detail string `json:"detail,omitempty"`
	// Queue is the work queue that it concerns, if any.
	Queue string `json:"queue,omitempty"`
	// Operation or run that it belongs to, if any.
	Operation uuid.NullUUID `json:"operation,omitzero"`
	// Who did it, of an operator.
	Who string `json:"who,omitempty"`
	// Failed says that something went wrong here.
	Failed bool `json:"failed,omitempty"`

	after time.Time // of a step without a time: what it surely comes after
}

// Link is another message that has to do with this one.
type Link struct {
	// Relation is "caused by", "caused", "edited from" or "edited to".
	Relation string `json:"relation"`
	ID       string `json:"id"`
	Type     string `json:"type,omitempty"`
	// Place is where it is, when that is known: "outbox".
	Place string `json:"place,omitempty"`
}

// Letter is a dead letter that the index has as being there: whoever wants the attempts looks for it in the queue.
type Letter struct {
	VHost string `json:"vhost"`
	Queue string `json:"queue"`
	// Depth is how many letters the index has of that queue: a look walks over as many at most.
	Depth int `json:"depth"`
}

// Timeline is what is known of a message.
type Timeline struct {
	ID string `json:"id"`
	// What is known of the message from any store; empty: nothing.
	Type          string `json:"type,omitempty"`
	Key           string `json:"key,omitempty"`
	Source        string `json:"source,omitempty"`
	CorrelationID string `json:"correlation_id,omitempty"`
	// TraceID is by what a tracing backend finds its trace.
	TraceID string `json:"trace_id,omitempty"`
	// Places are where it is, as far as the stores know; empty: no store knows.
	Places []string `json:"places"`
	// Steps by time; those whose time is not known come first.
	Steps []Step `json:"steps"`
	Links []Link `json:"links"`
	// Letters are its dead letters that lie in a queue.
	Letters []Letter `json:"letters"`
	// Unknown says in sentences what no store can tell.
	Unknown []string `json:"unknown"`

	own      bool            // a row of its own is in the outbox
	searched bool            // the outbox was read to its end
	left     bool            // something was seen of it behind the outbox
	discard  bool            // an operator discarded its row in the outbox
	once     bool            // its id is among those enqueued once
	settled  map[string]bool // work queues whose consumer has processed it, or in whose dead-letter queue it lies
}

// Bounds of a timeline: what is beyond is said to be left out.
const (
	maxSteps  = 1000
	maxTraced = 100
	maxDetail = 500
	// searchLimit is how long the outbox is searched, which takes the longer the more rows are pending.
	searchLimit = 5 * time.Second
)

// UnknownError says that no store knows the message.
type UnknownError struct {
	ID string
	// Searched says that the outbox was read to its end.
	Searched bool
	// Memory is how long the inbox that remembers the shortest does so; 0: there is no inbox here.
	Memory time.Duration
}

// Error says what that means, and what to do next.
func (e *UnknownError) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "no store knows message %s: ", message.Clip(e.ID, message.MaxShortString))
	if e.Searched {
		text.WriteString("it is not in the outbox (published, or never enqueued)")
	} else {
		fmt.Fprintf(&text, "the outbox could not be searched to its end within %s (see `surefoot outbox show`)", searchLimit)
	}
	text.WriteString(", it has not died as far as the index knows")
	if e.Memory > 0 {
		fmt.Fprintf(&text, ", and no handler has committed it within the last %s", days(e.Memory))
	} else {
		text.WriteString(", and no consumer has an inbox here")
	}
	text.WriteString("; it may be on its way, in a queue or a retry queue. Check the id, look for it in the logs and traces, " +
		"and bring the index into line with `surefoot dlq groups --scan`")
	return text.String()
}

func days(d time.Duration) string {
	if d >= 48*time.Hour && d%(24*time.Hour) == 0 {
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	}
	return d.String()
}

// ErrBadID says that no message can have the id.
var ErrBadID = errors.New("timeline: a message id has 1 to 255 bytes, and no NUL")

// Of puts together what the stores in a schema know of a message, in one snapshot of the database. It fails with an [*UnknownError] when
// that is nothing. It searches the outbox for at most five seconds, and says so when that was not enough.
func Of(ctx context.Context, pool *pgxpool.Pool, schema, id string) (Timeline, error) {
	if id == "" || len(id) > message.MaxShortString || strings.Contains(id, "\x00") {
		return Timeline{}, ErrBadID
	}
	id = message.Storable(id, message.MaxShortString)
	r := &reader{schema: pg.Schema(schema), t: Timeline{ID: id, Places: []string{}, Steps: []Step{}, Links: []Link{}, Letters: []Letter{}, Unknown: []string{}, settled: map[string]bool{}}}
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, pool, options, func(tx pgx.Tx) error { r.tx = tx; return r.all(ctx) })
	if err != nil {
		return Timeline{}, fmt.Errorf("history of a message: %w", err)
	}
	if len(r.t.Steps) == 0 && len(r.t.Links) == 0 {
		return Timeline{}, &UnknownError{ID: id, Searched: r.t.searched, Memory: r.memory}
	}
	r.t.conclude(r.memory)
	return r.t, nil
}

// reader fills a timeline. For one goroutine.
type reader struct {
	schema string
	tx     pgx.Tx
	t      Timeline
	memory time.Duration
}

func (r *reader) all(ctx context.Context) error {
	for _, read := range []func(context.Context) error{
		r.outbox, r.once, r.requests, r.inboxes, r.inbox, r.suspects, r.letters, r.runs, r.archive, r.edits, r.audit,
	} {
		if err := read(ctx); err != nil {
			return err
		}
	}
	return nil
}

// search runs what may take long in a savepoint and with a limit of its own; false: it was cut off.
func (r *reader) search(ctx context.Context, do func(tx pgx.Tx) error) (done bool, err error) {
	tx, err := r.tx.Begin(ctx)
	if err != nil {
		return false, err
	}
	_, err = tx.Exec(ctx, fmt.Sprintf("SET LOCAL statement_timeout = %d", searchLimit.Milliseconds()))
	if err == nil {
		err = do(tx)
	}
	if undone := tx.Rollback(ctx); err == nil {
		err = undone
	}
	if resilience.SQLStateOf(err) == "57014" && ctx.Err() == nil {
		return false, nil
	}
	return err == nil, err
}

func (t *Timeline) add(s Step) {
	s.Detail = message.Clip(s.Detail, maxDetail)
	t.Steps = append(t.Steps, s)
}

func (t *Timeline) place(format string, args ...any) {
	t.Places = append(t.Places, fmt.Sprintf(format, args...))
}

func (t *Timeline) unknown(format string, args ...any) {
	t.Unknown = append(t.Unknown, fmt.Sprintf(format, args...))
}

// made adds the time that the id itself has, of version 7.
func (t *Timeline) made() {
	id, err := uuid.Parse(t.ID)
	if err != nil || id.Version() != 7 || id.String() != t.ID {
		return
	}
	at := time.UnixMilli(int64(id[0])<<40 | int64(id[1])<<32 | int64(id[2])<<24 | int64(id[3])<<16 | int64(id[4])<<8 | int64(id[5]))
	t.add(Step{At: message.Stamp{Time: at}, Store: StoreID, What: "id made", Detail: "by the clock of whoever made it; a UUID of version 7 says so itself"})
}

// published says what follows from a message's not being in the outbox.
func (t *Timeline) published() {
	const kept = "the outbox keeps no row after the confirm"
	t.made()
	switch {
	case t.own: // it says itself where it is
	case !t.searched:
		t.unknown("Whether it is still in the outbox: that could not be searched to its end within %s. `surefoot outbox show` takes as long as it needs.", searchLimit)
	case t.left:
		t.add(Step{Store: StoreOutbox, What: "published", Detail: "at a time that is not known: " + kept + "; or it came to the broker by another way", after: t.enqueued()})
		t.unknown("When it was published and confirmed: %s.", kept)
	case t.discard:
		t.place("discarded from the outbox")
	case t.once:
		t.unknown("When it was published and confirmed, or whether somebody deleted its row: %s.", kept)
	default:
		t.unknown("Whether it was published, or never enqueued: it is not in the outbox, and %s.", kept)
	}
}

// enqueued is the last time that is known from before the broker.
func (t *Timeline) enqueued() (at time.Time) {
	for _, s := range t.Steps {
		if (s.Store == StoreID || s.Store == StoreOutbox) && s.At.After(at) {
			at = s.At.Time
		}
	}
	return at
}

// conclude brings the steps into their order, and says what nobody knows.
func (t *Timeline) conclude(memory time.Duration) {
	t.published()
	if len(t.Places) == 0 {
		t.unknown("Where it is now: a message that waits in a queue or in a retry queue is in no table. Look at the depth of its queues, and in the logs for its id.")
	}
	if memory > 0 {
		t.unknown("What was processed longer ago than the inbox remembers (%s at least), and the attempts of queues that have no inbox here.", days(memory))
	}
	t.unknown("What it caused that was published already: an event is known by its cause only while it is in the outbox. Its traces have the rest.")
	t.sort()
}

func (t *Timeline) sort() {
	slices.SortStableFunc(t.Steps, func(a, b Step) int { return cmp.Compare(order(a), order(b)) })
	if len(t.Steps) > maxSteps {
		t.unknown("%d steps, the oldest, are left out.", len(t.Steps)-maxSteps)
		t.Steps = t.Steps[len(t.Steps)-maxSteps:]
	}
}

// order of a step, in microseconds; one of which nothing is known comes first.
func order(s Step) int64 {
	if at := s.At.Time; !at.IsZero() {
		return at.UnixMicro()
	}
	if !s.after.IsZero() {
		return s.after.UnixMicro()
	}
	return 0
}

// Found is what a look at a dead letter tells.
type Found struct {
	Type, Key, Source, CorrelationID, CausationID, TraceParent string
	Attempts                                                   []message.Attempt
}

// AddLetter adds what a look at the message in a dead-letter queue has found: who it is, and its failed attempts.
func (t *Timeline) AddLetter(queue string, f Found) {
	t.Type, t.Key, t.Source = cmp.Or(t.Type, f.Type), cmp.Or(t.Key, f.Key), cmp.Or(t.Source, f.Source)
	t.CorrelationID, t.TraceID = cmp.Or(t.CorrelationID, f.CorrelationID), cmp.Or(t.TraceID, telemetry.TraceID(f.TraceParent))
	t.causedBy(f.CausationID)
	t.attempts(queue, f.Attempts)
	t.sort()
}

// attempts adds each once: a letter that was archived, restored and archived again tells them in each copy.
func (t *Timeline) attempts(queue string, attempts []message.Attempt) {
	for _, a := range attempts {
		what := fmt.Sprintf("attempt %d failed", a.Number)
		if !a.At.IsZero() && slices.ContainsFunc(t.Steps, func(s Step) bool {
			return s.Store == StoreMessage && s.What == what && s.Queue == queue && s.At.Equal(a.At)
		}) {
			continue
		}
		detail := a.Class + ": " + a.Message
		if a.Host != "" {
			detail += " (on " + a.Host + ")"
		}
		t.add(Step{
			At: message.Stamp{Time: a.At}, Store: StoreMessage, What: what, Queue: queue, Failed: true, Detail: detail,
		})
	}
}

func (t *Timeline) causedBy(id string) {
	link := Link{Relation: "caused by", ID: id}
	if id != "" && !slices.Contains(t.Links, link) {
		t.Links = append(t.Links, link)
	}
}
