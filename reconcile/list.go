package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
)

// Listed is a row that is suspect now, with what was last answered about it.
type Listed struct {
	Rule   string        `json:"rule"`
	Key    string        `json:"key"`
	Status string        `json:"status"`
	Since  message.Stamp `json:"since"`
	// Checks that were made, and Misses, the last of them in a row that had no answer or whose change failed.
	Checks int `json:"checks"`
	Misses int `json:"misses"`
	// Answer of the last check that had one.
	Answer string `json:"answer,omitempty"`
	// Error of the last check.
	Error string `json:"error,omitempty"`
	// CheckedAt is when it was last asked about.
	CheckedAt *time.Time `json:"checked_at,omitempty"`
	// NextCheck is when it may be asked about again; nil: it never was.
	NextCheck *time.Time `json:"next_check,omitempty"`
	// Due tells that the next cycle asks about it.
	Due bool `json:"due"`
	// Run that claimed it last.
	Run *string `json:"run,omitempty"`
}

// List returns up to limit suspects of each rule, or of those that are named: those that are due first. It asks nobody, and changes and
// locks nothing.
func (r *Reconciler) List(ctx context.Context, limit int, rules ...string) ([]Listed, error) {
	all := []Listed{}
	for _, rule := range r.options.Rules {
		if len(rules) > 0 && !slices.Contains(rules, rule.Name) {
			continue
		}
		c, err := r.compile(ctx, rule)
		if err != nil {
			return nil, err
		}
		var list []Listed
		err = pgx.BeginTxFunc(ctx, r.options.Pool, readOnly(), func(tx pgx.Tx) error {
			rows, _ := tx.Query(ctx, c.list, c.arguments(c.Name, limit)...) // its error is that of the rows
			list, err = pgx.CollectRows(rows, scanListed(rule.Name))
			return err
		})
		if err != nil {
			return nil, misfit(rule, "what finds its suspects", err)
		}
		all = append(all, list...)
	}
	return all, nil
}

func scanListed(rule string) pgx.RowToFunc[Listed] {
	return func(row pgx.CollectableRow) (Listed, error) {
		l := Listed{Rule: rule}
		err := row.Scan(&l.Key, &l.Status, &l.Since.Time, &l.Checks, &l.Misses, &l.Answer, &l.Error, &l.CheckedAt, &l.NextCheck, &l.Due, &l.Run)
		return l, err
	}
}

const listRunsSQL pg.SQL = `
SELECT id::text, rule, host, started_at, ended_at, checked, mismatches, kept, unanswered, lost, failed, coalesce(error, '')
FROM @schema@.reconcile_runs WHERE rule = ANY ($1) ORDER BY started_at DESC, id DESC LIMIT $2`

// RunRecord is what is kept of a run.
type RunRecord struct {
	ID        string    `json:"id"`
	Rule      string    `json:"rule"`
	Host      string    `json:"host"`
	StartedAt time.Time `json:"started_at"`
	// EndedAt is nil while it is under way, and for good when its process died.
	EndedAt    *time.Time `json:"ended_at"`
	Checked    int        `json:"checked"`
	Mismatches int        `json:"mismatches"`
	Kept       int        `json:"kept"`
	Unanswered int        `json:"unanswered"`
	Lost       int        `json:"lost"`
	Failed     int        `json:"failed"`
	// Error that it broke off with.
	Error string `json:"error,omitempty"`
}

// Runs returns the last runs of the rules, or of those that are named, newest first.
func (r *Reconciler) Runs(ctx context.Context, limit int, rules ...string) ([]RunRecord, error) {
	var names []string
	for _, rule := range r.options.Rules {
		if len(rules) == 0 || slices.Contains(rules, rule.Name) {
			names = append(names, rule.Name)
		}
	}
	rows, _ := r.options.Pool.Query(ctx, listRunsSQL.In(r.options.Schema), names, limit) // its error is that of the rows
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[RunRecord])
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", err)
	}
	return list, nil
}
