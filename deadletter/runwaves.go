package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// waveWait is how long a wave waits for others who work on the queue.
const waveWait = 10 * time.Minute

var errNothingPending = errors.New("nothing is pending")

const (
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

	letterSizeSQL pg.SQL = `SELECT letter_size FROM @schema@.dlq_runs WHERE id = $1`

	waveSQL pg.SQL = `UPDATE @schema@.dlq_runs SET wave = $3 WHERE id = $1 AND token = $2 AND state = 'running'`

	waveLettersSQL pg.SQL = `
SELECT key, seq, order_key, died_at, copies, state <> 'moving' FROM @schema@.dlq_run_letters
WHERE run = $1 AND wave BETWEEN $2 - $3::boolean::integer AND $2 AND state IN ('moving', 'moved', 'processed') ORDER BY seq`

	// movedSQL goes by the keys. By the run, for which the planner has no statistics yet, it read all letters of the run for each batch.
	movedSQL pg.SQL = `
UPDATE @schema@.dlq_run_letters SET state = 'moved' WHERE key = ANY($2) AND run IS NOT DISTINCT FROM $1 AND state IN ('moving', 'moved')`

	leftSQL pg.SQL = `
UPDATE @schema@.dlq_run_letters l SET state = 'left', reason = e.reason FROM unnest($2::uuid[], $3::text[]) AS e(key, reason)
WHERE l.run = $1 AND l.key = e.key AND l.state = 'moving'`

	missingSQL pg.SQL = `UPDATE @schema@.dlq_run_letters SET state = 'missing', reason = $3 WHERE run = $1 AND wave = $2 AND state = 'moving'`
)

// waves moves one wave after the other until nothing is pending.
func (v *driver) waves(ctx context.Context) (err error) {
	if v.run, err = v.d.readRun(ctx, v.request.Run); err != nil {
		return err
	}
	if v.names, err = namesOf(v.run.Queue); err != nil {
		return err
	}
	v.op = v.d.runOperation(v.run.ID, v.run.Who, "dlq redrive", v.run.Queue, v.run.Reason)
	if err := v.d.opts.Pool.QueryRow(ctx, letterSizeSQL.In(v.d.opts.Schema), v.run.ID).Scan(&v.mean); err != nil {
		return fmt.Errorf("read run: %w", err)
	}
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
	return v.d.restWave
}

// nextWave chooses the next letters. A driver that follows another begins with that one's last waves again: letters of them may not have
// moved, or may have moved and still be there.
func (v *driver) nextWave(ctx context.Context) (more bool, err error) {
	v.again = !v.begun && v.run.Wave > 0
	v.begun = true
	if v.again {
		return true, nil
	}
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

// move moves the present wave, and those that follow without a pause, under the queue's lock.
func (v *driver) move(ctx context.Context) error {
	letters, most, err := v.letters(ctx, v.again)
	if err != nil {
		return err
	}
	c := claim{who: v.request.Who, action: "dlq redrive", wait: waveWait, waiting: v.request.Waiting}
	return v.d.connected(ctx, v.names, c, func(ctx context.Context, conn *rabbit.Conn, held *lock) error {
		if _, err := inspect(ctx, conn, v.names.work); err != nil {
			return missing(err, v.names.work, ErrNoQueue)
		}
		for again := true; again; {
			if letters, err = v.pass(ctx, conn, held, letters, most); err != nil {
				return err
			}
			again = letters.again(most == 0)
			most = 0 // of the rest it is not known
		}
		v.d.heads.forget(v.names.dlq)
		return v.missing(ctx)
	})
}

// missing writes down that what has not moved of the present wave is not there.
func (v *driver) missing(ctx context.Context) error {
	if _, err := v.d.opts.Pool.Exec(ctx, missingSQL.In(v.d.opts.Schema), v.run.ID, v.run.Wave, string(outcomeMissing)); err != nil {
		return fmt.Errorf("note in the run: %w", err)
	}
	return nil
}

// follow begins the next wave where the last one has ended, for to give back what follows and receive it anew takes longer than to
// move it. Not when the last one is to settle first or has left letters for another pass, nor when somebody waits for the queue.
func (v *driver) follow(ctx context.Context, held *lock, o *operation) (more bool, err error) {
	if v.run.Wave <= len(v.run.Ramp) || !o.chooser.wave.done() {
		return false, nil
	}
	if wanted, err := held.isWanted(ctx); err != nil || wanted {
		return false, err
	}
	if err := errors.Join(v.missing(ctx), v.failing(ctx)); err != nil {
		return false, err
	}
	if more, err = v.nextWave(ctx); err != nil || !more {
		return false, err
	}
	letters, most, err := v.letters(ctx, false)
	if err != nil {
		return false, err
	}
	o.chooser.wave, o.request.Max = letters, o.result.Done+most
	return true, nil
}

// reload begins the present wave and the one before it again, like a driver that follows another.
func (v *driver) reload(ctx context.Context, o *operation) (err error) {
	o.request.Max = 0
	o.chooser.wave, _, err = v.letters(ctx, true)
	return err
}

// pass walks over the queue once, or until most letters have moved and nothing follows. It returns the wave that it has come to.
func (v *driver) pass(ctx context.Context, conn *rabbit.Conn, held *lock, letters *wave, most int) (last *wave, err error) {
	o := &operation{
		d: v.d, verb: verbRedrive, names: v.names, done: tally{}, audit: v.op, conn: conn, also: v.written, mean: v.mean,
		request: Common{Queue: v.run.Queue, Rate: v.run.Rate, Max: most, Who: v.run.Who},
		chooser: chooser{names: v.names, run: v.run.ID.String(), wave: letters},
		result:  Result{Run: v.run.ID, Queue: v.names.work, DLQ: v.names.dlq},
	}
	o.more = func(ctx context.Context) (bool, error) { return v.follow(ctx, held, o) }
	o.unsure = func(ctx context.Context) error { return v.reload(ctx, o) }
	defer func() {
		last, v.mean = o.chooser.wave, o.mean
		if o.conn != conn { // see beCareful
			err = errors.Join(err, o.conn.Close())
		}
	}()
	found, err := inspect(ctx, conn, v.names.dlq)
	if err != nil {
		return nil, missing(err, v.names.dlq, ErrNoDLQ)
	}
	if o.remaining, o.result.Found = found.Messages, found.Messages; found.Messages == 0 {
		return nil, nil
	}
	return nil, o.moveAll(ctx)
}

// letters of the present wave, and how many there are at most; 0: not known, for some have moved. Then those of the wave before are among
// them: the acknowledgements of the last ones may be lost. Of those before it none is, for the broker sends no more ahead than a prefetch.
func (v *driver) letters(ctx context.Context, begun bool) (*wave, int, error) {
	w, most := newWave(), 0
	var (
		key      uuid.UUID
		orderKey uuid.NullUUID
		died     *time.Time
		seq      int32
		copies   int
		moved    bool
	)
	rows, _ := v.d.opts.Pool.Query(ctx, waveLettersSQL.In(v.d.opts.Schema), v.run.ID, v.run.Wave, begun)
	_, err := pgx.ForEachRow(rows, []any{&key, &seq, &orderKey, &died, &copies, &moved}, func() error {
		w.add(key, orderKey, seq, died, copies == 1, moved)
		most += copies
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("read wave: %w", err)
	}
	if begun {
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
