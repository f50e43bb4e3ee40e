package deadletter

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

const (
	// Without a join to the letters: that took minutes over fresh rows.
	liveRunsSQL pg.SQL = `
SELECT id, state FROM @schema@.dlq_runs WHERE vhost = $1 AND queue = $2 AND state IN ('running', 'paused', 'stopped') AND id <> $3 ORDER BY created_at`

	leftToRunsSQL pg.SQL = `SELECT key FROM @schema@.dlq_run_letters WHERE run = $1 AND state = 'ineligible' AND reason = $2`

	allHeldSQL pg.SQL = `SELECT key, run FROM @schema@.dlq_run_letters WHERE run = ANY($1) AND state <> 'ineligible'`

	// someHeldSQL goes by the keys; by the run it would read all of that for each batch.
	someHeldSQL pg.SQL = `SELECT key, run FROM @schema@.dlq_run_letters WHERE key = ANY($1) AND state <> 'ineligible'`
)

// Holding is a live run that has messages which an operation was asked for: until it is done or cancelled they are its own, also while it is
// paused or stopped.
type Holding struct {
	Run   uuid.UUID `json:"run"`
	State RunState  `json:"state"`
	// Count of the messages, or of letters where copies are told apart.
	Count int `json:"count"`
}

// Advice says what to do about the run.
func (h Holding) Advice() string {
	free := "`surefoot dlq runs cancel " + h.Run.String() + "` frees what it has not moved"
	if h.State == RunRunning {
		return "wait for it, or " + free
	}
	if h.State == RunStopped { // after a first wave that failed it cannot go on, whatever is allowed
		return "`surefoot dlq runs show " + h.Run.String() + "` says why it stopped, " + free
	}
	return "`surefoot dlq runs resume " + h.Run.String() + "` goes on with it, " + free
}

// HeldError says that a run which was started meanwhile has messages that were about to go.
type HeldError struct{ Holding Holding }

// Error names the run, and what to do.
func (e *HeldError) Error() string {
	return fmt.Sprintf("run %s is %s and has %s of these: %s", e.Holding.Run, e.Holding.State, plural(e.Holding.Count, "message"), e.Holding.Advice())
}

// holdings are the messages of the live runs of a queue, as they were when they were read.
type holdings struct {
	runs []Holding
	of   map[uuid.UUID]int // index of the run, by message
}

// holder is the run that has a message.
func (h *holdings) holder(key uuid.UUID) (*Holding, bool) {
	if h == nil {
		return nil, false
	}
	at, held := h.of[key]
	if !held {
		return nil, false
	}
	return &h.runs[at], true
}

// reset begins to count anew.
func (h *holdings) reset() {
	if h == nil {
		return
	}
	for i := range h.runs {
		h.runs[i].Count = 0
	}
}

// counted are the runs that were met.
func (h *holdings) counted() []Holding {
	if h == nil {
		return nil
	}
	var met []Holding
	for _, run := range h.runs {
		if run.Count > 0 {
			met = append(met, run)
		}
	}
	return met
}

// querier reads rows: the pool, or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// holdings reads which messages of a queue live runs have, but for one run; of some keys, or with nil of all: 16 bytes and some for each.
func (d *DeadLetters) holdings(ctx context.Context, db querier, queue string, but uuid.UUID, keys []uuid.UUID) (*holdings, error) {
	h := &holdings{of: map[uuid.UUID]int{}}
	rows, _ := db.Query(ctx, liveRunsSQL.In(d.opts.Schema), d.vhost(), queue, but)
	var run Holding
	var ids []uuid.UUID
	at := map[uuid.UUID]int{}
	_, err := pgx.ForEachRow(rows, []any{&run.Run, &run.State}, func() error {
		at[run.Run] = len(h.runs)
		h.runs, ids = append(h.runs, run), append(ids, run.Run)
		return nil
	})
	if err == nil && len(h.runs) > 0 {
		sql, of := allHeldSQL, ids
		if keys != nil {
			sql, of = someHeldSQL, keys
		}
		var key, has uuid.UUID
		rows, _ := db.Query(ctx, sql.In(d.opts.Schema), of)
		_, err = pgx.ForEachRow(rows, []any{&key, &has}, func() error {
			if i, live := at[has]; live {
				h.of[key] = i
			}
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("look up what runs have: %w", err)
	}
	return h, nil
}

// heldBy are the runs that have what a run has left to others.
func (d *DeadLetters) heldBy(ctx context.Context, r Run) ([]Holding, error) {
	rows, _ := d.opts.Pool.Query(ctx, leftToRunsSQL.In(d.opts.Schema), r.ID, string(outcomeInRun))
	keys, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("look up what runs have: %w", err)
	}
	h, err := d.holdings(ctx, d.opts.Pool, r.Queue, r.ID, keys)
	if err != nil {
		return nil, err
	}
	return h.count(), nil
}

// count meets every message once.
func (h *holdings) count() []Holding {
	h.reset()
	for key := range h.of {
		run, _ := h.holder(key)
		run.Count++
	}
	return h.counted()
}

// stillFree refuses, in the transaction that records it, to let go what a run has got meanwhile. The lock makes a run that is starting
// wait, or shows it.
func (o *operation) stillFree(ctx context.Context, tx pgx.Tx, batch []settlement) error {
	if _, err := tx.Exec(ctx, lockRunsSQL.In(o.d.opts.Schema), o.d.vhost(), o.names.work); err != nil {
		return fmt.Errorf("look up what runs have: %w", err)
	}
	keys := make([]uuid.UUID, 0, len(batch))
	for i := range batch {
		if batch[i].release {
			keys = append(keys, batch[i].key)
		}
	}
	h, err := o.d.holdings(ctx, tx, o.names.work, uuid.Nil, keys)
	if err != nil {
		return err
	}
	if met := h.count(); len(met) > 0 {
		return &HeldError{met[0]}
	}
	return nil
}
