package drill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
)

func kill9() Drill {
	return Drill{
		Name: "kill-9", Section: SectionSaga,
		Proves: "relay, worker, watchdog and redrive killed at random, over and over: every event takes effect exactly once",
		Settings: []Setting{
			count("rounds", 14, 1, 1000, "kills, of random processes at random moments or steps"),
			length("every", 25*time.Millisecond, 5*time.Millisecond, time.Second, "time between two messages of the load"),
			length("lease", time.Second, time.Second, 10*time.Second, "how long a silent relay keeps its share (10s by default)"),
			length("delay", 200*time.Millisecond, 50*time.Millisecond, 10*time.Second, "delay of the retry queue (30s by default)"),
		},
		Arms: []Arm{
			{Name: Before, Does: "a worker without an inbox, killed between effect and acknowledgement", play: killCareless},
			{Name: After, Does: "two relays, two workers, a watchdog, redrives", play: killAll},
		},
		checks: func(s Settings) []Check {
			return append(
				expect(Before, "handled_twice", moreThan(0)),
				expect(After, "kills", atLeast(s.Int("rounds")), "lost", 0, "handled_twice", 0, "without_effect", 0, "stuck_orders", 0, "orders_cancelled_twice", 0,
					"left_in_outbox", 0, "left_in_queues", 0)...)
		},
	}
}

// killConfig is for the processes that have one.
const killConfig = `
topology:
  exchange: drill.events
  queues: [{name: drill.work, bindings: ["drill.#"], retry: [%[2]s], max_attempts: 3}]
relay: {lease: %[3]s, poll_max: 50ms}
watchdog:
  interval: 200ms
  rules:
    - {name: WAITS_TOO_LONG, table: %[1]s.drill_orders, key: id, status: status, stuck: [WAITING], clock: since, limit: 10m,
       new_status: CANCELLED, reason: WAITS_TOO_LONG, event_type: drill.cancelled}
`

const (
	killOrders pg.SQL = `CREATE TABLE @schema@.drill_orders (id text PRIMARY KEY, status text NOT NULL DEFAULT 'WAITING', since timestamptz NOT NULL DEFAULT now() - interval '1 hour')`
	killOrder  pg.SQL = `INSERT INTO @schema@.drill_orders (id) VALUES ($1)`
	killStuck  pg.SQL = `SELECT count(*) FROM @schema@.drill_orders WHERE status <> 'CANCELLED'`
	killAllOf  pg.SQL = `SELECT count(*) FROM @schema@.drill_orders`
	// Effects that are no committed message's are those of cancellations: one for each order.
	killEvents pg.SQL = `SELECT count(DISTINCT message_id) FROM @schema@.drill_effects e WHERE NOT EXISTS (SELECT FROM @schema@.drill_sent s WHERE s.message_id = e.message_id)`
)

func killCareless(ctx context.Context, s *stage) error {
	queue := work("drill.work", 3, s.set.Duration("delay"))
	if err := s.prepare(ctx, queue); err != nil {
		return err
	}
	if err := s.workTables(ctx); err != nil {
		return err
	}
	if _, err := s.relay(ctx, "relay", nil); err != nil {
		return err
	}
	if err := s.enqueue(ctx, events(20)...); err != nil {
		return err
	}
	p, err := s.act(ctx, roleCareless, workerTask{Queue: queue, DieAt: 10})
	if err != nil {
		return err
	}
	if _, err := p.wait(ctx, 20*time.Second); err != nil {
		return err
	}
	if _, err := s.act(ctx, roleCareless, workerTask{Queue: queue}); err != nil {
		return err
	}
	err = eventually(ctx, 20*time.Second, "the messages to be handled", func(ctx context.Context) (bool, error) {
		n, err := s.count(ctx, effectsCount)
		return n > 20, err
	})
	if err != nil {
		return err
	}
	return s.observeCounts(ctx, counted{"handled_twice", effectsTwice})
}

// fleet are the processes to be killed.
type fleet struct {
	stage   *stage
	random  *rand.Rand
	dir     string
	env     []string
	members []*kept
	kills   int // of redrives
}

func killAll(ctx context.Context, s *stage) error {
	queue := work("drill.work", 3, s.set.Duration("delay"))
	if err := s.prepare(ctx, queue); err != nil {
		return err
	}
	if err := errors.Join(s.workTables(ctx), s.exec(ctx, killOrders)); err != nil {
		return err
	}
	f, err := s.fleet(ctx, workerTask{Queue: queue, Takes: 2 * time.Millisecond})
	if err != nil {
		return err
	}
	load, err := s.load(ctx, s.set.Duration("every"), func(n int) string {
		switch {
		case n%20 == 19:
			return kindPoison
		case n%7 == 6:
			return kindFlaky
		}
		return kindOK
	})
	if err != nil {
		return err
	}
	for round := range s.set.Int("rounds") {
		if err := errors.Join(s.exec(ctx, killOrder, fmt.Sprintf("order-%d", round)), f.round(ctx)); err != nil {
			return err
		}
	}
	if err := errors.Join(load.stop(), s.exec(ctx, mendedNow), f.resume(ctx)); err != nil {
		return err
	}
	return f.account(ctx, queue.DLQ())
}

func (s *stage) fleet(ctx context.Context, task workerTask) (*fleet, error) {
	dir, err := s.directory()
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf(killConfig, s.schema, s.set.Duration("delay"), s.set.Duration("lease"))
	if err := os.WriteFile(filepath.Join(dir, "surefoot.yaml"), []byte(text), 0o600); err != nil {
		return nil, err
	}
	f := &fleet{stage: s, random: s.random, dir: dir, env: s.environ(s.url)}
	for _, m := range []struct {
		name string
		args []string
		task any
	}{
		{"relay", []string{"relay", "run"}, nil},
		{"relay", []string{"relay", "run"}, nil},
		{"consumer", []string{"drill", "act", roleWorker}, task},
		{"consumer", []string{"drill", "act", roleWorker}, task},
		{"watchdog", []string{"watchdog", "run"}, nil},
	} {
		k, err := s.keep(ctx, m.name, launch{args: m.args, env: f.env, dir: dir, stdin: m.task})
		if err != nil {
			return nil, err
		}
		f.members = append(f.members, k)
	}
	return f, nil
}

// round kills one process, at once, and maybe once more at a random step of its next life; or a redrive, unless it finds nothing to move.
func (f *fleet) round(ctx context.Context) error {
	if !pause.For(ctx, time.Duration(100+f.random.IntN(500))*time.Millisecond) {
		return context.Cause(ctx)
	}
	target, instead := f.random.IntN(len(f.members)+1), f.random.IntN(len(f.members))
	if target == len(f.members) {
		killed, err := f.redrive(ctx, f.point("redrive")+":kill")
		if killed || err != nil {
			return err
		}
		target = instead
	}
	at := ""
	if f.random.IntN(2) == 0 {
		at = fmt.Sprintf("%s:kill@%d", f.point(f.members[target].name), 1+f.random.IntN(3))
	}
	f.members[target].crash(at)
	return nil
}

// point is a random step of a component.
func (f *fleet) point(component string) string {
	var steps []string
	for _, p := range fault.Points() {
		if strings.HasPrefix(p, component+".") {
			steps = append(steps, p)
		}
	}
	return steps[f.random.IntN(len(steps))]
}

// redrive runs a redrive of all dead letters to its end, which is a kill when it comes to that step.
func (f *fleet) redrive(ctx context.Context, at string) (killed bool, err error) {
	p, err := f.tell(ctx, at, "redrive", "--include-repeaters")
	if err != nil || !p.killed() {
		return false, err
	}
	f.kills++
	return true, nil
}

// tell runs a command of the dead letters to its end.
func (f *fleet) tell(ctx context.Context, at, verb string, more ...string) (*process, error) {
	if err := f.stage.exec(ctx, killLocks); err != nil { // the last one may have died with it
		return nil, err
	}
	env := append([]string{}, f.env...)
	if at != "" {
		env = append(env, "SUREFOOT_FAULT="+at)
	}
	p, err := f.stage.start(ctx, launch{
		args: append([]string{"dlq", verb, "--queue", "drill.work", "--reason", "drill", "--wait", "30s", "--yes"}, more...), env: env, dir: f.dir,
	})
	if err != nil {
		return nil, err
	}
	_, err = p.wait(ctx, time.Minute)
	return p, err
}

// processed is what a redrive says of letters that the inbox knows: a copy of each was processed, and its sender died before it let go of the letter.
var processed = regexp.MustCompile(`(?m)^found +(\d+)\nredriven +0\nalready processed +(\d+)$`)

// bringBack redrives what is dead, and drops what was processed already, as the redrive advises.
func (f *fleet) bringBack(ctx context.Context) error {
	p, err := f.tell(ctx, "", "redrive", "--include-repeaters")
	if err != nil {
		return err
	}
	if m := processed.FindStringSubmatch(p.out.String()); m != nil && m[1] == m[2] {
		_, err = f.tell(ctx, "", "discard", "--max", m[1])
	}
	return err
}

const (
	killLocks pg.SQL = `UPDATE @schema@.dlq_lock SET expires_at = now()`
	killRuns  pg.SQL = `UPDATE @schema@.dlq_runs SET lease_until = now()`
	killLive  pg.SQL = `SELECT id::text FROM @schema@.dlq_runs WHERE state IN ('running', 'paused')`
)

// resume goes on with redrives whose process was killed, as a replica of `surefoot run` would when their lease is over, half a minute
// later.
func (f *fleet) resume(ctx context.Context) error {
	s := f.stage
	if err := errors.Join(s.exec(ctx, killLocks), s.exec(ctx, killRuns)); err != nil {
		return err
	}
	rows, err := s.pool.Query(ctx, killLive.In(s.schema))
	if err != nil {
		return err
	}
	runs, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, id := range runs {
		p, err := s.start(ctx, launch{args: []string{"dlq", "runs", "resume", id, "--yes"}, env: f.env, dir: f.dir})
		if err != nil {
			return err
		}
		if code, err := p.wait(ctx, time.Minute); err != nil || code != 0 {
			return errors.Join(err, fmt.Errorf("%s: exit %d: %s", p.name, code, p.out))
		}
	}
	s.observe("redrives_resumed", len(runs))
	return nil
}

// account brings back what is dead until everything has had its effect, and counts.
func (f *fleet) account(ctx context.Context, dlq string) error {
	s := f.stage
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	redriven := time.Time{}
	err = eventually(ctx, 75*time.Second, "everything to have its effect", func(ctx context.Context) (bool, error) {
		dead, err := ready(ctx, conn, dlq)
		if err != nil {
			return false, err
		}
		if dead > 0 && time.Since(redriven) > time.Second {
			redriven = time.Now()
			if err := f.bringBack(ctx); err != nil {
				return false, err
			}
		}
		return f.done(ctx, dead)
	})
	kills, restarts := f.kills, 0
	for _, m := range f.members {
		died, began := m.lives()
		kills, restarts = kills+died, restarts+began
	}
	s.observe("kills", kills)
	s.observe("restarts", restarts)
	if err != nil {
		return errors.Join(err, f.count(ctx))
	}
	left, err := ready(ctx, conn, "drill.work", "drill.work.retry", dlq)
	if err != nil {
		return err
	}
	s.observe("left_in_queues", left)
	return f.count(ctx)
}

func (f *fleet) done(ctx context.Context, dead int) (bool, error) {
	rest := 0
	for _, sql := range []pg.SQL{waiting, sentLost, killStuck} {
		n, err := f.stage.count(ctx, sql)
		if err != nil {
			return false, err
		}
		rest += n
	}
	orders, err := f.stage.count(ctx, killAllOf)
	if err != nil {
		return false, err
	}
	cancelled, err := f.stage.count(ctx, killEvents)
	return dead == 0 && rest == 0 && cancelled >= orders, err
}

func (f *fleet) count(ctx context.Context) error {
	s := f.stage
	orders, err := s.count(ctx, killAllOf)
	if err != nil {
		return err
	}
	cancelled, err := s.count(ctx, killEvents)
	if err != nil {
		return err
	}
	s.observe("orders_cancelled_twice", max(cancelled-orders, 0))
	s.observe("without_effect", max(orders-cancelled, 0))
	return s.observeCounts(ctx, counted{"committed", sentCount}, counted{"lost", sentLost}, counted{"handled_twice", effectsTwice},
		counted{"stuck_orders", killStuck}, counted{"left_in_outbox", waiting})
}
