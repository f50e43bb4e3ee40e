package watchdog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/message"
)

// Overdue is a row that is over its limit now.
type Overdue struct {
	Rule   string `json:"rule"`
	Key    string `json:"key"`
	Status string `json:"status"`
	// Since is the row's clock.
	Since message.Stamp `json:"since"`
	// Over is how long the row has been over the limit.
	Over time.Duration `json:"over_ns"`
	// Tries that failed; 0: none was made or none failed.
	Tries int `json:"tries"`
	// Error of the last failed try.
	Error string `json:"error,omitempty"`
	// NextTry of a row that failed.
	NextTry *time.Time `json:"next_try,omitempty"`
}

// List returns up to limit overdue rows of each rule, oldest first, with what is known of their failures. It
// changes and locks nothing.
func (w *Watchdog) List(ctx context.Context, limit int) ([]Overdue, error) {
	all := []Overdue{}
	for _, rule := range w.options.Rules {
		r, err := w.compile(ctx, rule)
		if err != nil {
			return nil, err
		}
		rows, err := w.options.Pool.Query(ctx, r.list, r.Stuck, r.Limit, r.Name, limit)
		if err != nil {
			return nil, fmt.Errorf("list overdue rows of rule %q: %w", rule.Name, err)
		}
		list, err := pgx.CollectRows(rows, scanOverdue(rule.Name))
		if err != nil {
			return nil, fmt.Errorf("list overdue rows of rule %q: %w", rule.Name, err)
		}
		all = append(all, list...)
	}
	return all, nil
}

func scanOverdue(rule string) pgx.RowToFunc[Overdue] {
	return func(row pgx.CollectableRow) (Overdue, error) {
		o := Overdue{Rule: rule}
		err := row.Scan(&o.Key, &o.Status, &o.Since.Time, &o.Over, &o.Tries, &o.Error, &o.NextTry)
		return o, err
	}
}

func clipKey(key string) string { return message.Clip(key, maxKeyShown) }
