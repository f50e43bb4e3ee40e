package deadletter

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

// Runs that are under way, or were a short time ago: what has long ended is no news, and its letters are many.
const redrivenSQL pg.SQL = `
SELECT r.queue, l.state, count(*) FROM @schema@.dlq_runs AS r JOIN @schema@.dlq_run_letters AS l ON l.run = r.id
WHERE r.vhost = $1 AND r.state <> 'planned' AND (r.ended_at IS NULL OR r.ended_at > clock_timestamp() - interval '1 hour')
GROUP BY r.queue, l.state`

// showRedrives sets the metric from the tables, so that it is right whoever moves the letters: most redrives are commands.
func (k *Keeper) showRedrives(ctx context.Context) error {
	rows, _ := k.d.opts.Pool.Query(ctx, redrivenSQL.In(k.d.opts.Schema), k.d.vhost()) // its error is that of the rows
	type figure struct {
		Queue, State string
		Letters      int64
	}
	figures, err := pgx.CollectRows(rows, pgx.RowToStructByPos[figure])
	if err != nil {
		return fmt.Errorf("count the letters of redrives: %w", err)
	}
	k.metrics.redriven.Reset()
	for _, f := range figures {
		k.metrics.redriven.WithLabelValues(f.Queue, f.State).Set(float64(f.Letters))
	}
	return nil
}
