package drill

import (
	"context"
	"errors"
	"net/url"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/relay"
)

func leaseExpiry() Drill {
	return Drill{
		Name: "lease-expiry", Section: SectionOutbox,
		Proves: "the work of an owner that died is taken over when its lease has expired, not before, and what it completes later changes nothing",
		Settings: []Setting{
			count("messages", 6, 1, 100, "messages that the owner has claimed"),
			length("lease", 2*time.Second, time.Second, 10*time.Second, "how long a silent owner keeps its work (10s by default)"),
		},
		Arms: []Arm{
			{Name: Before, Does: "a claim is a mark in the row, without an end", play: claimForever},
			{Name: After, Does: "leases: the owner's process is stopped after a confirm and before it settles, and goes on after the takeover", play: leases},
		},
		checks: func(s Settings) []Check {
			n := s.Int("messages")
			return append(
				expect(Before, "claimed", n, "taken_over", 0, "effects", 0, "rows_left", n),
				expect(After, "claimed", n, "taken_before_expiry", false, "taken_over_after", atLeast(s.Duration("lease")/3), "taken_over", n, "effects", n,
					"copies_after_late_completion", 0, "effects_at_last", n+1, "handled_twice", 0, "rows_left", 0)...)
		},
	}
}

const (
	jobsTable pg.SQL = `CREATE TABLE @schema@.drill_jobs (id bigint GENERATED ALWAYS AS IDENTITY, owner text, done_at timestamptz)`
	jobsFill  pg.SQL = `INSERT INTO @schema@.drill_jobs (owner) SELECT NULL FROM generate_series(1, $1::integer)`
	jobsClaim pg.SQL = `UPDATE @schema@.drill_jobs SET owner = $1 WHERE owner IS NULL AND done_at IS NULL`
	jobsDone  pg.SQL = `SELECT count(*) FROM @schema@.drill_jobs WHERE done_at IS NOT NULL`
	jobsOpen  pg.SQL = `SELECT count(*) FROM @schema@.drill_jobs WHERE done_at IS NULL`
)

// claimForever has one owner claim everything and die; another one looks for work.
func claimForever(ctx context.Context, s *stage) error {
	if _, err := s.database(ctx); err != nil {
		return err
	}
	if err := errors.Join(s.exec(ctx, jobsTable), s.exec(ctx, jobsFill, s.set.Int("messages"))); err != nil {
		return err
	}
	claimed, err := s.pool.Exec(ctx, jobsClaim.In(s.schema), "the owner that dies")
	if err != nil {
		return err
	}
	s.observe("claimed", int(claimed.RowsAffected()))
	taken := 0
	for end := time.Now().Add(s.set.Duration("lease") * 3 / 2); time.Now().Before(end) && pause.For(ctx, 50*time.Millisecond); {
		more, err := s.pool.Exec(ctx, jobsClaim.In(s.schema), "another owner")
		if err != nil {
			return err
		}
		taken += int(more.RowsAffected())
	}
	s.observe("taken_over", taken)
	return s.observeCounts(ctx, counted{"effects", jobsDone}, counted{"rows_left", jobsOpen})
}

const (
	effectsTable pg.SQL = `CREATE TABLE @schema@.drill_effects (message_id text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())`
	effectsAdd   pg.SQL = `INSERT INTO @schema@.drill_effects (message_id) VALUES ($1)`
	effectsCount pg.SQL = `SELECT count(*) FROM @schema@.drill_effects`
	effectsTwice pg.SQL = `SELECT count(*) - count(DISTINCT message_id) FROM @schema@.drill_effects`

	leasesRows  pg.SQL = `SELECT count(*) FROM @schema@.outbox o JOIN @schema@.outbox_leases l ON l.shard = o.shard WHERE l.owner IS NOT NULL`
	leasesEpoch pg.SQL = `SELECT sum(epoch) FROM @schema@.outbox_leases`
	leasesLeft  pg.SQL = `SELECT min(expires_at) - clock_timestamp() FROM @schema@.outbox_leases`
)

// effect notes that a message was handled.
func (s *stage) effect(ctx context.Context, tx pgx.Tx, m message.Message) error {
	_, err := tx.Exec(ctx, effectsAdd.In(s.schema), m.ID)
	return err
}

// leases stops the owner's process after a confirm, has another relay wait for its leases, and lets the process go on.
func leases(ctx context.Context, s *stage) error {
	queue := work("drill.work", 3, time.Second)
	if err := s.prepare(ctx, queue); err != nil {
		return err
	}
	if err := errors.Join(s.exec(ctx, effectsTable), s.enqueue(ctx, events(s.set.Int("messages"))...)); err != nil {
		return err
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	seen, err := s.watch(ctx, conn, exchange)
	if err != nil {
		return err
	}
	if _, err := s.consume(ctx, queue, s.effect, nil); err != nil {
		return err
	}
	owner, err := s.stoppedOwner(ctx)
	if err != nil {
		return err
	}
	if err := s.takeOver(ctx, seen); err != nil {
		return err
	}
	if err := s.observeCount(ctx, "effects", effectsCount); err != nil {
		return err
	}
	_, before := seen.published()
	owner.signal(syscall.SIGCONT)
	if err := s.enqueue(ctx, newEvent("drill.event", "later", nil)); err != nil {
		return err
	}
	err = eventually(ctx, 20*time.Second, "the last message to be handled", func(ctx context.Context) (bool, error) {
		n, err := s.count(ctx, effectsCount)
		return n > s.set.Int("messages"), err
	})
	if err != nil {
		return err
	}
	pause.For(ctx, s.set.Duration("lease")) // what the former owner does late, it does by now
	_, after := seen.published()
	s.observe("copies_after_late_completion", after-before-1)
	return s.observeCounts(ctx, counted{"effects_at_last", effectsCount}, counted{"handled_twice", effectsTwice}, counted{"rows_left", waiting})
}

// stoppedOwner is a relay's process that holds all leases and stops when it gets its first confirm.
func (s *stage) stoppedOwner(ctx context.Context) (*process, error) {
	broker, err := url.Parse(s.url)
	if err != nil {
		return nil, err
	}
	broker.RawQuery = "heartbeat=1" // the broker drops a silent connection after two
	p, err := s.start(ctx, launch{args: []string{"relay", "run"}, env: s.environ(broker.String(),
		"SUREFOOT_FAULT=relay.after-confirm:stop", "SUREFOOT_RELAY_LEASE="+s.set.Duration("lease").String())})
	if err != nil {
		return nil, err
	}
	err = eventually(ctx, 20*time.Second, "the owner to publish and to be stopped", func(context.Context) (bool, error) {
		if !p.running() {
			return false, errors.New(p.out.String())
		}
		return p.stopped(), nil
	})
	if err != nil {
		return nil, err
	}
	return p, s.observeCount(ctx, "claimed", leasesRows)
}

// takeOver starts another relay and watches when it gets the leases.
func (s *stage) takeOver(ctx context.Context, seen *witness) error {
	var left time.Duration
	if err := s.pool.QueryRow(ctx, leasesLeft.In(s.schema)).Scan(&left); err != nil {
		return err
	}
	expires := time.Now().Add(left)
	epoch, err := s.count(ctx, leasesEpoch)
	if err != nil {
		return err
	}
	stopped := time.Now()
	if _, err := s.relay(ctx, "next", func(o *relay.Options) { o.Lease = s.set.Duration("lease") }); err != nil {
		return err
	}
	err = eventually(ctx, 20*time.Second, "another relay to take the leases over", func(ctx context.Context) (bool, error) {
		now, err := s.count(ctx, leasesEpoch)
		return now > epoch, err
	})
	if err != nil {
		return err
	}
	s.observe("lease_left_when_stopped", left)
	s.observe("taken_over_after", time.Since(stopped))
	early := time.Now().Before(expires)
	err = eventually(ctx, 30*time.Second, "the messages to be published again and handled", func(ctx context.Context) (bool, error) {
		rows, err := s.count(ctx, waiting)
		if err != nil || rows > 0 {
			return false, err
		}
		n, err := s.count(ctx, effectsCount)
		return n >= s.set.Int("messages"), err
	})
	for _, at := range seen.repeats() {
		early = early || at.Before(expires)
	}
	messages, copies := seen.published()
	s.observe("taken_before_expiry", early)
	s.observe("taken_over", messages)
	s.observe("copies", copies)
	return err
}
