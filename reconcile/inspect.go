package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

const (
	findTableSQL = `
SELECT c.oid, c.relkind IN ('r', 'p'), has_schema_privilege(n.oid, 'USAGE')
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2`

	// format_type with -1 gives the type without its length: a cast to varchar(4) would cut a status and match another one.
	listColumnsSQL = `
SELECT a.attname, a.attnum, format_type(a.atttypid, -1), a.attnotnull, a.attgenerated <> '',
       has_column_privilege(a.attrelid, a.attnum, 'SELECT'), has_column_privilege(a.attrelid, a.attnum, 'UPDATE')
FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`

	findIndexesSQL = `
SELECT coalesce(bool_or(i.indkey[0] = ANY ($2::int2[])), false), coalesce(bool_or(i.indkey[0] = $3::int2), false)
FROM pg_catalog.pg_index AS i WHERE i.indrelid = $1 AND i.indisvalid`
)

const clockType = "timestamp with time zone"

// column is what the catalog says of one.
type column struct {
	Name                string
	Number              int16
	Type                string
	NotNull, Generated  bool
	MaySelect, MayWrite bool
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
		return &FaultError{Rule: rule.Name, Problem: fmt.Sprintf("%s cannot be run: %s", what, bounded(err)), Denied: state == "42501"}
	}
	return fmt.Errorf("check reconcile rule %q: %w", rule.Name, err)
}

// compile reads the catalog and writes the rule's statements. The search path is emptied meanwhile, so that types are named with
// their schemas and mean the same in every session.
func (r *Reconciler) compile(ctx context.Context, rule Rule) (*compiled, error) {
	i := &inspection{rule: rule}
	err := pgx.BeginFunc(ctx, r.options.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL search_path = pg_catalog`); err != nil {
			return err
		}
		return i.run(ctx, tx)
	})
	if err != nil {
		return nil, fmt.Errorf("check reconcile rule %q: %w", rule.Name, err)
	}
	if len(i.faults) > 0 {
		return nil, errors.Join(i.faults...)
	}
	return newCompiled(rule, i, r.options.Schema), nil
}

// inspection is the look at one rule's table. Faults are what a person must mend; errors of the database are returned as such.
type inspection struct {
	rule     Rule
	oid      uint32
	columns  map[string]column
	faults   []error
	warnings []string
}

func (i *inspection) fault(format string, args ...any) {
	i.faults = append(i.faults, &FaultError{Rule: i.rule.Name, Problem: fmt.Sprintf(format, args...)})
}

func (i *inspection) denied(format string, args ...any) {
	i.faults = append(i.faults, &FaultError{Rule: i.rule.Name, Problem: fmt.Sprintf(format, args...), Denied: true})
}

func (i *inspection) warn(format string, args ...any) {
	i.warnings = append(i.warnings, fmt.Sprintf("reconcile rule %q: ", i.rule.Name)+fmt.Sprintf(format, args...))
}

func (i *inspection) run(ctx context.Context, tx pgx.Tx) error {
	found, err := i.findTable(ctx, tx)
	if err != nil || !found {
		return err
	}
	rows, err := tx.Query(ctx, listColumnsSQL, i.oid)
	if err != nil {
		return err
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[column])
	if err != nil {
		return err
	}
	i.columns = make(map[string]column, len(list))
	for _, c := range list {
		i.columns[c.Name] = c
	}
	i.checkColumns()
	if len(i.faults) > 0 {
		return nil
	}
	if err := i.checkIndexes(ctx, tx); err != nil {
		return err
	}
	return i.checkValues(ctx, tx)
}

func (i *inspection) findTable(ctx context.Context, tx pgx.Tx) (bool, error) {
	name, err := parseTable(i.rule.Table)
	if err != nil {
		return false, err
	}
	var isTable, usable bool
	err = tx.QueryRow(ctx, findTableSQL, name[0], name[1]).Scan(&i.oid, &isTable, &usable)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		i.fault("table %s does not exist; write it as schema.table, exactly as it is in the database", name.Sanitize())
	case err != nil:
		return false, err
	case !isTable:
		i.fault("%s is not a table; name the table behind it, and find suspects with a query", name.Sanitize())
	case !usable:
		i.denied("this database role may not use schema %s; grant it USAGE", name[:1].Sanitize())
	}
	return len(i.faults) == 0, nil
}

func (i *inspection) checkColumns() {
	r := i.rule
	if key, ok := i.column("Key", r.Key, false); ok && !key.NotNull {
		i.fault("column %q (Key) may be NULL, and such a row could never be changed; make it NOT NULL", r.Key)
	}
	i.column("Status", r.Status, true)
	if r.ReasonColumn != "" {
		i.column("ReasonColumn", r.ReasonColumn, true)
	}
	for _, c := range []struct {
		field, name string
		written     bool
	}{{"Clock", r.Clock, false}, {"ChangedColumn", r.ChangedColumn, true}} {
		if c.name == "" {
			continue
		}
		if found, ok := i.column(c.field, c.name, c.written); ok && found.Type != clockType {
			i.fault("column %q (%s) has the type %s, but must be %s: anything else depends on the session's zone", c.name, c.field, found.Type, clockType)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Columns)) {
		i.column("Columns "+name, r.Columns[name], false)
	}
}

// column looks one up and reports when it is missing or cannot be used.
func (i *inspection) column(field, name string, written bool) (column, bool) {
	c, ok := i.columns[name]
	switch {
	case !ok:
		i.fault("column %q (%s) does not exist in %s, which has %s", name, field, i.rule.Table,
			strings.Join(slices.Sorted(maps.Keys(i.columns)), ", "))
	case !c.MaySelect:
		i.denied("this database role may not read column %q (%s) of %s; grant it SELECT", name, field, i.rule.Table)
	case written && !c.MayWrite:
		i.denied("this database role may not write column %q (%s) of %s; grant it UPDATE", name, field, i.rule.Table)
	case written && c.Generated:
		i.fault("column %q (%s) of %s is generated and cannot be set", name, field, i.rule.Table)
	}
	return c, ok
}

func (i *inspection) checkIndexes(ctx context.Context, tx pgx.Tx) error {
	r := i.rule
	leading := []int16{i.columns[r.Status].Number, i.columns[r.Clock].Number}
	var found, keyed bool
	if err := tx.QueryRow(ctx, findIndexesSQL, i.oid, leading, i.columns[r.Key].Number).Scan(&found, &keyed); err != nil {
		return err
	}
	if !found && r.Query == "" {
		i.warn("no index of %s begins with %q or %q, so that every cycle reads the whole table; create one on (%q, %q)",
			r.Table, r.Status, r.Clock, r.Status, r.Clock)
	}
	if !keyed {
		i.warn("no index of %s begins with %q, so that every change reads the whole table", r.Table, r.Key)
	}
	return nil
}

// checkValues asks the database whether the texts are values of the columns' types, an enum's for example.
func (i *inspection) checkValues(ctx context.Context, tx pgx.Tx) error {
	r := i.rule
	var failed []error
	for _, status := range r.Suspects {
		failed = append(failed, i.checkValue(ctx, tx, "Status", r.Status, status))
	}
	for _, answer := range slices.Sorted(maps.Keys(r.Answers)) {
		failed = append(failed, i.checkValue(ctx, tx, "Status", r.Status, r.Answers[answer].NewStatus))
		if r.ReasonColumn != "" {
			failed = append(failed, i.checkValue(ctx, tx, "ReasonColumn", r.ReasonColumn, r.Answers[answer].Reason))
		}
	}
	return errors.Join(failed...)
}

func (i *inspection) checkValue(ctx context.Context, tx pgx.Tx, field, name, value string) error {
	c := i.columns[name]
	sub, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	_, invalid := sub.Exec(ctx, `SELECT $1::text::`+c.Type, value)
	if err := sub.Rollback(ctx); err != nil {
		return err
	}
	if invalid != nil {
		i.fault("column %q (%s) has the type %s, which does not take %q: %s", c.Name, field, c.Type, value, bounded(invalid))
	}
	return nil
}

const maxError = 1024

// bounded makes the text of an error fit for the table and for logs.
func bounded(err error) string { return message.Storable(err.Error(), maxError) }
