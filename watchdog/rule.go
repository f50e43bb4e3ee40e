package watchdog

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/surefoot-mq/surefoot/internal/usertable"
	"github.com/surefoot-mq/surefoot/message"
)

// Bounds of a rule.
const (
	maxPayload = 20
	maxStuck   = 32
	maxText    = 255
)

// ruleName keeps a name fit for a metric label and for the source of an event.
var ruleName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// Rule says which rows may not stay as they are, and what becomes of them. It is a plain value.
type Rule struct {
	// Name tells the rule from others: up to 64 letters, digits, "_", "." and "-". It is part of the events'
	// ids, so a renamed rule is another rule. Required.
	Name string
	// Table with its schema, such as orders.orders. Names that are not plain are put in double quotes, as in
	// SQL. Required.
	Table string
	// Key is the column that identifies a row, of any type, NOT NULL; its text becomes the event's key. Rows
	// that share a key are changed together. Required.
	Key string
	// Status is the column that holds the state: text, an enum, or anything that can be written as text.
	// Required.
	Status string
	// Stuck are the statuses that must not last. Required, at most 32.
	Stuck []string
	// Clock is the timestamptz column that says since when. Rows where it is NULL or infinite are left alone.
	// Required.
	Clock string
	// Limit is how long a stuck status may last, from Clock. Required, more than 0.
	Limit time.Duration
	// NewStatus is what the row's status becomes. Required.
	NewStatus string
	// Reason is written into the event, for example PAYMENT_TIMEOUT. Required.
	Reason string
	// EventType is the event's type and routing key. Required.
	EventType string
	// Exchange of the event. Default: the relay's exchange.
	Exchange string
	// ReasonColumn also gets Reason. Default: none.
	ReasonColumn string
	// ChangedColumn, a timestamptz, gets the time of the change. Default: none.
	ChangedColumn string
	// Payload adds columns to the event: JSON name to column. Their values are those after the change.
	// Default: none, at most 20.
	Payload map[string]string
}

// reservedFields are the names in the payload that the watchdog writes itself.
var reservedFields = []string{"key", "rule", "reason", "status", "previousStatus", "overdueSince"}

// validate lists everything that is wrong with the rule's form.
func (r Rule) validate() error {
	var faults []error
	wrong := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("rule %q: "+format, append([]any{message.Clip(r.Name, 100)}, args...)...))
	}
	if !ruleName.MatchString(r.Name) {
		wrong(`Name must be 1 to 64 letters, digits, "_", "." and "-"`)
	}
	if _, err := usertable.ParseName(r.Table); err != nil {
		wrong("Table %q %w", message.Clip(r.Table, maxText), err)
	}
	if r.Limit <= 0 {
		wrong("Limit is %s, but must be more than 0", r.Limit)
	}
	r.checkColumns(wrong)
	r.checkStatuses(wrong)
	r.checkEvent(wrong)
	return errors.Join(faults...)
}

type report func(format string, args ...any)

func (r Rule) checkColumns(wrong report) {
	for _, c := range []struct {
		field, name string
		optional    bool
	}{
		{"Key", r.Key, false},
		{"Status", r.Status, false},
		{"Clock", r.Clock, false},
		{"ReasonColumn", r.ReasonColumn, true},
		{"ChangedColumn", r.ChangedColumn, true},
	} {
		if c.optional && c.name == "" {
			continue
		}
		if fault := usertable.IdentifierFault(c.name); fault != "" {
			wrong("%s names column %q, which %s", c.field, message.Clip(c.name, maxText), fault)
		}
	}
	for field, column := range r.Payload {
		if fault := usertable.IdentifierFault(column); fault != "" {
			wrong("Payload %q names column %q, which %s", message.Clip(field, maxText), message.Clip(column, maxText), fault)
		}
	}
	for _, column := range []string{r.ReasonColumn, r.ChangedColumn} {
		if column != "" && (column == r.Status || column == r.Key) {
			wrong("column %q cannot be set twice: it is already Status or Key", column)
		}
	}
	if r.ReasonColumn != "" && r.ReasonColumn == r.ChangedColumn {
		wrong("ReasonColumn and ChangedColumn are both %q", r.ReasonColumn)
	}
}

func (r Rule) checkStatuses(wrong report) {
	if len(r.Stuck) == 0 || len(r.Stuck) > maxStuck {
		wrong("Stuck has %d statuses, but must have 1 to %d", len(r.Stuck), maxStuck)
	}
	for _, status := range append([]string{r.NewStatus}, r.Stuck...) {
		if fault := usertable.TextFault(status, maxText); fault != "" {
			wrong("status %q %s", message.Clip(status, maxText), fault)
		}
	}
	if slices.Contains(r.Stuck, r.NewStatus) {
		wrong("NewStatus %q is one of Stuck: the row would stay stuck", message.Clip(r.NewStatus, maxText))
	}
}

func (r Rule) checkEvent(wrong report) {
	if fault := usertable.TextFault(r.Reason, maxText); fault != "" {
		wrong("Reason %s", fault)
	}
	m := message.Message{Type: r.EventType, Exchange: r.Exchange, Source: r.source()}
	if err := m.Validate(0); err != nil {
		wrong("EventType or Exchange: %w", err)
	}
	if len(r.Payload) > maxPayload {
		wrong("Payload has %d columns, but may have %d at most", len(r.Payload), maxPayload)
	}
	for field := range r.Payload {
		if fault := usertable.TextFault(field, maxText); fault != "" {
			wrong("Payload has the name %q, which %s", message.Clip(field, maxText), fault)
		}
		if slices.Contains(reservedFields, field) {
			wrong("Payload has the name %q, which the watchdog writes itself", field)
		}
	}
}

func (r Rule) source() string { return "watchdog/" + r.Name }
