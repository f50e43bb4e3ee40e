package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
)

// RunState is where a run stands.
//
//	planned --start--> running --all moved--> done
//	                    |  ^ '--too many came back--> stopped --.
//	            pause,  |  | resume                             | resume
//	            trouble v  | <----------------------------------'
//	                   paused
//	planned, running, paused, stopped --cancel--> cancelled
type RunState string

const (
	// RunPlanned has its set chosen and counted; nothing moves.
	RunPlanned RunState = "planned"
	// RunRunning is driven by its owner or, when that is gone, by the next replica.
	RunRunning RunState = "running"
	// RunPaused moves nothing until it is resumed; its note says why.
	RunPaused RunState = "paused"
	// RunStopped had more failures than were allowed.
	RunStopped RunState = "stopped"
	// RunDone has moved whatever could be moved.
	RunDone RunState = "done"
	// RunCancelled moves nothing any more.
	RunCancelled RunState = "cancelled"
)

var (
	// ErrNoRun says that there is no such run.
	ErrNoRun = errors.New("there is no such run; see `surefoot dlq runs ls`")
	// ErrRunState says that a run is not in a state for what was asked.
	ErrRunState = errors.New("the run is not in a state for that")
	// ErrRunOwned says that another process drives the run.
	ErrRunOwned = errors.New("another process drives the run")
)

// RunSettings say how a run moves what was chosen.
type RunSettings struct {
	// Ramp are the sizes of the first waves. All of the first, the canary, must be processed before the next begins: the inbox has
	// it. Each later one must have settled: processed or dead again. What remains follows without waiting. Default: no waves.
	Ramp []int
	// Settle is how long a wave of Ramp may take to settle, retries included, before the run pauses. Default: 10 minutes.
	Settle time.Duration
	// MaxFailures stops the run when more of its messages than that are dead again for the same cause. Negative: no limit.
	MaxFailures int
}

// Run is a redrive as it is written down.
type Run struct {
	ID        uuid.UUID `json:"id"`
	Queue     string    `json:"queue"`
	State     RunState  `json:"state"`
	CreatedAt time.Time `json:"created_at"`
	Who       string    `json:"who"`
	Reason    string    `json:"reason"`
	// Filter is what was asked for, as the audit has it.
	Filter      json.RawMessage `json:"filter"`
	Rate        float64         `json:"rate"`
	Ramp        []int32         `json:"ramp"`
	Settle      time.Duration   `json:"-"`
	MaxFailures *int32          `json:"max_failures"`
	Found       int             `json:"found"`
	NotMatching int             `json:"not_matching"`
	// Wave is the number of the present one, from 1.
	Wave      int        `json:"wave"`
	StartedAt *time.Time `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at"`
	// Note says why it paused or stopped.
	Note string `json:"note"`
	// Owner drives it now; empty: nobody.
	Owner string `json:"owner"`
	// LeaseUntil is until when Owner is respected unless it renews its lease, also when its process has died; by the database's clock.
	LeaseUntil *time.Time `json:"lease_until"`
	// The messages by what became of them. Chosen is all but Ineligible.
	Chosen     int `json:"chosen"`
	Ineligible int `json:"ineligible"`
	Pending    int `json:"pending"`
	Moved      int `json:"moved"`
	// Processed of Moved are in the inbox, Failed of Moved are dead again, FailedSame of these for the same cause.
	Processed  int `json:"processed"`
	Failed     int `json:"failed"`
	FailedSame int `json:"failed_same"`
	// Missing and Left were chosen and did not move.
	Missing int `json:"missing"`
	Left    int `json:"left"`
	// Holds are the messages that no other run, discard or edit may take: all of Chosen, until the run is done or cancelled.
	Holds int `json:"holds"`
}

// driver is who drives the run, and until when it is respected should it have died.
func (r *Run) driver() string {
	if r.LeaseUntil == nil { // it ended just now
		return "it has let go; try again"
	}
	return fmt.Sprintf("%s; if that process has died, its lease ends at %s, within %s, and then the run can be resumed",
		r.Owner, r.LeaseUntil.UTC().Format(time.TimeOnly+"Z"), runLease)
}

// unfinished says that the plan was not written to its end: what was found is noted last.
func (r *Run) unfinished() bool {
	return r.State == RunPlanned && r.Found == 0 && r.Chosen+r.Ineligible > 0
}

const runColumns = `
SELECT r.id, r.queue, r.state, r.created_at, r.who, r.reason, r.filter, r.rate, r.ramp, r.settle, r.max_failures, r.found, r.not_matching, r.wave,
       r.started_at, r.ended_at, r.note, CASE WHEN r.lease_until > clock_timestamp() THEN r.owner ELSE '' END,
       CASE WHEN r.lease_until > clock_timestamp() THEN r.lease_until END,
       c.total - c.ineligible, c.ineligible, c.pending, c.moved, c.processed, c.failed, c.same, c.missing, c.left_over,
       CASE WHEN r.state IN ('running', 'paused', 'stopped') THEN c.total - c.ineligible ELSE 0 END
FROM @schema@.dlq_runs r CROSS JOIN LATERAL (
    SELECT count(*) AS total, count(*) FILTER (WHERE state = 'ineligible') AS ineligible, count(*) FILTER (WHERE state IN ('pending', 'moving')) AS pending,
           count(*) FILTER (WHERE state IN ('moved', 'processed', 'failed')) AS moved, count(*) FILTER (WHERE state = 'processed') AS processed,
           count(*) FILTER (WHERE state = 'failed') AS failed, count(*) FILTER (WHERE state = 'failed' AND same) AS same,
           count(*) FILTER (WHERE state = 'missing') AS missing, count(*) FILTER (WHERE state = 'left') AS left_over
    FROM @schema@.dlq_run_letters WHERE run = r.id) c `

const (
	runSQL pg.SQL = runColumns + `WHERE r.vhost = $1 AND r.id = $2`

	runsSQL pg.SQL = runColumns + `WHERE r.vhost = $1 AND ($2 = '' OR r.queue = $2) AND ($3 OR r.state <> 'planned') ORDER BY r.created_at DESC LIMIT $4`

	// lockRunsSQL serialises changes of runs in one queue, to the end of the transaction.
	lockRunsSQL pg.SQL = `SELECT pg_advisory_xact_lock(hashtextextended('surefoot dlq runs @schema@ ' || $1 || ' ' || $2, 0))`

	changeRunSQL pg.SQL = `
UPDATE @schema@.dlq_runs SET state = $3, note = $4, ended_at = CASE WHEN $3 IN ('done', 'cancelled') THEN clock_timestamp() END
WHERE vhost = $1 AND id = $2 AND state = ANY($5) RETURNING queue`

	// claimedSQL gives pending letters that another live run has to that run.
	claimedSQL pg.SQL = `
UPDATE @schema@.dlq_run_letters l SET state = 'ineligible', reason = $3 WHERE l.run = $2 AND l.pending AND EXISTS (
    SELECT FROM @schema@.dlq_run_letters o JOIN @schema@.dlq_runs r ON r.id = o.run
    WHERE o.key = l.key AND o.run <> $2 AND o.state <> 'ineligible' AND r.vhost = $1 AND r.state IN ('running', 'paused', 'stopped')
      AND r.queue = (SELECT queue FROM @schema@.dlq_runs WHERE id = $2))`
)

// Runs lists runs, the newest first; with planned also those that were not started.
func (d *DeadLetters) Runs(ctx context.Context, queue string, planned bool, limit int) ([]Run, error) {
	if queue != "" {
		n, err := namesOf(queue)
		if err != nil {
			return nil, err
		}
		queue = n.work
	}
	rows, _ := d.opts.Pool.Query(ctx, runsSQL.In(d.opts.Schema), d.vhost(), queue, planned, limit)
	runs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Run])
	if err != nil {
		return nil, fmt.Errorf("read runs: %w", err)
	}
	return runs, nil
}

// GetRun reads a run, and looks up what became of its messages.
func (d *DeadLetters) GetRun(ctx context.Context, id uuid.UUID) (Run, error) {
	r, err := d.readRun(ctx, id)
	if err == nil && r.StartedAt != nil {
		if err = d.settleRun(ctx, &r, 0); err == nil {
			r, err = d.readRun(ctx, id)
		}
	}
	return r, err
}

func (d *DeadLetters) readRun(ctx context.Context, id uuid.UUID) (Run, error) {
	rows, _ := d.opts.Pool.Query(ctx, runSQL.In(d.opts.Schema), d.vhost(), id)
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Run])
	if errors.Is(err, pgx.ErrNoRows) {
		return r, ErrNoRun
	}
	if err != nil {
		return r, fmt.Errorf("read run: %w", err)
	}
	return r, nil
}

// RunLetter is a message of a run.
type RunLetter struct {
	MessageID   string `json:"message_id"`
	Type        string `json:"type"`
	ErrorClass  string `json:"error_class"`
	Fingerprint string `json:"fingerprint"`
	Copies      int    `json:"copies"`
	State       string `json:"state"`
	Wave        int    `json:"wave"`
	Reason      string `json:"reason,omitempty"`
	Same        bool   `json:"same,omitempty"`
}

const runLettersSQL pg.SQL = `
SELECT message_id, type, class, fingerprint, copies, state, wave, reason, same FROM @schema@.dlq_run_letters
WHERE run = $1 AND ($2 = '' OR state = $2) ORDER BY seq LIMIT $3`

// RunLetters lists messages of a run in the queue's order, all or those in one state: ineligible, pending, moving, moved, processed,
// failed, missing, left.
func (d *DeadLetters) RunLetters(ctx context.Context, id uuid.UUID, state string, limit int) ([]RunLetter, error) {
	rows, _ := d.opts.Pool.Query(ctx, runLettersSQL.In(d.opts.Schema), id, state, limit)
	letters, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l RunLetter, err error) {
		err = row.Scan(&l.MessageID, &l.Type, &l.ErrorClass, &l.Fingerprint, &l.Copies, &l.State, &l.Wave, &l.Reason, &l.Same)
		return l, err
	})
	if err != nil {
		return nil, fmt.Errorf("read messages of a run: %w", err)
	}
	return letters, nil
}

// PauseRun keeps a run from moving anything more; what is on its way is finished.
func (d *DeadLetters) PauseRun(ctx context.Context, id uuid.UUID, who, why string) error {
	return d.changeRun(ctx, id, who, "dlq runs pause", why, RunPaused, RunRunning)
}

// CancelRun ends a run for good; what it has moved stays moved.
func (d *DeadLetters) CancelRun(ctx context.Context, id uuid.UUID, who, why string) error {
	return d.changeRun(ctx, id, who, "dlq runs cancel", why, RunCancelled, RunPlanned, RunRunning, RunPaused, RunStopped)
}

func (d *DeadLetters) changeRun(ctx context.Context, id uuid.UUID, who, action, why string, to RunState, from ...RunState) error {
	if who == "" || len(why) > maxReason || !audit.IsPlain(why) {
		return fmt.Errorf("%w: it needs who acts, and a reason of at most %d bytes of plain text", ErrBadRequest, maxReason)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
	defer cancel()
	note := "by " + who
	if why != "" {
		note += ": " + why
	}
	err := pgx.BeginFunc(ctx, d.opts.Pool, func(tx pgx.Tx) error {
		var queue string
		if err := tx.QueryRow(ctx, changeRunSQL.In(d.opts.Schema), d.vhost(), id, to, note, from).Scan(&queue); err != nil {
			return err
		}
		op := d.runOperation(id, who, action, queue, why)
		return audit.Write(ctx, tx, d.opts.Schema, op, audit.Entry{Outcome: string(to)})
	})
	if errors.Is(err, pgx.ErrNoRows) {
		r, err := d.readRun(ctx, id)
		if err != nil {
			return err
		}
		return fmt.Errorf("%w: %s is %s", ErrRunState, id, r.State)
	}
	if err != nil {
		return fmt.Errorf("change run %s: %w", id, err)
	}
	return nil
}

// runOperation is the audit's operation of a run, whoever acts on it.
func (d *DeadLetters) runOperation(id uuid.UUID, who, action, queue, reason string) audit.Operation {
	op := d.operation(who, action, DLQ(queue), reason)
	op.ID = id
	return op
}

// resultSQL counts a run's letters, not messages, by what became of them.
const resultSQL pg.SQL = `
SELECT state, reason, type, class, sum(copies) FROM @schema@.dlq_run_letters WHERE run = $1 GROUP BY state, reason, type, class`

// RunResult tells of a run what [Result] does: of a plan what would be done, of a run what was done.
func (d *DeadLetters) RunResult(ctx context.Context, r Run) (Result, error) {
	result := Result{
		Run: r.ID, Queue: r.Queue, DLQ: DLQ(r.Queue), DryRun: r.State == RunPlanned, Found: r.Found, Groups: []Group{}, Problems: []Problem{},
	}
	result.Left.NotMatching = r.NotMatching
	done := tally{}
	var state, reason, typ, class string
	var copies int
	rows, _ := d.opts.Pool.Query(ctx, resultSQL.In(d.opts.Schema), r.ID)
	_, err := pgx.ForEachRow(rows, []any{&state, &reason, &typ, &class, &copies}, func() error {
		switch {
		case state == "moved" || state == "processed" || state == "failed" || state == "pending" && result.DryRun:
			result.Done += copies
			done.count(typ, class, copies)
		case state != "pending" && state != "moving":
			for range copies {
				result.Left.count(outcome(reason))
			}
		}
		return nil
	})
	if err != nil {
		return result, fmt.Errorf("count a run: %w", err)
	}
	result.Groups = done.groups()
	result.Left.NotReached = max(result.Found-result.Done-result.Left.sum(), 0)
	if result.Left.InRun > 0 {
		if result.HeldBy, err = d.heldBy(ctx, r); err != nil {
			return result, err
		}
	}
	for _, state := range []string{"ineligible", "missing", "left"} {
		letters, err := d.RunLetters(ctx, r.ID, state, maxProblems-len(result.Problems))
		if err != nil {
			return result, err
		}
		for _, l := range letters {
			result.Problems = append(result.Problems, Problem{ID: message.Clip(l.MessageID, 255), Type: l.Type, Reason: l.Reason})
		}
	}
	return result, nil
}
