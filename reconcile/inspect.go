package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/usertable"
	"github.com/surefoot-mq/surefoot/resilience"
)

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
func (e *FaultError) Error() string { return fmt.Sprintf("reconcile rule %q: %s", e.Rule, e.Problem) }

// Check compares every rule with the tables and queries it names: they exist with their columns, these have types that fit, and this
// database role may read and write them. Every fault names its rule. What works but slowly is returned as warnings. Other services are
// not asked.
func (r *Reconciler) Check(ctx context.Context) (warnings []string, err error) {
	if err := pg.CheckVersion(ctx, r.options.Pool, r.options.Schema); err != nil {
		return nil, err
	}
	var faults []error
	for _, rule := range r.options.Rules {
		found, err := r.check(ctx, rule)
		faults, warnings = append(faults, err), append(warnings, found...)
	}
	return warnings, errors.Join(faults...)
}

func (r *Reconciler) check(ctx context.Context, rule Rule) (warnings []string, err error) {
	c, err := r.compile(ctx, rule)
	if err != nil {
		return nil, err
	}
	if _, err := r.find(ctx, c, time.Time{}, 0); err != nil {
		return nil, misfit(rule, "what finds its suspects", err)
	}
	if authority, ok := rule.Authority.(*SQLAuthority); ok {
		if err := authority.check(ctx); err != nil {
			return nil, misfit(rule, "the authority's query", err)
		}
	}
	return c.warnings, nil
}

// misfit makes a fault of what PostgreSQL says of a statement itself: wrong syntax or names (class 42), or a query that would write.
func misfit(rule Rule, what string, err error) error {
	state := resilience.SQLStateOf(err)
	if strings.HasPrefix(state, "42") || state == "25006" {
		return &FaultError{Rule: rule.Name, Problem: fmt.Sprintf("%s cannot be run: %s", what, usertable.Bounded(err)), Denied: state == pg.InsufficientPrivilege}
	}
	return fmt.Errorf("check reconcile rule %q: %w", rule.Name, err)
}

// compile looks at the rule's table and writes its statements.
func (r *Reconciler) compile(ctx context.Context, rule Rule) (c *compiled, err error) {
	var warnings []string
	look := &usertable.Look{
		Fault: func(problem string, denied bool) error {
			return &FaultError{Rule: rule.Name, Problem: problem, Denied: denied}
		},
		NotATable: "name the table behind it, and find suspects with a query",
	}
	err = look.At(ctx, r.options.Pool, rule.Table, func(ctx context.Context) error {
		checkColumns(look, rule)
		if look.Faulty() {
			return nil
		}
		if warnings, err = checkIndexes(ctx, look, rule); err != nil {
			return err
		}
		return checkValues(ctx, look, rule)
	})
	switch {
	case look.Faulty():
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("check reconcile rule %q: %w", rule.Name, err)
	}
	return newCompiled(rule, look, warnings, r.options.Schema), nil
}

func checkColumns(look *usertable.Look, r Rule) {
	look.Key("Key", r.Key)
	look.Column("Status", r.Status, true)
	if r.ReasonColumn != "" {
		look.Column("ReasonColumn", r.ReasonColumn, true)
	}
	if r.Clock != "" {
		look.Clock("Clock", r.Clock, false)
	}
	if r.ChangedColumn != "" {
		look.Clock("ChangedColumn", r.ChangedColumn, true)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Columns)) {
		look.Column("Columns "+name, r.Columns[name], false)
	}
}

func checkIndexes(ctx context.Context, look *usertable.Look, r Rule) (warnings []string, err error) {
	found, keyed, _, err := look.Indexes(ctx, r.Key, r.Status, r.Clock)
	if err != nil {
		return nil, err
	}
	warn := func(format string, args ...any) {
		warnings = append(warnings, fmt.Sprintf("reconcile rule %q: ", r.Name)+fmt.Sprintf(format, args...))
	}
	if !found && r.Query == "" {
		warn("no index of %s begins with %q or %q, so that every cycle reads the whole table; create one on (%q, %q)",
			r.Table, r.Status, r.Clock, r.Status, r.Clock)
	}
	if !keyed {
		warn("no index of %s begins with %q, so that every change reads the whole table", r.Table, r.Key)
	}
	return warnings, nil
}

func checkValues(ctx context.Context, look *usertable.Look, r Rule) error {
	err := look.Values(ctx, "Status", r.Status, r.Suspects...)
	for _, answer := range slices.Sorted(maps.Keys(r.Answers)) {
		err = errors.Join(err, look.Values(ctx, "Status", r.Status, r.Answers[answer].NewStatus))
		if r.ReasonColumn != "" {
			err = errors.Join(err, look.Values(ctx, "ReasonColumn", r.ReasonColumn, r.Answers[answer].Reason))
		}
	}
	return err
}
