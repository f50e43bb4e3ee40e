package watchdog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/usertable"
)

// Check compares every rule with the tables it names: they exist with their columns, these have types that
// fit, and this database role may read and write them. Every fault names its rule and column. What works but
// slowly or not as expected (no index for the claim, a key that is not unique) is returned as warnings.
func (w *Watchdog) Check(ctx context.Context) (warnings []string, err error) {
	if err := pg.CheckVersion(ctx, w.options.Pool, w.options.Schema); err != nil {
		return nil, err
	}
	var faults []error
	for _, rule := range w.options.Rules {
		compiled, err := w.compile(ctx, rule)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		warnings = append(warnings, compiled.warnings...)
	}
	return warnings, errors.Join(faults...)
}

// FaultError says that a rule does not fit the tables: waiting does not help.
type FaultError struct {
	// Rule that is at fault.
	Rule string
	// Problem says what is wrong and what to do.
	Problem string
	// Denied: the rule fits, and the database role may not do what it needs.
	Denied bool
}

// Error implements error.
func (e *FaultError) Error() string { return fmt.Sprintf("watchdog rule %q: %s", e.Rule, e.Problem) }

// compile looks at the rule's table and writes its statements.
func (w *Watchdog) compile(ctx context.Context, r Rule) (c *compiled, err error) {
	var warnings []string
	look := &usertable.Look{
		Fault: func(problem string, denied bool) error {
			return &FaultError{Rule: r.Name, Problem: problem, Denied: denied}
		},
		NotATable: "views cannot be locked row by row: name the table behind it",
	}
	err = look.At(ctx, w.options.Pool, r.Table, func(ctx context.Context) error {
		checkColumns(look, r)
		if look.Faulty() {
			return nil
		}
		if warnings, err = checkIndexes(ctx, look, r); err != nil {
			return err
		}
		return checkValues(ctx, look, r)
	})
	switch {
	case look.Faulty():
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("check watchdog rule %q: %w", r.Name, err)
	}
	return newCompiled(r, look, warnings, w.options.Schema), nil
}

func checkColumns(look *usertable.Look, r Rule) {
	look.Key("Key", r.Key)
	look.Column("Status", r.Status, true)
	look.Clock("Clock", r.Clock, false)
	if r.ReasonColumn != "" {
		look.Column("ReasonColumn", r.ReasonColumn, true)
	}
	if r.ChangedColumn != "" {
		look.Clock("ChangedColumn", r.ChangedColumn, true)
	}
	for _, field := range slices.Sorted(maps.Keys(r.Payload)) {
		look.Column("Payload "+field, r.Payload[field], false)
	}
}

func checkIndexes(ctx context.Context, look *usertable.Look, r Rule) (warnings []string, err error) {
	indexed, _, unique, err := look.Indexes(ctx, r.Key, r.Status, r.Clock)
	if err != nil {
		return nil, err
	}
	warn := func(format string, args ...any) {
		warnings = append(warnings, fmt.Sprintf("watchdog rule %q: ", r.Name)+fmt.Sprintf(format, args...))
	}
	if !indexed {
		warn("no index of %s begins with %q or %q, so that every cycle reads the whole table; create one on (%q, %q)",
			r.Table, r.Status, r.Clock, r.Status, r.Clock)
	}
	if !unique {
		warn("no unique index of %s is on %q alone; rows that share a key are changed together, with one event", r.Table, r.Key)
	}
	return warnings, nil
}

func checkValues(ctx context.Context, look *usertable.Look, r Rule) error {
	err := look.Values(ctx, "Status", r.Status, append(slices.Clone(r.Stuck), r.NewStatus)...)
	if r.ReasonColumn != "" {
		err = errors.Join(err, look.Values(ctx, "ReasonColumn", r.ReasonColumn, r.Reason))
	}
	return err
}
