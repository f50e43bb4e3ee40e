package drill

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
)

func sigterm() Drill {
	return Drill{
		Name: "sigterm", Section: SectionSaga,
		Proves: "at SIGTERM under load no new work begins, what is in flight is done or given back, and nothing is lost",
		Settings: []Setting{
			length("every", 20*time.Millisecond, 5*time.Millisecond, time.Second, "time between two messages of the load"),
			length("load", 1500*time.Millisecond, 500*time.Millisecond, 30*time.Second, "how long it goes on before SIGTERM"),
			length("takes", 80*time.Millisecond, 10*time.Millisecond, 2*time.Second, "time of a handler"),
			length("grace", 30*time.Second, 5*time.Second, time.Minute, "longest time to the end of the processes"),
		},
		Arms: []Arm{
			{Name: Before, Does: "a worker that acknowledges first, and just ends", play: func(ctx context.Context, s *stage) error { return terminated(ctx, s, roleCareless) }},
			{Name: After, Does: "relay and worker stop in order", play: func(ctx context.Context, s *stage) error { return terminated(ctx, s, roleWorker) }},
		},
		checks: func(s Settings) []Check {
			return append(
				expect(Before, "lost", moreThan(0)),
				expect(After, "in_flight_at_sigterm", moreThan(0), "relay_exit", 0, "worker_exit", 0, "slowest_stop", atMost(s.Duration("grace")),
					"begun_after_sigterm", 0, "in_flight_unaccounted", 0, "lost", 0, "handled_twice", 0)...)
		},
	}
}

const (
	clockSQL pg.SQL = `SELECT clock_timestamp()`
	// Begun later than that; what had been decided when the signal came is no new work.
	begunAfter  pg.SQL = `SELECT count(*) FROM @schema@.drill_starts WHERE at > $1::timestamptz + interval '250 milliseconds'`
	inFlightSQL pg.SQL = `
SELECT count(DISTINCT s.message_id) FROM @schema@.drill_starts s WHERE NOT EXISTS (SELECT FROM @schema@.drill_effects e WHERE e.message_id = s.message_id)`
)

// terminated sends SIGTERM to relay and worker under load, and then lets others finish.
func terminated(ctx context.Context, s *stage, role string) error {
	queue := work("drill.work", 5, 200*time.Millisecond)
	queue.Prefetch = 20
	if err := s.prepare(ctx, queue); err != nil {
		return err
	}
	if err := s.workTables(ctx); err != nil {
		return err
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	task := workerTask{Queue: queue, Takes: s.set.Duration("takes"), AckFirst: true}
	relays := launch{args: []string{"relay", "run"}, env: s.environ(s.url, "SUREFOOT_RELAY_LEASE=2s")}
	relay, err := s.start(ctx, relays)
	if err != nil {
		return err
	}
	worker, err := s.act(ctx, role, task)
	if err != nil {
		return err
	}
	load, err := s.load(ctx, s.set.Duration("every"), func(int) string { return kindOK })
	if err != nil {
		return err
	}
	err = eventually(ctx, 20*time.Second, "the work to begin", func(ctx context.Context) (bool, error) {
		n, err := s.count(ctx, effectsCount)
		return n > 0, err
	})
	if err != nil {
		return errors.Join(err, errors.New(worker.out.String()))
	}
	pause.For(ctx, s.set.Duration("load"))
	if err := s.terminate(ctx, relay, worker); err != nil {
		return err
	}
	if err := load.stop(); err != nil {
		return err
	}
	// What was in flight is done, or waits in its queue again.
	open, err := s.count(ctx, inFlightSQL)
	if err != nil {
		return err
	}
	waits, err := ready(ctx, conn, queue.Name)
	if err != nil {
		return err
	}
	s.observe("in_flight_unaccounted", max(open-waits, 0))
	return s.finishLoad(ctx, relays, task)
}

// terminate sends SIGTERM to both and waits for their ends.
func (s *stage) terminate(ctx context.Context, relay, worker *process) error {
	inFlight, err := s.count(ctx, inFlightSQL)
	if err != nil {
		return err
	}
	s.observe("in_flight_at_sigterm", inFlight)
	var at time.Time
	if err := s.pool.QueryRow(ctx, clockSQL.In(s.schema)).Scan(&at); err != nil {
		return err
	}
	began := time.Now()
	relay.signal(syscall.SIGTERM)
	worker.signal(syscall.SIGTERM)
	grace := s.set.Duration("grace") + 5*time.Second
	relayCode, err := relay.wait(ctx, grace)
	if err != nil {
		return err
	}
	workerCode, err := worker.wait(ctx, grace)
	if err != nil {
		return err
	}
	s.observe("slowest_stop", time.Since(began))
	s.observe("relay_exit", relayCode)
	s.observe("worker_exit", workerCode)
	late, err := s.count(ctx, begunAfter, at)
	s.observe("begun_after_sigterm", late)
	return err
}

// finishLoad lets a fresh relay and a fresh, orderly worker do what is left.
func (s *stage) finishLoad(ctx context.Context, relays launch, task workerTask) error {
	if _, err := s.start(ctx, relays); err != nil {
		return err
	}
	if _, err := s.act(ctx, roleWorker, task); err != nil {
		return err
	}
	last, stalled := -1, time.Now()
	err := eventually(ctx, 60*time.Second, "what is left to be done", func(ctx context.Context) (bool, error) {
		rows, err := s.count(ctx, waiting)
		if err != nil || rows > 0 {
			return false, err
		}
		lost, err := s.count(ctx, sentLost)
		if lost != last {
			last, stalled = lost, time.Now()
		}
		return lost == 0 || time.Since(stalled) > 3*time.Second, err // what does not come any more is lost
	})
	if err != nil {
		return err
	}
	return s.observeCounts(ctx, counted{"committed", sentCount}, counted{"lost", sentLost}, counted{"handled_twice", effectsTwice})
}
