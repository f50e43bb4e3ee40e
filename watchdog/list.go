package watchdog

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/message"
)

// State says how near a saga is to being changed.
type State string

const (
	// StateOverdue is over its limit: the next cycle changes it.
	StateOverdue State = "overdue"
	// StateFailing is over its limit, and could not be changed so far: it is tried again at NextTry.
	StateFailing State = "failing"
	// StateDueSoon is within its limit, and over it within [Filter.Soon].
	StateDueSoon State = "due-soon"
	// StateHeld is kept from the watchdog by an operator: extended, or skipped.
	StateHeld State = "held"
)

// States are all of them.
func States() []State { return []State{StateOverdue, StateFailing, StateDueSoon, StateHeld} }

// Saga is a row in a status that must not last.
type Saga struct {
	Rule   string `json:"rule"`
	Key    string `json:"key"`
	Status string `json:"status"`
	State  State  `json:"state"`
	// Since is the row's clock.
	Since message.Stamp `json:"since"`
	// Over is how long the row has been over the limit, in nanoseconds; negative: how long it still has, leaving out a hold.
	Over time.Duration `json:"over_ns"`
	// Tries that failed; 0: none was made or none failed.
	Tries int `json:"tries"`
	// Error of the last failed try. It may quote the user's data: escape it before it is shown.
	Error string `json:"error,omitempty"`
	// NextTry of a row that failed.
	NextTry *time.Time `json:"next_try,omitempty"`
	// Hold of an operator; nil: none.
	Hold *Hold `json:"hold,omitempty"`
}

// Hold is what an operator has said of a row, for its present stay in its status.
type Hold struct {
	// Until is when it ends; nil: it does not, the row is skipped.
	Until  *time.Time `json:"until"`
	At     time.Time  `json:"at"`
	Who    string     `json:"who"`
	Reason string     `json:"reason"`
}

// Filter chooses sagas; one must meet every part that is set.
type Filter struct {
	// Rule, by its name. Default: all.
	Rule string
	// Keys of rows, as text; one that cannot be a key of a rule's table is an error. Default: all.
	Keys []string
	// States to list. Default: all.
	States []State
	// Soon is how long before their limit rows are listed. Default: 0, none of these.
	Soon time.Duration
	// Limit is the most rows of each rule, the oldest first. Required.
	Limit int
}

// List returns the sagas that are overdue, due soon, or held although they are one of these, the oldest of each rule first, with what is
// known of their failures. It changes and locks nothing. A rule that does not exist is a [*FaultError].
func (w *Watchdog) List(ctx context.Context, f Filter) ([]Saga, error) {
	rules, err := w.rules(f.Rule)
	if err != nil {
		return nil, err
	}
	all := []Saga{}
	for _, rule := range rules {
		list, err := w.listRule(ctx, rule, f)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

func (w *Watchdog) listRule(ctx context.Context, rule Rule, f Filter) ([]Saga, error) {
	r, err := w.compile(ctx, rule)
	if err != nil {
		return nil, err
	}
	rows, _ := w.options.Pool.Query(ctx, r.list, r.Stuck, r.Limit-max(f.Soon, 0), r.Name, r.Limit, f.Keys, f.States, f.Limit)
	list, err := pgx.CollectRows(rows, scanSaga(rule.Name))
	if err != nil {
		return nil, fmt.Errorf("list sagas of rule %q: %w", rule.Name, err)
	}
	return list, nil
}

// RuleNames are the names of the rules, in their order.
func (w *Watchdog) RuleNames() []string {
	names := make([]string, len(w.options.Rules))
	for i, r := range w.options.Rules {
		names[i] = r.Name
	}
	return names
}

// rules are those of a name, or with an empty one all.
func (w *Watchdog) rules(name string) ([]Rule, error) {
	if name == "" {
		return w.options.Rules, nil
	}
	at := slices.IndexFunc(w.options.Rules, func(r Rule) bool { return r.Name == name })
	if at < 0 {
		return nil, &FaultError{Rule: message.Clip(name, maxText), Problem: "there is no such rule; the rules are " + strings.Join(w.RuleNames(), ", ")}
	}
	return w.options.Rules[at : at+1], nil
}

func scanSaga(rule string) pgx.RowToFunc[Saga] {
	return func(row pgx.CollectableRow) (Saga, error) {
		s := Saga{Rule: rule}
		var until, at *time.Time
		var who, reason *string
		err := row.Scan(&s.Key, &s.Status, &s.Since.Time, &s.Over, &s.State, &s.Tries, &s.Error, &s.NextTry, &until, &at, &who, &reason)
		if err == nil && at != nil {
			s.Hold = &Hold{Until: until, At: *at, Who: *who, Reason: *reason}
		}
		return s, err
	}
}

func clipKey(key string) string { return message.Clip(key, maxKeyShown) }
