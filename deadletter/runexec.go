package deadletter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

const (
	// runLease is how long the run of a dead process is respected.
	runLease = 30 * time.Second
	// runBeat is how often a run's driver renews its lease, and looks whether it should go on.
	runBeat = time.Second
)

// Why a run's driver stops.
var (
	errRunPaused    = errors.New("the run was paused")
	errRunEnded     = errors.New("the run was cancelled")
	errRunLost      = errors.New("deadletter: the lease of the run was lost, another process may drive it")
	errRunUnsettled = errors.New("the wave did not settle")
	errRunFailing   = errors.New("too many came back with the same failure")
)

const (
	startRunSQL pg.SQL = `
UPDATE @schema@.dlq_runs SET state = 'running', started_at = coalesce(started_at, clock_timestamp()), ended_at = NULL, note = '',
    max_failures = CASE WHEN $4::int IS NULL THEN max_failures WHEN $4 < 0 THEN NULL ELSE $4 END,
    owner = $5, token = $6, lease_until = clock_timestamp() + $7::interval
WHERE vhost = $1 AND id = $2 AND state = ANY($3) RETURNING queue, who, reason`

	takeRunSQL pg.SQL = `
UPDATE @schema@.dlq_runs SET owner = $3, token = $4, lease_until = clock_timestamp() + $5::interval
WHERE vhost = $1 AND id = $2 AND state = 'running' AND (token = $4 OR lease_until IS NULL OR lease_until < clock_timestamp())`

	beatSQL pg.SQL = `
UPDATE @schema@.dlq_runs SET lease_until = CASE WHEN state = 'running' THEN clock_timestamp() + $3::interval ELSE lease_until END
WHERE id = $1 AND token = $2 RETURNING state`

	leaveRunSQL pg.SQL = `UPDATE @schema@.dlq_runs SET token = NULL, lease_until = NULL WHERE id = $1 AND token = $2`

	endRunSQL pg.SQL = `
UPDATE @schema@.dlq_runs SET state = $3, note = $4, ended_at = CASE WHEN $3 = 'done' THEN clock_timestamp() END
WHERE id = $1 AND token = $2 AND state = 'running'`

	orphansSQL pg.SQL = `
SELECT id FROM @schema@.dlq_runs WHERE vhost = $1 AND queue = ANY($2) AND state = 'running' AND (lease_until IS NULL OR lease_until < clock_timestamp())`
)

// DriveRequest says which run to drive.
type DriveRequest struct {
	Run uuid.UUID
	// Who drives, for the lock and the lease. Required.
	Who string
	// MaxFailures replaces that of the run when it is started or resumed; nil leaves it, a negative one takes it away.
	MaxFailures *int
	// Progress is told about once a second. Default: nobody is told.
	Progress func(Run)
	// Waiting is told once who is waited for. Default: nobody is told.
	Waiting func(Holder)
}

// StartRun begins a planned run, or resumes one that was paused or stopped, and drives it like [DeadLetters.DriveRun]. Messages that
// another live run has got meanwhile are left to it.
func (d *DeadLetters) StartRun(ctx context.Context, r DriveRequest, resume bool) (Run, error) {
	from, action := []RunState{RunPlanned}, "dlq redrive"
	if resume {
		from, action = []RunState{RunPaused, RunStopped}, "dlq runs resume"
	}
	v := &driver{d: d, request: r, token: uuid.New()}
	err := pgx.BeginFunc(ctx, d.opts.Pool, func(tx pgx.Tx) error {
		current, err := d.readRun(ctx, r.Run)
		if err != nil {
			return err
		}
		if current.unfinished() {
			return fmt.Errorf("%w: the process that made plan %s died over it, so that it is not whole; make another", ErrRunState, r.Run)
		}
		if _, err := tx.Exec(ctx, lockRunsSQL.In(d.opts.Schema), d.vhost(), current.Queue); err != nil {
			return err
		}
		var queue, who, reason string
		err = tx.QueryRow(ctx, startRunSQL.In(d.opts.Schema), d.vhost(), r.Run, from, r.MaxFailures, r.Who, v.token, runLease).Scan(&queue, &who, &reason)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("%w: %s is %s", ErrRunState, r.Run, current.State)
		}
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, claimedSQL.In(d.opts.Schema), d.vhost(), r.Run, string(outcomeInRun)); err != nil {
			return err
		}
		op := d.runOperation(r.Run, r.Who, action, queue, reason)
		detail := map[string]any{"found": current.Found, "chosen": current.Chosen, "filter": current.Filter, "planned_by": who}
		return audit.Write(ctx, tx, d.opts.Schema, op, audit.Entry{Outcome: "started", Detail: detail})
	})
	if err != nil {
		return Run{}, fmt.Errorf("start run: %w", err)
	}
	return v.drive(ctx)
}

// DriveRun goes on with a running run whose driver has gone, until it is done, stopped, paused or cancelled, or ctx ends: then it
// stays running, for the next driver. It fails with [ErrRunOwned] while another drives it. A driver that dies at any point loses nothing;
// the next one may move what was on its way a second time, at most a window of messages, under the same ids.
func (d *DeadLetters) DriveRun(ctx context.Context, r DriveRequest) (Run, error) {
	v := &driver{d: d, request: r, token: uuid.New()}
	tag, err := d.opts.Pool.Exec(ctx, takeRunSQL.In(d.opts.Schema), d.vhost(), r.Run, r.Who, v.token, runLease)
	if err != nil {
		return Run{}, fmt.Errorf("take over run: %w", err)
	}
	if tag.RowsAffected() == 0 {
		run, err := d.readRun(ctx, r.Run)
		if err == nil && run.State == RunRunning {
			err = fmt.Errorf("%w: %s", ErrRunOwned, run.driver())
		}
		return run, err
	}
	return v.drive(ctx)
}

// orphans are the running runs of the configured queues that nobody drives.
func (d *DeadLetters) orphans(ctx context.Context) ([]uuid.UUID, error) {
	queues := make([]string, len(d.opts.Queues))
	for i, q := range d.opts.Queues {
		queues[i] = q.Name
	}
	rows, _ := d.opts.Pool.Query(ctx, orphansSQL.In(d.opts.Schema), d.vhost(), queues)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("look for runs without a driver: %w", err)
	}
	return ids, nil
}

// driver moves a run forward while it has its lease. One goroutine runs drive; beat runs beside it.
type driver struct {
	d       *DeadLetters
	request DriveRequest
	token   uuid.UUID
	run     Run
	names   names
	op      audit.Operation
	mean    int  // size of a letter in bytes; 0: not known
	begun   bool // this driver has moved a wave
	again   bool // another may have moved letters of the present wave
	beats   int
	quiet   time.Time // nothing is told before: counting a large run takes long
}

func (v *driver) drive(ctx context.Context) (Run, error) {
	held, cancel := context.WithCancelCause(ctx)
	var beating sync.WaitGroup
	beating.Go(func() {
		defer telemetry.FatalOnPanic(v.d.opts.Logger)
		v.beat(held, cancel)
	})
	err := v.waves(held)
	if cause := context.Cause(held); err != nil && cause != nil {
		err = cause
	}
	cancel(nil)
	beating.Wait()
	return v.end(ctx, err)
}

// end writes down where the run stands, and gives back its lease.
func (v *driver) end(ctx context.Context, cause error) (Run, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
	defer cancel()
	var err error
	switch {
	case cause == nil:
		err = v.conclude(ctx, RunDone, "")
	case errors.Is(cause, errRunPaused), errors.Is(cause, errRunEnded):
		cause = nil
	case errors.Is(cause, errRunLost): // another driver has it, or will
	case errors.Is(cause, errRunFailing):
		err, cause = v.conclude(ctx, RunStopped, cause.Error()), nil
	case errors.Is(cause, context.Canceled), isAway(cause): // the next driver goes on
	case errors.Is(cause, errRunUnsettled):
		err, cause = v.conclude(ctx, RunPaused, cause.Error()), nil
	default:
		err = v.conclude(ctx, RunPaused, message.Clip(cause.Error(), maxReason))
	}
	if v.run.ID != uuid.Nil {
		if e := v.d.settleRun(ctx, &v.run, 0); e != nil && err == nil {
			err = e
		}
	}
	_, left := v.d.opts.Pool.Exec(ctx, leaveRunSQL.In(v.d.opts.Schema), v.request.Run, v.token)
	run, read := v.d.readRun(ctx, v.request.Run)
	return run, errors.Join(cause, err, left, read)
}

// isAway says that a service is out of reach, which is no fault of the run.
func isAway(err error) bool {
	return errors.Is(err, rabbit.ErrLost) || resilience.IsNetwork(err) || pg.IsUnavailable(err) ||
		resilience.Classify(err) == resilience.ClassUnavailable
}

func (v *driver) conclude(ctx context.Context, state RunState, note string) error {
	err := pgx.BeginFunc(ctx, v.d.opts.Pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, endRunSQL.In(v.d.opts.Schema), v.request.Run, v.token, state, note)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		outcome := map[RunState]string{RunDone: "finished", RunStopped: "stopped", RunPaused: "paused"}[state]
		detail := map[string]any{"wave": v.run.Wave}
		if note != "" {
			detail["error"] = note
		}
		return audit.Write(ctx, tx, v.d.opts.Schema, v.op, audit.Entry{Outcome: outcome, Detail: detail})
	})
	if err != nil {
		return fmt.Errorf("end run: %w", err)
	}
	return nil
}

// beat renews the lease, and ends the drive when the run should not go on.
func (v *driver) beat(ctx context.Context, stop context.CancelCauseFunc) {
	renewed := time.Now()
	for pause.For(ctx, runBeat) {
		began := time.Now()
		state, err := v.beatOnce(ctx, renewed.Add(runLease*2/3))
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			stop(errRunLost)
			return
		case err != nil:
			if time.Since(renewed) >= runLease*2/3 {
				stop(fmt.Errorf("%w: not renewed: %w", errRunLost, err))
				return
			}
			continue
		case state == RunCancelled:
			stop(errRunEnded)
			return
		case state != RunRunning:
			stop(errRunPaused)
			return
		}
		renewed = began
		if v.beats++; v.beats%3 == 0 {
			v.tell(ctx)
		}
		if err := v.failing(ctx); err != nil {
			stop(err)
			return
		}
	}
}

func (v *driver) beatOnce(ctx context.Context, until time.Time) (state RunState, err error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	err = v.d.opts.Pool.QueryRow(ctx, beatSQL.In(v.d.opts.Schema), v.request.Run, v.token, runLease).Scan(&state)
	return state, err
}

// tell counts the whole run, so it is not done at every beat.
func (v *driver) tell(ctx context.Context) {
	if v.request.Progress == nil || time.Now().Before(v.quiet) {
		return
	}
	began := time.Now()
	if r, err := v.d.readRun(ctx, v.request.Run); err == nil {
		v.request.Progress(r)
	}
	v.quiet = time.Now().Add(20 * time.Since(began))
}
