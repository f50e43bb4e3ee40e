package watchdog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

const (
	findTableSQL = `
SELECT c.oid, c.relkind IN ('r', 'p'), has_schema_privilege(n.oid, 'USAGE')
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2`

	// format_type with -1 gives the type without its length: a cast to varchar(4) would cut a status to 4
	// characters and match another one.
	listColumnsSQL = `
SELECT a.attname, a.attnum, format_type(a.atttypid, -1), a.attnotnull, a.attgenerated <> '',
       has_column_privilege(a.attrelid, a.attnum, 'SELECT'), has_column_privilege(a.attrelid, a.attnum, 'UPDATE')
FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`

	findIndexesSQL = `
SELECT coalesce(bool_or(i.indkey[0] = ANY ($2::int2[])), false),
       coalesce(bool_or(i.indisunique AND i.indnkeyatts = 1 AND i.indkey[0] = $3::int2 AND i.indpred IS NULL), false)
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

// compile reads the catalog and writes the rule's statements. The search path is emptied meanwhile, so that
// types are named with their schemas and mean the same in every session.
func (w *Watchdog) compile(ctx context.Context, rule Rule) (*compiled, error) {
	tx, err := w.options.Pool.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("check watchdog rule %q: %w", rule.Name, err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Exec(ctx, `SET LOCAL search_path = pg_catalog`); err != nil {
		return nil, fmt.Errorf("check watchdog rule %q: %w", rule.Name, err)
	}
	inspection := inspection{rule: rule}
	if err := inspection.run(ctx, tx); err != nil {
		return nil, fmt.Errorf("check watchdog rule %q: %w", rule.Name, err)
	}
	if len(inspection.faults) > 0 {
		return nil, errors.Join(inspection.faults...)
	}
	return newCompiled(rule, inspection, w.options.Schema), nil
}

// inspection is the look at one rule's table. Faults are what a person must mend; errors of the database are
// returned as such.
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
	i.warnings = append(i.warnings, fmt.Sprintf("watchdog rule %q: ", i.rule.Name)+fmt.Sprintf(format, args...))
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
	return i.checkStatuses(ctx, tx)
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
		i.fault("%s is not a table; views cannot be locked row by row: name the table behind it", name.Sanitize())
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
	if clock, ok := i.column("Clock", r.Clock, false); ok && clock.Type != clockType {
		i.fault("column %q (Clock) has the type %s, but must be %s: anything else depends on the session's zone", r.Clock, clock.Type, clockType)
	}
	if r.ReasonColumn != "" {
		i.column("ReasonColumn", r.ReasonColumn, true)
	}
	if r.ChangedColumn != "" {
		if changed, ok := i.column("ChangedColumn", r.ChangedColumn, true); ok && changed.Type != clockType {
			i.fault("column %q (ChangedColumn) has the type %s, but must be %s", r.ChangedColumn, changed.Type, clockType)
		}
	}
	for _, field := range slices.Sorted(maps.Keys(r.Payload)) {
		i.column("Payload "+field, r.Payload[field], false)
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
	var indexed, unique bool
	if err := tx.QueryRow(ctx, findIndexesSQL, i.oid, leading, i.columns[r.Key].Number).Scan(&indexed, &unique); err != nil {
		return err
	}
	if !indexed {
		i.warn("no index of %s begins with %q or %q, so that every cycle reads the whole table; create one on (%q, %q)",
			r.Table, r.Status, r.Clock, r.Status, r.Clock)
	}
	if !unique {
		i.warn("no unique index of %s is on %q alone; rows that share a key are changed together, with one event", r.Table, r.Key)
	}
	return nil
}

// checkStatuses asks the database whether the texts are values of the columns' types, an enum's for example.
func (i *inspection) checkStatuses(ctx context.Context, tx pgx.Tx) error {
	check := func(field, name string, values ...string) error {
		for _, value := range values {
			if err := i.checkValue(ctx, tx, field, i.columns[name], value); err != nil {
				return err
			}
		}
		return nil
	}
	r := i.rule
	err := errors.Join(check("Status", r.Status, r.Stuck...), check("Status", r.Status, r.NewStatus))
	if r.ReasonColumn != "" {
		err = errors.Join(err, check("ReasonColumn", r.ReasonColumn, r.Reason))
	}
	return err
}

func (i *inspection) checkValue(ctx context.Context, tx pgx.Tx, field string, c column, value string) error {
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
