package deadletter

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
)

// settlePoll is how often a wave that has moved is looked after.
const settlePoll = 500 * time.Millisecond

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

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
