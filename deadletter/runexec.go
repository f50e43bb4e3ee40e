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
	"github.com/surefoot-mq/surefoot/internal/fault"
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
	// waveWait is how long a wave waits for others who work on the queue.
	waveWait = 10 * time.Minute
	// smallWave is so small that little is asked for ahead.
	smallWave = 64
	// settlePoll is how often a wave that has moved is looked after.
	settlePoll = 500 * time.Millisecond
)

// Why a run's driver stops.
var (
	errRunPaused      = errors.New("the run was paused")
	errRunEnded       = errors.New("the run was cancelled")
	errRunLost        = errors.New("deadletter: the lease of the run was lost, another process may drive it")
	errNothingPending = errors.New("nothing is pending")
	errRunUnsettled   = errors.New("the wave did not settle")
	errRunFailing     = errors.New("too many came back with the same failure")
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

	// nextWaveSQL takes the next letters in the queue's order. Here and below keys are an array, which is made once: joined, without
	// statistics of the fresh rows, each took a quarter of a minute for 10,000 letters.
	nextWaveSQL pg.SQL = `
UPDATE @schema@.dlq_run_letters SET state = 'moving', wave = $2 WHERE run = $1 AND key = ANY(ARRAY(
    SELECT p.key FROM @schema@.dlq_run_letters p WHERE p.run = $1 AND p.pending ORDER BY p.seq LIMIT $3))`

	// behindSQL leaves what follows a message of its key that is dead again, or could not be moved: it would overtake that.
	behindSQL pg.SQL = `
UPDATE @schema@.dlq_run_letters SET state = 'left', reason = $2 WHERE run = $1 AND pending AND order_key = ANY($3)`

	brokenKeysSQL pg.SQL = `
SELECT DISTINCT order_key FROM @schema@.dlq_run_letters WHERE run = $1 AND broken AND order_key IS NOT NULL`

	waveSQL pg.SQL = `UPDATE @schema@.dlq_runs SET wave = $3 WHERE id = $1 AND token = $2 AND state = 'running'`

	waveLettersSQL pg.SQL = `
SELECT key, seq, order_key, died_at, copies, state <> 'moving' FROM @schema@.dlq_run_letters
WHERE run = $1 AND wave = $2 AND state IN ('moving', 'moved', 'processed') ORDER BY seq`

	// movedSQL goes by the keys. By the run, for which the planner has no statistics yet, it read all letters of the run for each batch.
	movedSQL pg.SQL = `
UPDATE @schema@.dlq_run_letters SET state = 'moved' WHERE key = ANY($2) AND run IS NOT DISTINCT FROM $1 AND state IN ('moving', 'moved')`

	leftSQL pg.SQL = `
UPDATE @schema@.dlq_run_letters l SET state = 'left', reason = e.reason FROM unnest($2::uuid[], $3::text[]) AS e(key, reason)
WHERE l.run = $1 AND l.key = e.key AND l.state = 'moving'`

	missingSQL pg.SQL = `UPDATE @schema@.dlq_run_letters SET state = 'missing', reason = $3 WHERE run = $1 AND wave = $2 AND state = 'moving'`

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
	begun   bool // this driver has moved a wave
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
	err := error(nil)
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

// failing finds out what is dead again, and says when it is too much.
func (v *driver) failing(ctx context.Context) error {
	if err := v.d.failedLetters(ctx, v.request.Run); err != nil {
		return nil //nolint:nilerr // the next beat asks again
	}
	var failed, most int
	err := v.d.opts.Pool.QueryRow(ctx, failuresSQL.In(v.d.opts.Schema), v.request.Run).Scan(&failed, &most)
	if err == nil && most >= 0 && failed > most {
		return fmt.Errorf("%w: %d, more than %d", errRunFailing, failed, most)
	}
	return nil
}

const failuresSQL pg.SQL = `
SELECT (SELECT count(*) FROM @schema@.dlq_run_letters WHERE run = $1 AND broken AND state = 'failed' AND same), coalesce(max_failures, -1)
FROM @schema@.dlq_runs WHERE id = $1`

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

// waves moves one wave after the other until nothing is pending.
func (v *driver) waves(ctx context.Context) (err error) {
	if v.run, err = v.d.readRun(ctx, v.request.Run); err != nil {
		return err
	}
	if v.names, err = namesOf(v.run.Queue); err != nil {
		return err
	}
	v.op = v.d.runOperation(v.run.ID, v.run.Who, "dlq redrive", v.run.Queue, v.run.Reason)
	for {
		more, err := v.nextWave(ctx)
		if err != nil || !more {
			return errors.Join(err, v.failing(ctx))
		}
		if err := v.move(ctx); err != nil {
			return err
		}
		if v.run.Wave <= len(v.run.Ramp) {
			if err := v.settle(ctx); err != nil {
				return err
			}
		}
		if err := v.failing(ctx); err != nil {
			return err
		}
	}
}

// size of a wave, by its number.
func (v *driver) size(wave int) int {
	if wave <= len(v.run.Ramp) {
		return int(v.run.Ramp[wave-1])
	}
	return maxWave
}

// nextWave chooses the next letters. A driver that follows another begins with that one's last wave again: letters of it may not have
// moved, or may have moved and still be there.
func (v *driver) nextWave(ctx context.Context) (more bool, err error) {
	if again := !v.begun && v.run.Wave > 0; again {
		v.begun = true
		return true, nil
	}
	v.begun = true
	schema, wave := v.d.opts.Schema, v.run.Wave+1
	err = pgx.BeginFunc(ctx, v.d.opts.Pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, waveSQL.In(schema), v.run.ID, v.token, wave)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return errRunLost
		}
		if err := v.holdBack(ctx, tx); err != nil {
			return err
		}
		tag, err = tx.Exec(ctx, nextWaveSQL.In(schema), v.run.ID, wave, v.size(wave))
		if err == nil && tag.RowsAffected() == 0 {
			return errNothingPending // the wave's number stays
		}
		return err
	})
	if errors.Is(err, errNothingPending) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("next wave: %w", err)
	}
	v.run.Wave = wave
	return true, fault.Point("redrive.after-wave")
}

// holdBack leaves what would overtake an earlier message of its key.
func (v *driver) holdBack(ctx context.Context, tx pgx.Tx) error {
	rows, _ := tx.Query(ctx, brokenKeysSQL.In(v.d.opts.Schema), v.run.ID)
	broken, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(broken) == 0 {
		return err
	}
	_, err = tx.Exec(ctx, behindSQL.In(v.d.opts.Schema), v.run.ID, string(outcomeBehind), pg.UUIDs(broken))
	return err
}

// move moves the present wave, under the queue's lock.
func (v *driver) move(ctx context.Context) error {
	letters, most, err := v.letters(ctx)
	if err != nil {
		return err
	}
	c := claim{who: v.request.Who, action: "dlq redrive", wait: waveWait, waiting: v.request.Waiting}
	return v.d.connected(ctx, v.names, c, func(ctx context.Context, conn *rabbit.Conn, _ *lock) error {
		if _, err := inspect(ctx, conn, v.names.work); err != nil {
			return missing(err, v.names.work, ErrNoQueue)
		}
		for again := true; again; again = letters.again() {
			if err := v.pass(ctx, conn, letters, most); err != nil {
				return err
			}
			most = 0 // of the rest it is not known
		}
		v.d.heads.forget(v.names.dlq)
		if _, err := v.d.opts.Pool.Exec(ctx, missingSQL.In(v.d.opts.Schema), v.run.ID, v.run.Wave, string(outcomeMissing)); err != nil {
			return fmt.Errorf("note in the run: %w", err)
		}
		return nil
	})
}

// pass walks over the queue once, or until most letters have moved.
func (v *driver) pass(ctx context.Context, conn *rabbit.Conn, letters *wave, most int) (err error) {
	o := &operation{
		d: v.d, verb: verbRedrive, names: v.names, done: tally{}, audit: v.op, conn: conn, also: v.written,
		request: Common{Queue: v.run.Queue, Rate: v.run.Rate, Max: most, Who: v.run.Who},
		chooser: chooser{names: v.names, run: v.run.ID.String(), wave: letters},
		result:  Result{Run: v.run.ID, Queue: v.names.work, DLQ: v.names.dlq},
	}
	if most > 0 && most <= smallWave {
		o.prefetch = 2 * smallWave
	}
	defer func() {
		if o.conn != conn { // see beCareful
			err = errors.Join(err, o.conn.Close())
		}
	}()
	found, err := inspect(ctx, conn, v.names.dlq)
	if err != nil {
		return missing(err, v.names.dlq, ErrNoDLQ)
	}
	if o.remaining, o.result.Found = found.Messages, found.Messages; found.Messages == 0 {
		return nil
	}
	return o.moveAll(ctx)
}

// letters of the present wave, and how many there are at most; 0: not known, for an earlier driver has moved some of them.
func (v *driver) letters(ctx context.Context) (*wave, int, error) {
	w, most, again := newWave(), 0, false
	var (
		key      uuid.UUID
		orderKey uuid.NullUUID
		died     *time.Time
		seq      int32
		copies   int
		moved    bool
	)
	rows, _ := v.d.opts.Pool.Query(ctx, waveLettersSQL.In(v.d.opts.Schema), v.run.ID, v.run.Wave)
	_, err := pgx.ForEachRow(rows, []any{&key, &seq, &orderKey, &died, &copies, &moved}, func() error {
		w.add(key, orderKey, seq, died, copies == 1, moved)
		most += copies
		again = again || moved
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("read wave: %w", err)
	}
	if again {
		most = 0
	}
	w.lanes = nil // only add needs them
	return w, most, nil
}

// written notes what became of letters, in the transaction of their record.
func (v *driver) written(ctx context.Context, tx pgx.Tx, batch []settlement) error {
	var moved, left []uuid.UUID
	var reasons []string
	for i := range batch {
		t := &batch[i]
		if t.release {
			moved = append(moved, t.key)
			continue
		}
		left, reasons = append(left, t.key), append(reasons, string(t.outcome))
	}
	if len(moved) > 0 {
		if _, err := tx.Exec(ctx, movedSQL.In(v.d.opts.Schema), v.run.ID, pg.UUIDs(moved)); err != nil {
			return fmt.Errorf("note in the run: %w", err)
		}
	}
	if len(left) > 0 {
		if _, err := tx.Exec(ctx, leftSQL.In(v.d.opts.Schema), v.run.ID, pg.UUIDs(left), reasons); err != nil {
			return fmt.Errorf("note in the run: %w", err)
		}
	}
	return nil
}

// settle waits until every message of the present wave is processed or dead again. In the first wave nothing may be dead again.
func (v *driver) settle(ctx context.Context) error {
	began := time.Now()
	for scanned := false; ; {
		if err := v.d.settleRun(ctx, &v.run, v.run.Wave); err != nil {
			return err
		}
		open, failed, err := v.unsettled(ctx)
		switch {
		case err != nil:
			return err
		case failed > 0 && v.run.Wave == 1:
			return fmt.Errorf("%w: %s of the first wave failed again", errRunFailing, plural(failed, "message"))
		case open == 0:
			return nil
		case time.Since(began) > v.run.Settle && scanned:
			return fmt.Errorf("%w: %s of wave %d neither processed nor dead again within %s: is a consumer running?",
				errRunUnsettled, plural(open, "message"), v.run.Wave, v.run.Settle)
		case time.Since(began) > v.run.Settle: // the broker's own dead letters are in no index before a scan
			scanned = true
			if _, err := v.d.Scan(ctx, ScanRequest{Queue: v.run.Queue, Who: v.request.Who, Stays: true, Wait: time.Minute}); err != nil {
				return err
			}
			continue
		}
		if !pause.For(ctx, settlePoll) {
			return context.Cause(ctx)
		}
	}
}

const unsettledSQL pg.SQL = `
SELECT count(*) FILTER (WHERE state = 'moved'), count(*) FILTER (WHERE state = 'failed') FROM @schema@.dlq_run_letters WHERE run = $1 AND wave = $2`

func (v *driver) unsettled(ctx context.Context) (open, failed int, err error) {
	err = v.d.opts.Pool.QueryRow(ctx, unsettledSQL.In(v.d.opts.Schema), v.run.ID, v.run.Wave).Scan(&open, &failed)
	if err != nil {
		return 0, 0, fmt.Errorf("look after wave: %w", err)
	}
	return open, failed, nil
}

const (
	processedSQL pg.SQL = `
UPDATE @schema@.dlq_run_letters l SET state = 'processed' WHERE l.run = $1 AND l.state = 'moved' AND ($2 = 0 OR l.wave = $2) AND EXISTS (
    SELECT FROM @schema@.inbox i WHERE i.message = l.key AND i.consumer IN (SELECT id FROM @schema@.inbox_consumers WHERE queue = $3))`

	failedSQL pg.SQL = `
UPDATE @schema@.dlq_run_letters l SET state = 'failed', same = g.fingerprint = l.fingerprint, reason = 'dead again: ' || g.class
FROM @schema@.dlq_letters x JOIN @schema@.dlq_groups g ON g.id = x.group_id
WHERE x.redrive_run = $1 AND x.gone_at IS NULL AND l.run = $1 AND l.key = x.key AND l.state IN ('moved', 'processed')`
)

// settleRun notes which moved messages are processed or dead again; of one wave, or with 0 of all.
func (d *DeadLetters) settleRun(ctx context.Context, r *Run, wave int) error {
	if err := d.failedLetters(ctx, r.ID); err != nil {
		return err
	}
	if _, err := d.opts.Pool.Exec(ctx, processedSQL.In(d.opts.Schema), r.ID, wave, r.Queue); err != nil {
		return fmt.Errorf("look up what the run's messages became: %w", err)
	}
	return nil
}

func (d *DeadLetters) failedLetters(ctx context.Context, run uuid.UUID) error {
	if _, err := d.opts.Pool.Exec(ctx, failedSQL.In(d.opts.Schema), run); err != nil {
		return fmt.Errorf("look up which of the run's messages are dead again: %w", err)
	}
	return nil
}

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
