package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// Times of snapshots. Ages and rests are passed as durations and become times by the database's clock.
const (
	snapshotEvery     = 30 * time.Second
	snapshotRest      = time.Second // at least this much between two, however often a circuit changes
	snapshotTimeout   = 5 * time.Second
	snapshotRetention = 7 * 24 * time.Hour
)

const (
	snapshotSQL pg.SQL = `
INSERT INTO @schema@.circuits (host, dependency, instance, state, since, reason, open_until, failures, active, queued, settings)
SELECT $1, $2, i, s, clock_timestamp() - age, r, clock_timestamp() + rest, f, $3, $4, $5
FROM unnest($6::text[], $7::text[], $8::interval[], $9::text[], $10::interval[], $11::integer[]) AS t (i, s, age, r, rest, f)
ON CONFLICT (host, dependency, instance) DO UPDATE SET
    state = excluded.state, since = excluded.since, reason = excluded.reason, open_until = excluded.open_until, failures = excluded.failures,
    active = excluded.active, queued = excluded.queued, settings = excluded.settings, updated_at = clock_timestamp()`

	forgetSQL pg.SQL = `
DELETE FROM @schema@.circuits WHERE ctid IN (
    SELECT ctid FROM @schema@.circuits WHERE updated_at < clock_timestamp() - $1::interval LIMIT 1000)`

	snapshotsSQL pg.SQL = `
SELECT host, dependency, instance, state, since, reason, open_until, failures, active, queued, settings, updated_at
FROM @schema@.circuits ORDER BY dependency, instance, host LIMIT 10000`

	bytesSQL pg.SQL = `SELECT pg_total_relation_size('@schema@.circuits')`
)

// Snapshot is what a process last wrote about one of its circuits.
type Snapshot struct {
	Host       string          `json:"host"`
	Dependency string          `json:"dependency"`
	Instance   string          `json:"instance"`
	State      string          `json:"state"`
	Since      *time.Time      `json:"since"`      // of the last transition; nil: it has never changed
	Reason     *string         `json:"reason"`     // the last failure that counted
	OpenUntil  *time.Time      `json:"open_until"` // nil when not open
	Failures   int             `json:"failures"`
	Active     int             `json:"active"`
	Queued     int             `json:"queued"`
	Settings   json.RawMessage `json:"settings"`
	UpdatedAt  time.Time       `json:"updated_at"`
}

// Snapshots lists what the processes that share a database know of their circuits. They are for diagnosis, and up to half a
// minute old; a process that has ended leaves its last ones for 7 days.
func Snapshots(ctx context.Context, db Database, schema string) ([]Snapshot, error) {
	rows, err := db.Query(ctx, snapshotsSQL.In(schema))
	if err != nil {
		return nil, fmt.Errorf("list circuits: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Snapshot])
	if err != nil {
		return nil, fmt.Errorf("list circuits: %w", err)
	}
	return list, nil
}

// Run writes snapshots until ctx ends: at once on a transition, else every 30 s, and removes those of processes that have been
// gone for 7 days. Calls never wait for it, and it needs not run for them. Without a pool it does nothing.
func (p *Policy) Run(ctx context.Context) error {
	if p.options.Pool == nil {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(snapshotEvery)
	defer ticker.Stop()
	var told telemetry.Reminder
	for {
		if err := p.snapshot(ctx); err != nil && ctx.Err() == nil && told.Due(err.Error(), time.Now()) {
			p.log.log.Warn().Err(err).Msg("state of circuit not written for diagnosis, calls go on")
		}
		if !pause.For(ctx, snapshotRest) {
			return nil
		}
		select {
		case <-p.changed:
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (p *Policy) snapshot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	schema, pool := p.options.Schema, p.options.Pool
	if _, err := pool.Exec(ctx, snapshotSQL.In(schema), p.snapshotArgs()...); err != nil {
		return fmt.Errorf("write circuits: %w", err)
	}
	if _, err := pool.Exec(ctx, forgetSQL.In(schema), snapshotRetention); err != nil {
		return fmt.Errorf("clean circuits: %w", err)
	}
	rows, err := pool.Query(ctx, bytesSQL.In(schema))
	if err != nil {
		return fmt.Errorf("size of circuits: %w", err)
	}
	size, err := pgx.CollectOneRow(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("size of circuits: %w", err)
	}
	p.metrics.bytes.Set(float64(size))
	return nil
}

func (p *Policy) snapshotArgs() []any {
	var instances, states []string
	var ages, rests []*time.Duration
	var reasons []*string
	var failures []int
	for _, c := range p.Circuits() {
		instances = append(instances, message.Storable(c.Instance, message.MaxShortString))
		states = append(states, c.State.String())
		failures = append(failures, c.Failures)
		ages = append(ages, unless(c.Since.IsZero(), time.Since(c.Since)))
		rests = append(rests, unless(c.State != Open, c.OpenFor))
		reasons = append(reasons, unless(c.Reason == "", message.Storable(c.Reason, message.MaxErrorMessage)))
	}
	active, queued := p.bulkhead.look()
	return []any{
		message.Storable(p.options.Host, message.MaxShortString), p.name, active, queued, settingsJSON(p.settings),
		instances, states, ages, reasons, rests, failures,
	}
}

// unless is NULL when the value is missing.
func unless[T any](missing bool, value T) *T {
	if missing {
		return nil
	}
	return &value
}

// settingsJSON writes the settings under the keys of the configuration.
func settingsJSON(s resilience.Settings) map[string]any {
	return map[string]any{
		"deadline": s.Deadline.String(), "timeout": s.Timeout.String(),
		"retry": map[string]any{"attempts": s.Retry.Attempts, "base": s.Retry.Base.String(), "max": s.Retry.Max.String()},
		"breaker": map[string]any{
			"failures": s.Breaker.Failures, "window": s.Breaker.Window.String(), "consecutive": s.Breaker.Consecutive,
			"open": s.Breaker.Open.String(), "probes": s.Breaker.Probes, "slow": s.Breaker.Slow.String(), "per_instance": s.Breaker.PerInstance,
		},
		"bulkhead": map[string]any{
			"active": s.Bulkhead.Active, "queue": s.Bulkhead.Queue, "per_tenant": s.Bulkhead.PerTenant, "reserve": s.Bulkhead.Reserve,
		},
	}
}
