package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// KeeperOptions say what a keeper looks after.
type KeeperOptions struct {
	// DeadLetters are whose Options.Queues are looked after. Required.
	DeadLetters *DeadLetters
	// Who scans, for the lock, for example "keeper@host". Required.
	Who string
	// Interval between looks at the depths and at the index. Default: 15 s.
	Interval time.Duration
	// Rescan is how long a queue that seems to be in line with its index is believed. Default: 1 hour.
	Rescan time.Duration
	// Registerer takes the metrics. Default: none.
	Registerer prometheus.Registerer
	// Ready is told nil when the broker is there, else why it is not. What is wrong with single queues is logged: the process
	// is no less ready for that. Default: nobody is told.
	Ready func(reason error)
}

// Keeper keeps the index in line with the queues while people sleep, ages it out, and has the metrics. It never looks into a
// queue without need: only when its depth and the index differ for longer than rows take to be written, or once in a long
// while; and it makes room for whoever waits. Several replicas may run; they do each thing once.
//
//	in line --depth differs from the index, twice--> scan --whole--> in line
//	   '--not scanned for Rescan-------------------->  '--made room, failed--> waits twenty times as long as it took, 1 min at least
type Keeper struct {
	opts    KeeperOptions
	d       *DeadLetters
	metrics keeperMetrics
	differs map[string]bool // by queue: its depth differed at the last look
	driven  sync.WaitGroup  // runs
	told    telemetry.Reminder
}

type keeperMetrics struct {
	messages, oldest, scanned *prometheus.GaugeVec
	redriven                  *prometheus.GaugeVec
	bytes, archive, runs      prometheus.Gauge
}

// NewKeeper checks the options. It does no I/O.
func NewKeeper(o KeeperOptions) (*Keeper, error) {
	o.Interval = cmp.Or(o.Interval, 15*time.Second)
	o.Rescan = cmp.Or(o.Rescan, time.Hour)
	if o.Ready == nil {
		o.Ready = func(error) {}
	}
	switch {
	case o.DeadLetters == nil:
		return nil, errors.New("deadletter: keeper: DeadLetters is missing")
	case o.Who == "":
		return nil, errors.New("deadletter: keeper: Who is missing; the locks need a name")
	case o.Interval < 0 || o.Rescan < 0:
		return nil, errors.New("deadletter: keeper: Interval and Rescan must not be negative")
	}
	with, queue := promauto.With(o.Registerer), []string{"queue"}
	return &Keeper{
		opts: o, d: o.DeadLetters, differs: map[string]bool{},
		metrics: keeperMetrics{
			messages: with.NewGaugeVec(prometheus.GaugeOpts{Name: "surefoot_dlq_messages", Help: "Messages in the dead-letter queue."}, queue),
			oldest: with.NewGaugeVec(prometheus.GaugeOpts{
				Name: "surefoot_dlq_oldest_age_seconds", Help: "How long the oldest indexed dead letter has been dead; 0: there is none.",
			}, queue),
			scanned: with.NewGaugeVec(prometheus.GaugeOpts{
				Name: "surefoot_dlq_last_scan_timestamp_seconds", Help: "When the index was last brought into line with the whole queue.",
			}, queue),
			redriven: with.NewGaugeVec(prometheus.GaugeOpts{
				Name: "surefoot_dlq_redrive_letters", Help: "Letters of redrives that are under way, or have ended within the hour, by their state.",
			}, []string{"queue", "state"}),
			archive: with.NewGauge(prometheus.GaugeOpts{Name: "surefoot_dlq_archive_bytes", Help: "Size of the archive of discarded messages."}),
			runs:    with.NewGauge(prometheus.GaugeOpts{Name: "surefoot_dlq_runs_bytes", Help: "Size of what is written down of redrives."}),
			bytes:   with.NewGauge(prometheus.GaugeOpts{Name: "surefoot_dlq_index_bytes", Help: "Size of the index of dead letters, with its indexes."}),
		},
	}, nil
}

// Run works until ctx ends, and returns nil. Broker and database may be away at any time.
func (k *Keeper) Run(ctx context.Context) error {
	defer k.driven.Wait()
	return rabbit.Supervise(ctx, rabbit.SuperviseOptions{
		Options: rabbit.Options{
			URL: k.d.opts.AMQPURL, Role: "dlq-keeper", Host: k.d.opts.Host, Version: k.d.opts.Version, TLS: k.d.opts.TLS, Logger: k.d.opts.Logger,
		},
		OnState: k.opts.Ready,
	}, func(ctx context.Context, conn *rabbit.Conn) error {
		for {
			if err := k.cycle(ctx, conn); err != nil {
				if conn.Err() != nil || ctx.Err() != nil {
					return err
				}
				if k.told.Due(err.Error(), time.Now()) {
					k.d.opts.Logger.Warn().Err(err).Msg("dead letters not looked after, trying again")
				}
			}
			if !pause.For(ctx, k.opts.Interval) {
				return nil
			}
			if err := conn.Err(); err != nil {
				return err
			}
		}
	})
}

// cycle looks after every queue once; one that cannot be looked after does not keep others from it.
func (k *Keeper) cycle(ctx context.Context, conn *rabbit.Conn) error {
	var failed []error
	for _, q := range k.d.opts.Queues {
		if err := k.keep(ctx, conn, q.Name); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", DLQ(q.Name), err))
		}
		if err := conn.Err(); err != nil {
			return err
		}
	}
	return errors.Join(append(failed, k.drive(ctx), k.age(ctx), k.showRedrives(ctx))...)
}

// drive goes on with redrives whose driver has gone. Each is driven beside the rest, for it may last.
func (k *Keeper) drive(ctx context.Context) error {
	orphans, err := k.d.orphans(ctx)
	for _, id := range orphans {
		k.driven.Go(func() {
			defer telemetry.FatalOnPanic(k.d.opts.Logger)
			run, err := k.d.DriveRun(ctx, DriveRequest{Run: id, Who: k.opts.Who})
			if errors.Is(err, ErrRunOwned) {
				return
			}
			k.d.opts.Logger.Info().Err(err).Str(telemetry.FieldRun, id.String()).Str(telemetry.FieldQueue, run.Queue).Str("state", string(run.State)).
				Int("moved", run.Moved).Int("pending", run.Pending).Msg("went on with a redrive whose process had gone")
		})
	}
	return err
}

const indexedSQL pg.SQL = `
SELECT q.scanned_at, q.scan_began, q.scan_seconds, i.copies, i.oldest FROM @schema@.dlq_queues q
CROSS JOIN LATERAL (SELECT coalesce(sum(copies), 0), min(died_at) FROM @schema@.dlq_letters WHERE queue_id = q.id AND gone_at IS NULL) i(copies, oldest)
WHERE q.id = $1`

// indexed is what the index says of a queue.
type indexed struct {
	scannedAt, scanBegan, oldest *time.Time
	scanSeconds                  float64
	copies                       int
}

func (d *DeadLetters) indexed(ctx context.Context, queue string) (i indexed, err error) {
	id, err := d.index.Queue(ctx, d.vhost(), queue)
	if err != nil {
		return i, err
	}
	err = d.opts.Pool.QueryRow(ctx, indexedSQL.In(d.opts.Schema), id).Scan(&i.scannedAt, &i.scanBegan, &i.scanSeconds, &i.copies, &i.oldest)
	if err != nil {
		return i, fmt.Errorf("read the index of dead letters: %w", err)
	}
	return i, nil
}

func (k *Keeper) keep(ctx context.Context, conn *rabbit.Conn, queue string) error {
	found, err := inspect(ctx, conn, DLQ(queue))
	if errors.Is(missing(err, DLQ(queue), ErrNoDLQ), ErrNoDLQ) {
		return nil // `surefoot topology verify` tells; nothing is there to be kept
	}
	if err != nil {
		return err
	}
	in, err := k.d.indexed(ctx, queue)
	if err != nil {
		return err
	}
	worker, err := k.d.worker(ctx, DLQ(queue))
	if err != nil {
		return err
	}
	k.tell(queue, found.Messages, in, worker)
	differed := k.differs[queue]
	k.differs[queue] = worker == nil && found.Messages != in.copies
	if worker != nil || !k.due(in, found.Messages, differed && k.differs[queue]) {
		return nil
	}
	k.differs[queue] = false
	_, err = k.d.Scan(ctx, ScanRequest{Queue: queue, Who: k.opts.Who})
	if _, locked := errors.AsType[*LockedError](err); locked || errors.Is(err, ErrMadeRoom) || errors.Is(err, ErrTakenByOthers) {
		return nil // later
	}
	return err
}

func (k *Keeper) tell(queue string, depth int, in indexed, worker *Holder) {
	if worker != nil { // what it holds is not ready
		depth = max(depth, in.copies)
	}
	k.metrics.messages.WithLabelValues(queue).Set(float64(depth))
	age := 0.0
	if in.oldest != nil && depth > 0 {
		age = max(time.Since(*in.oldest).Seconds(), 0)
	}
	k.metrics.oldest.WithLabelValues(queue).Set(age)
	if in.scannedAt != nil {
		k.metrics.scanned.WithLabelValues(queue).Set(float64(in.scannedAt.Unix()))
	}
}

// due says whether to scan. A scan hides what it holds from others, so its share of the time is bounded.
func (k *Keeper) due(in indexed, depth int, differs bool) bool {
	took := time.Duration(in.scanSeconds * float64(time.Second))
	if in.scanBegan != nil && time.Since(*in.scanBegan) < max(20*took, min(time.Minute, 4*k.opts.Interval)) {
		return false
	}
	switch {
	case differs:
		return true
	case depth == 0 && in.copies == 0:
		return false
	default:
		return in.scannedAt == nil || time.Since(*in.scannedAt) > max(k.opts.Rescan, 50*took)
	}
}

// Retention of what has gone, of groups that nothing fell into for as long, and of notes on such.
const (
	goneRetention = 30 * 24 * time.Hour
	noteRetention = 180 * 24 * time.Hour
	ageBatch      = 5000
)

const (
	ageLettersSQL pg.SQL = `
DELETE FROM @schema@.dlq_letters WHERE (queue_id, key) IN (
    SELECT queue_id, key FROM @schema@.dlq_letters WHERE gone_at < clock_timestamp() - $1::interval ORDER BY gone_at LIMIT $2)`

	ageGroupsSQL pg.SQL = `
DELETE FROM @schema@.dlq_groups WHERE id IN (
    SELECT g.id FROM @schema@.dlq_groups g
    WHERE g.last_seen < clock_timestamp() - CASE WHEN g.note = '' THEN $1::interval ELSE $2::interval END
      AND NOT EXISTS (SELECT FROM @schema@.dlq_letters l WHERE l.group_id = g.id) LIMIT $3)`

	// ageRunsSQL removes one old run at a time, with its letters.
	ageRunsSQL pg.SQL = `
WITH gone AS (
    DELETE FROM @schema@.dlq_runs WHERE id IN (
        SELECT id FROM @schema@.dlq_runs
        WHERE state = 'planned' AND created_at < clock_timestamp() - $1::interval
           OR state IN ('done', 'cancelled') AND ended_at < clock_timestamp() - $2::interval LIMIT 1)
    RETURNING id)
DELETE FROM @schema@.dlq_run_letters WHERE run IN (SELECT id FROM gone)`

	runsSizeSQL pg.SQL = `
SELECT pg_total_relation_size('@schema@.dlq_runs') + pg_total_relation_size('@schema@.dlq_run_letters')`

	indexSizeSQL pg.SQL = `
SELECT pg_total_relation_size('@schema@.dlq_letters') + pg_total_relation_size('@schema@.dlq_groups')`
)

// age removes a batch of what is old, and measures.
func (k *Keeper) age(ctx context.Context) error {
	schema, pool := k.d.opts.Schema, k.d.opts.Pool
	var size int64
	if _, err := pool.Exec(ctx, ageLettersSQL.In(schema), goneRetention, ageBatch); err != nil {
		return fmt.Errorf("age out the index of dead letters: %w", err)
	}
	if _, err := pool.Exec(ctx, ageGroupsSQL.In(schema), goneRetention, noteRetention, ageBatch); err != nil {
		return fmt.Errorf("age out the groups of dead letters: %w", err)
	}
	if _, err := pool.Exec(ctx, ageEditsSQL.In(schema), audit.Retention, ageBatch); err != nil {
		return fmt.Errorf("age out edits: %w", err)
	}
	if _, err := pool.Exec(ctx, ageRunsSQL.In(schema), planRetention, runRetention); err != nil {
		return fmt.Errorf("age out runs: %w", err)
	}
	if _, err := pool.Exec(ctx, ageArchiveSQL.In(schema), ArchiveRetention, ageBatch); err != nil {
		return fmt.Errorf("age out the archive of discarded messages: %w", err)
	}
	if err := pool.QueryRow(ctx, archiveSizeSQL.In(schema)).Scan(&size); err != nil {
		return fmt.Errorf("measure the archive of discarded messages: %w", err)
	}
	k.metrics.archive.Set(float64(size))
	if err := pool.QueryRow(ctx, runsSizeSQL.In(schema)).Scan(&size); err != nil {
		return fmt.Errorf("measure runs: %w", err)
	}
	k.metrics.runs.Set(float64(size))
	if err := pool.QueryRow(ctx, indexSizeSQL.In(schema)).Scan(&size); err != nil {
		return fmt.Errorf("measure the index of dead letters: %w", err)
	}
	k.metrics.bytes.Set(float64(size))
	return nil
}
