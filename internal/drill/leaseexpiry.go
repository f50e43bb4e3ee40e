package drill

import (
	"context"
	"errors"
	"net/url"
	"syscall"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
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
			{Name: After, Does: "leases: the owner's process is stopped after a confirm and before it settles; so is the next one's; the former goes on first", play: leases},
		},
		checks: func(s Settings) []Check {
			n := s.Int("messages")
			return append(
				expect(Before, "claimed", n, "taken_over", 0, "effects", 0, "rows_left", n),
				expect(After, "claimed", n, "taken_before_expiry", false, "taken_over_after", atLeast(s.Duration("lease")/3), "taken_over", n, "settled_late", 0,
					"most_copies_of_a_message", atMost(2), "effects", n+1, "handled_twice", 0, "rows_left", 0)...)
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
	leasesRows  pg.SQL = `SELECT count(*) FROM @schema@.outbox o JOIN @schema@.outbox_leases l ON l.shard = o.shard WHERE l.owner IS NOT NULL`
	leasesTaken pg.SQL = `SELECT count(*) FROM @schema@.outbox o JOIN @schema@.outbox_leases l ON l.shard = o.shard WHERE l.owner <> $1::uuid`
	leasesOwner pg.SQL = `SELECT DISTINCT owner::text FROM @schema@.outbox_leases`
	leasesEpoch pg.SQL = `SELECT sum(epoch) FROM @schema@.outbox_leases`
	leasesLeft  pg.SQL = `SELECT min(expires_at) - clock_timestamp() FROM @schema@.outbox_leases`
)

// leases stops the owner's process after a confirm, and the next one's when it has taken over. What the former owner completes then, late, would
// delete rows that are the next one's.
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
	broker, err := url.Parse(s.url)
	if err != nil {
		return err
	}
	broker.RawQuery = "heartbeat=1" // the broker drops a silent connection after two, and with it the fence of its owner
	former, err := s.stoppingRelay(ctx, broker.String(), s.set.Duration("lease"))
	if err != nil {
		return err
	}
	if err := awaitStop(ctx, former); err != nil {
		return err
	}
	if err := s.observeCount(ctx, "claimed", leasesRows); err != nil {
		return err
	}
	next, err := s.takeOver(ctx, seen)
	if err != nil {
		return err
	}
	former.signal(syscall.SIGCONT)
	pause.For(ctx, s.set.Duration("lease")) // what it does late, it does by now
	left, err := s.count(ctx, leasesRows)
	if err != nil {
		return err
	}
	s.observe("settled_late", s.set.Int("messages")-left)
	return s.goOn(ctx, next, seen)
}

// stoppingRelay is a relay's process that stops when it gets its first confirm.
func (s *stage) stoppingRelay(ctx context.Context, broker string, lease time.Duration) (*process, error) {
	return s.start(ctx, launch{args: []string{"relay", "run"}, env: s.environ(broker, "SUREFOOT_FAULT=relay.after-confirm:stop", "SUREFOOT_RELAY_LEASE="+lease.String())})
}

func awaitStop(ctx context.Context, p *process) error {
	return eventually(ctx, 30*time.Second, "the owner to publish and to be stopped", func(context.Context) (bool, error) {
		if !p.running() {
			return false, errors.New(p.out.String())
		}
		return p.stopped(), nil
	})
}

// untilTheEnd is a lease that lasts longer than the arm: so the former owner cannot get its work back in order.
const untilTheEnd = armLimit

// takeOver starts another relay and watches when it gets the leases, until it is stopped, too.
func (s *stage) takeOver(ctx context.Context, seen *witness) (*process, error) {
	var left time.Duration
	if err := s.pool.QueryRow(ctx, leasesLeft.In(s.schema)).Scan(&left); err != nil {
		return nil, err
	}
	expires := time.Now().Add(left)
	var former string
	if err := s.pool.QueryRow(ctx, leasesOwner.In(s.schema)).Scan(&former); err != nil {
		return nil, err
	}
	epoch, err := s.count(ctx, leasesEpoch)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	next, err := s.stoppingRelay(ctx, s.url, untilTheEnd)
	if err != nil {
		return nil, err
	}
	err = eventually(ctx, 30*time.Second, "another relay to take the leases over", func(ctx context.Context) (bool, error) {
		now, err := s.count(ctx, leasesEpoch)
		return now > epoch, err
	})
	if err != nil {
		return nil, errors.Join(err, errors.New(next.out.String()))
	}
	s.observe("lease_left_when_stopped", left)
	s.observe("taken_over_after", time.Since(began))
	early := time.Now().Before(expires)
	if err := awaitStop(ctx, next); err != nil {
		return nil, err
	}
	for _, at := range seen.repeats() {
		early = early || at.Before(expires)
	}
	s.observe("taken_before_expiry", early)
	taken, err := s.count(ctx, leasesTaken, former)
	s.observe("taken_over", taken)
	return next, err
}

// goOn lets the next owner finish, and counts.
func (s *stage) goOn(ctx context.Context, next *process, seen *witness) error {
	next.signal(syscall.SIGCONT)
	if err := s.enqueue(ctx, newEvent("drill.event", "later", nil)); err != nil {
		return err
	}
	err := eventually(ctx, 30*time.Second, "everything to be published and handled", func(ctx context.Context) (bool, error) {
		rows, err := s.count(ctx, waiting)
		if err != nil || rows > 0 {
			return false, err
		}
		n, err := s.count(ctx, effectsCount)
		return n > s.set.Int("messages"), err
	})
	if err != nil {
		return errors.Join(err, errors.New(next.out.String()))
	}
	most := 0
	for _, n := range seen.counts() {
		most = max(most, n)
	}
	s.observe("most_copies_of_a_message", most)
	return s.observeCounts(ctx, counted{"effects", effectsCount}, counted{"handled_twice", effectsTwice}, counted{"rows_left", waiting})
}
