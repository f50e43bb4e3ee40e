package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/usertable"
	"github.com/surefoot-mq/surefoot/message"
)

// Bounds of a rule and of what it meets.
const (
	maxColumns  = 20
	maxStatuses = 32
	maxAnswers  = 64
	maxText     = 255
	maxError    = 1024 // of a logged text
	maxQuery    = 64 << 10
)

var (
	// ruleName keeps a name fit for a metric label and for the source of an event.
	ruleName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
	// columnName is what a placeholder can name.
	columnName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)
)

// Rule says which rows are suspects, who knows about them, and what becomes of them.
type Rule struct {
	// Name tells the rule from others: up to 64 letters, digits, "_", "." and "-". It is part of the events' ids. Required.
	Name string
	// Subject is what a row is, for the log line "<subject> discrepancy". Default: "row".
	Subject string
	// Table with its schema, such as inventory.reservations. Names that are not plain are put in double quotes, as in SQL. Required.
	Table string
	// Key is the column that identifies a row, of any type, NOT NULL; its text becomes the event's key. Required.
	Key string
	// Status is the column that holds the state: text, an enum, or anything that can be written as text. Required.
	Status string

	// Suspects are the statuses in which a row may be wrong. Required without Query.
	Suspects []string
	// Clock is the timestamptz column that says since when. With Query it is optional, and if it is named, a change also compares it
	// with what the query returned as since. Required without Query.
	Clock string
	// Age from Clock, before which a row is no suspect. Required without Query, more than 0.
	Age time.Duration
	// Query finds the suspects instead: a SELECT of key, status and since (timestamptz), and any further columns that the authority
	// or the event need. It runs in a read-only transaction, and it alone says how old a suspect is.
	Query string
	// Columns of the row that the authority and the event are told: name to column. Not with Query. Default: none, at most 20.
	Columns map[string]string

	// ReasonColumn also gets the action's Reason. Default: none.
	ReasonColumn string
	// ChangedColumn, a timestamptz, gets the time of a change. Default: none.
	ChangedColumn string

	// Interval between two cycles, and between two questions about a suspect that is fine. Default: the reconciler's.
	Interval time.Duration
	// Authority that is asked. Required.
	Authority Authority
	// Answers that show a row to be wrong, and what then becomes of it. Required.
	Answers map[string]Action
	// Keep are the answers that show a row to be right. An answer that is neither here nor in Answers is none. Default: none.
	Keep []string
}

// Action is what becomes of a row that is wrong.
type Action struct {
	// NewStatus is what the row's status becomes. Required.
	NewStatus string
	// Reason is written into the event, for example ORDER_CANCELLED. Required.
	Reason string
	// EventType is the event's type and routing key. Required.
	EventType string
	// Exchange of the event. Default: the relay's exchange.
	Exchange string
	// Do runs after the change in its transaction; an error rolls both back. It must not use any other connection. Default: nothing.
	Do func(ctx context.Context, tx pgx.Tx, s Suspect) error
}

// reservedFields are the names in the event that the reconciler writes itself.
var reservedFields = []string{"key", "rule", "run", "reason", "answer", "status", "previousStatus", "suspectSince"}

type report func(format string, args ...any)

// validate lists everything that is wrong with the rule's form.
func (r Rule) validate() error {
	var faults []error
	wrong := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("rule %q: "+format, append([]any{message.Clip(r.Name, 100)}, args...)...))
	}
	if !ruleName.MatchString(r.Name) {
		wrong(`Name must be 1 to 64 letters, digits, "_", "." and "-"`)
	}
	if r.Subject != "" && usertable.TextFault(r.Subject, maxText) != "" {
		wrong("Subject %s", usertable.TextFault(r.Subject, maxText))
	}
	if _, err := usertable.ParseName(r.Table); err != nil {
		wrong("Table %q %w", message.Clip(r.Table, maxText), err)
	}
	if r.Interval < 0 {
		wrong("Interval is %s, but must not be less than 0", r.Interval)
	}
	r.checkColumns(wrong)
	r.checkSuspects(wrong)
	r.checkAnswers(wrong)
	r.checkAuthority(wrong)
	return errors.Join(faults...)
}

func (r Rule) checkColumns(wrong report) {
	for _, c := range []struct {
		field, name string
		optional    bool
	}{
		{"Key", r.Key, false},
		{"Status", r.Status, false},
		{"Clock", r.Clock, r.Query != ""},
		{"ReasonColumn", r.ReasonColumn, true},
		{"ChangedColumn", r.ChangedColumn, true},
	} {
		if fault := usertable.IdentifierFault(c.name); fault != "" && (c.name != "" || !c.optional) {
			wrong("%s names column %q, which %s", c.field, message.Clip(c.name, maxText), fault)
		}
	}
	if len(r.Columns) > maxColumns {
		wrong("Columns has %d names, but may have %d at most", len(r.Columns), maxColumns)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Columns)) {
		if !columnName.MatchString(name) || slices.Contains(reservedFields, name) {
			wrong("Columns has the name %q; use letters, digits and underscores, and none of %s", message.Clip(name, maxText), strings.Join(reservedFields, ", "))
		}
		if fault := usertable.IdentifierFault(r.Columns[name]); fault != "" {
			wrong("Columns %q names column %q, which %s", name, message.Clip(r.Columns[name], maxText), fault)
		}
	}
	set := []string{r.Key, r.Status}
	for _, column := range []string{r.ReasonColumn, r.ChangedColumn} {
		if column != "" && slices.Contains(set, column) {
			wrong("column %q cannot be set twice: Key, Status, ReasonColumn and ChangedColumn must differ", message.Clip(column, maxText))
		}
		set = append(set, column)
	}
}

func (r Rule) checkSuspects(wrong report) {
	if r.Query != "" {
		if len(r.Suspects) > 0 || r.Age != 0 || len(r.Columns) > 0 {
			wrong("Suspects, Age and Columns do not go with Query: the query says what they would")
		}
		if len(r.Query) > maxQuery || usertable.TextFault(r.Query[:min(len(r.Query), maxText)], maxText) != "" {
			wrong("Query is longer than %d bytes, or is not valid UTF-8 or has a NUL byte", maxQuery)
		}
		return
	}
	if len(r.Suspects) == 0 || len(r.Suspects) > maxStatuses {
		wrong("Suspects has %d statuses, but must have 1 to %d, or there must be a Query", len(r.Suspects), maxStatuses)
	}
	for _, status := range r.Suspects {
		if fault := usertable.TextFault(status, maxText); fault != "" {
			wrong("suspect status %q %s", message.Clip(status, maxText), fault)
		}
	}
	if r.Age <= 0 {
		wrong("Age is %s, but must be more than 0", r.Age)
	}
}

func (r Rule) checkAnswers(wrong report) {
	if len(r.Answers) == 0 || len(r.Answers)+len(r.Keep) > maxAnswers {
		wrong("Answers and Keep have %d and %d entries; there must be an answer, and %d at most", len(r.Answers), len(r.Keep), maxAnswers)
	}
	for _, answer := range r.Keep {
		if fault := usertable.TextFault(answer, maxText); fault != "" {
			wrong("Keep has the answer %q, which %s", message.Clip(answer, maxText), fault)
		}
		if _, both := r.Answers[answer]; both {
			wrong("answer %q is both in Answers and in Keep", message.Clip(answer, maxText))
		}
	}
	for _, answer := range slices.Sorted(maps.Keys(r.Answers)) {
		r.checkAction(wrong, answer, r.Answers[answer])
	}
}

func (r Rule) checkAction(wrong report, answer string, a Action) {
	shown := message.Clip(answer, maxText)
	for _, text := range []struct{ field, value string }{{"the answer itself", answer}, {"NewStatus", a.NewStatus}, {"Reason", a.Reason}} {
		if fault := usertable.TextFault(text.value, maxText); fault != "" {
			wrong("answer %q: %s %s", shown, text.field, fault)
		}
	}
	if slices.Contains(r.Suspects, a.NewStatus) {
		wrong("answer %q: NewStatus %q is one of Suspects: the row would stay one", shown, message.Clip(a.NewStatus, maxText))
	}
	m := message.Message{Type: a.EventType, Exchange: a.Exchange, Source: r.source()}
	if err := m.Validate(0); err != nil {
		wrong("answer %q: EventType or Exchange: %w", shown, err)
	}
}

// checkAuthority also finds placeholders that the rule's columns do not fill. What a query returns is seen only when it has run.
func (r Rule) checkAuthority(wrong report) {
	if r.Authority == nil {
		wrong("the Authority is missing")
		return
	}
	needs, ok := r.Authority.(interface{ placeholders() []string })
	if !ok || r.Query != "" {
		return
	}
	for _, name := range needs.placeholders() {
		if _, known := r.Columns[name]; !known && name != "key" && name != "status" {
			wrong("the Authority names {%s}, which is neither {key} nor {status} nor one of Columns", message.Clip(name, maxText))
		}
	}
}

func (r Rule) source() string { return "reconcile/" + r.Name }

func (r Rule) subject() string {
	if r.Subject == "" {
		return "row"
	}
	return r.Subject
}
