package reconcile_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/reconcile"
)

func TestWhatIsWrongIsMendedAndWhatIsRightIsLeftAlone(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 2, "CANCELLED")
	b.reserve(3, 4, "PENDING")
	b.reserve(5, 5, "") // its order is unknown
	b.exec(`INSERT INTO @.reservations (id, order_id, since) VALUES (6, 'o6', now() - interval '19 min');
		INSERT INTO @.reservations (id, order_id, since, status) VALUES (7, 'o7', now() - interval '1 h', 'COMMITTED'), (8, 'o8', '-infinity', 'ACTIVE')`)
	var log bytes.Buffer
	registry := prometheus.NewRegistry()
	o := b.options(b.rule())
	o.Logger, o.Registerer = zerolog.New(zerolog.SyncWriter(&log)), registry
	r := b.made(o)

	results, err := r.Once(t.Context())
	require.NoError(t, err)
	run := results[0].Run
	require.Equal(t, []reconcile.Result{{Rule: "reservations", Run: run, Checked: 5, Mismatches: 3, Kept: 2}}, results)
	require.Equal(t, []int64{1, 2, 5}, one[[]int64](b, `SELECT array_agg(id ORDER BY id) FROM @.reservations WHERE status = 'RELEASED' AND changed > now() - interval '1 min'`))
	require.Equal(t, "ORDER_UNKNOWN", one[string](b, `SELECT reason FROM @.reservations WHERE id = 5`))
	b.balanced()
	for _, e := range b.events() {
		require.Equal(t, "stock.expired", e.Type)
		require.Equal(t, "reconcile/reservations", e.Source)
		require.JSONEq(t, `"`+run+`"`, string(e.Payload["run"]))
		require.JSONEq(t, `"o`+e.Key+`"`, string(e.Payload["orderId"]))
		require.JSONEq(t, `"ACTIVE"`, string(e.Payload["previousStatus"]))
		require.Equal(t, "9007199254740993", string(e.Payload["cents"]), "numbers are not read as floats")
	}
	require.Equal(t, 3, bytes.Count(log.Bytes(), []byte(`"level":"error"`)))
	require.Equal(t, 3, bytes.Count(log.Bytes(), []byte(`"message":"reservation discrepancy"`)), "each has its line")
	require.Equal(t, 3, bytes.Count(log.Bytes(), []byte(`"run":"`+run+`"`)))
	require.NotContains(t, log.String(), "tenant", "no payloads")

	require.NoError(t, testutil.GatherAndCompare(registry, bytes.NewBufferString(`
# HELP surefoot_reconcile_mismatches_total Rows that were wrong and were mended, by the authority's answer.
# TYPE surefoot_reconcile_mismatches_total counter
surefoot_reconcile_mismatches_total{answer="CANCELLED",rule="reservations"} 2
surefoot_reconcile_mismatches_total{answer="not_found",rule="reservations"} 1
# HELP surefoot_reconcile_suspects Suspects at the end of the last cycle, counted up to 10000.
# TYPE surefoot_reconcile_suspects gauge
surefoot_reconcile_suspects{rule="reservations"} 2
`), "surefoot_reconcile_mismatches_total", "surefoot_reconcile_suspects"))
	last, err := testutil.GatherAndCount(registry, "surefoot_reconcile_last_success_timestamp_seconds")
	require.NoError(t, err)
	require.Equal(t, 1, last)
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	require.Empty(t, problems)

	require.Equal(t, reconcile.Result{Rule: "reservations"}, b.once(r), "what is right is asked about again an interval later")
	b.due()
	require.Equal(t, reconcile.Result{Rule: "reservations", Checked: 2, Kept: 2}, b.once(r))
	require.Len(t, b.events(), 3)
}

// A run is what its events name: nobody changes it.
func TestARunIsImmutable(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 1, "CANCELLED")
	r := b.reconciler(b.rule())
	b.once(r)
	runs, err := r.Runs(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, runs, 1)
	require.Equal(t, 1, runs[0].Mismatches)
	require.Equal(t, "test", runs[0].Host)
	require.Equal(t, runs[0].ID, one[string](b, `SELECT run_id::text FROM @.reconcile_suspects WHERE resolved_at IS NOT NULL AND new_status = 'RELEASED' AND answer = 'CANCELLED'`))
	for _, sql := range []string{`SET id = gen_random_uuid()`, `SET mismatches = 7`, `SET started_at = now()`} {
		_, err := b.Pool.Exec(t.Context(), b.in(`UPDATE @.reconcile_runs `+sql))
		require.ErrorContains(t, err, "immutable", sql)
	}
}

func TestNoAnswerLeavesTheSuspectAndIsAskedForAgain(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 5, "CANCELLED")
	away := atomic.Bool{}
	away.Store(true)
	var log bytes.Buffer
	o := b.options(b.asking(func(_ context.Context, s reconcile.Suspect) (string, error) {
		switch {
		case !away.Load():
			return "CANCELLED", nil
		case s.Key == "1":
			return "", errors.New("out of order")
		case s.Key == "2":
			panic("out of its mind")
		case s.Key == "3":
			return "SHIPPED", nil // the rule does not know it
		case s.Key == "4":
			return "", nil
		}
		return string(make([]byte, 300)), nil
	}))
	o.Logger = zerolog.New(zerolog.SyncWriter(&log))
	r := b.made(o)
	require.Equal(t, reconcile.Result{Rule: "reservations", Checked: 5, Unanswered: 5}, b.once(r))
	require.Empty(t, b.events())
	require.Equal(t, 5, one[int](b, `SELECT count(*) FROM @.reservations WHERE status = 'ACTIVE'`), "never given up")
	require.Equal(t, 5, bytes.Count(log.Bytes(), []byte("suspect unanswered")))

	list, err := r.List(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, list, 5)
	for _, l := range list {
		require.False(t, l.Due)
		require.Equal(t, 1, l.Misses)
		require.WithinDuration(t, time.Now().Add(time.Minute), *l.NextCheck, 20*time.Second)
		require.NotEmpty(t, l.Error)
	}
	require.Zero(t, b.once(r).Checked, "not before it is due")
	b.due()
	b.once(r)
	require.InDelta(t, 120, one[float64](b, `SELECT extract(epoch FROM min(next_check - checked_at))::float8 FROM @.reconcile_suspects`), 1, "twice as long")
	b.exec(`UPDATE @.reconcile_suspects SET misses = 40`)
	b.due()
	b.once(r)
	require.InDelta(t, 3600, one[float64](b, `SELECT extract(epoch FROM max(next_check - checked_at))::float8 FROM @.reconcile_suspects`), 1, "an hour at most")

	away.Store(false)
	b.due()
	require.Equal(t, reconcile.Result{Rule: "reservations", Checked: 5, Mismatches: 5}, b.once(r))
	b.balanced()
}

// Somebody else is faster than the answer.
func TestWhoeverChangedTheRowFirstWins(t *testing.T) {
	for name, change := range map[string]string{
		"another status":           `UPDATE @.reservations SET status = 'COMMITTED' WHERE id = $1::bigint`,
		"left and come back":       `UPDATE @.reservations SET since = since + interval '1 s' WHERE id = $1::bigint`,
		"gone":                     `DELETE FROM @.reservations WHERE id = $1::bigint`,
		"claimed by another run":   `UPDATE @.reconcile_suspects SET run_id = gen_random_uuid() WHERE key = $1`,
		"the lease has run out":    `UPDATE @.reconcile_suspects SET next_check = now() WHERE key = $1`,
		"the suspect is forgotten": `DELETE FROM @.reconcile_suspects WHERE key = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.reserve(1, 1, "CANCELLED")
			r := b.reconciler(b.asking(func(ctx context.Context, s reconcile.Suspect) (string, error) {
				_, err := b.Pool.Exec(ctx, b.in(change), s.Key)
				return "CANCELLED", err
			}))
			require.Equal(t, reconcile.Result{Rule: "reservations", Checked: 1, Lost: 1}, b.once(r))
			require.Empty(t, b.events())
			require.Zero(t, one[int](b, `SELECT count(*) FROM @.reservations WHERE status = 'RELEASED'`))
		})
	}
}

func TestReplicasShareTheWork(t *testing.T) {
	b := newBench(t)
	const suspects = 300
	b.reserve(1, suspects, "CANCELLED")
	var asked counter
	var wg sync.WaitGroup
	results := make([]reconcile.Result, 2)
	for i := range results {
		o := b.options(b.asking(asked.cancelled))
		o.Batch = 10
		r := b.made(o)
		wg.Go(func() {
			all, err := r.Once(t.Context())
			if err == nil {
				results[i] = all[0]
			}
		})
	}
	wg.Wait()
	require.Equal(t, suspects, results[0].Mismatches+results[1].Mismatches)
	require.NotZero(t, results[0].Mismatches, "replicas share the work")
	require.NotZero(t, results[1].Mismatches, "replicas share the work")
	require.Len(t, asked.asked, suspects)
	for key, times := range asked.asked {
		require.Equal(t, 1, times, "%s was asked about twice", key)
	}
	require.Equal(t, suspects, one[int](b, `SELECT count(DISTINCT message_id) FROM @.outbox`))
	b.balanced()
}

// Two replicas find the same suspects at the same moment: each statement has seen them free before either claims.
func TestOfTwoThatFindASuspectOneClaimsIt(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 20, "CANCELLED")
	gate, err := b.Pool.Begin(t.Context())
	require.NoError(t, err)
	lock := one[int32](b, `SELECT hashtext($1)`, b.Schema)
	_, err = gate.Exec(t.Context(), `SELECT pg_advisory_xact_lock(4711, $1)`, lock)
	require.NoError(t, err)
	var asked counter
	var wg sync.WaitGroup
	for range 2 {
		rule := b.asking(asked.cancelled)
		rule.Suspects, rule.Age, rule.Columns = nil, 0, nil
		rule.Query = b.in(`SELECT id AS key, status, since, pg_advisory_xact_lock_shared(4711, hashtext('` + b.Schema + `'))::text AS locked
			FROM @.reservations WHERE status = 'ACTIVE'`)
		r := b.reconciler(rule)
		wg.Go(func() { _, _ = r.Once(t.Context()) })
	}
	testkit.Eventually(t, patience, "both to be looking", func() bool {
		return one[int](b, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = 4711 AND objid::int8 = ($1::int8 & 4294967295)`, int64(lock)) == 2
	})
	require.NoError(t, gate.Commit(t.Context()))
	wg.Wait()
	require.Len(t, asked.asked, 20)
	for key, times := range asked.asked {
		require.Equal(t, 1, times, "%s was asked about twice", key)
	}
	b.balanced()
}

// While one asks about a suspect, nobody else does.
func TestAClaimIsOneReplicas(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 1, "CANCELLED")
	asking, answer := make(chan struct{}), make(chan struct{})
	first := b.reconciler(b.asking(func(context.Context, reconcile.Suspect) (string, error) {
		close(asking)
		<-answer
		return "CANCELLED", nil
	}))
	done := make(chan reconcile.Result)
	go func() {
		results, _ := first.Once(t.Context())
		done <- results[0]
	}()
	<-asking
	var asked counter
	require.Zero(t, b.once(b.reconciler(b.asking(asked.cancelled))).Checked, "the other one is asking about it")
	close(answer)
	require.Equal(t, 1, (<-done).Mismatches)
	require.Empty(t, asked.asked)
}

func TestAChangeThatFailsIsTriedAgain(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 4, "CANCELLED")
	b.exec(`CREATE FUNCTION @.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		CASE NEW.id WHEN 1 THEN RAISE EXCEPTION 'sealed'; WHEN 2 THEN NEW.status := 'ACTIVE'; WHEN 3 THEN RETURN NULL; ELSE NULL; END CASE; RETURN NEW; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON @.reservations FOR EACH ROW EXECUTE FUNCTION @.refuse()`)
	r := b.reconciler(b.rule())
	require.Equal(t, reconcile.Result{Rule: "reservations", Checked: 4, Mismatches: 1, Failed: 3}, b.once(r))
	b.balanced()
	list, err := r.List(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, list, 3)
	for _, l := range list {
		require.Equal(t, "CANCELLED", l.Answer, "the answer is known")
		require.NotEmpty(t, l.Error)
	}
	b.exec(`DROP TRIGGER refuse ON @.reservations`)
	b.due()
	require.Equal(t, 3, b.once(r).Mismatches)
	b.balanced()
}

// What the rule adds is in the transaction of the change.
func TestWhatTheRuleAddsIsUndoneWithTheChange(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 2, "CANCELLED")
	rule := b.rule()
	action := rule.Answers["CANCELLED"]
	action.Do = func(ctx context.Context, tx pgx.Tx, s reconcile.Suspect) error {
		if _, err := tx.Exec(ctx, b.in(`INSERT INTO @.asked VALUES ($1)`), s.Key); err != nil {
			return err
		}
		if s.Key == "2" {
			return errors.New("no room")
		}
		return nil
	}
	rule.Answers["CANCELLED"] = action
	require.Equal(t, reconcile.Result{Rule: "reservations", Checked: 2, Mismatches: 1, Failed: 1}, b.once(b.reconciler(rule)))
	require.Equal(t, []string{"1"}, one[[]string](b, `SELECT array_agg(key) FROM @.asked`))
	b.balanced()
}

// An authority that is away is not asked about all the suspects there are.
func TestAnAuthorityThatIsAwayIsSpared(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 50, "CANCELLED")
	var asked counter
	o := b.options(b.asking(func(_ context.Context, s reconcile.Suspect) (string, error) {
		asked.count(s.Key)
		return "", errors.New("away")
	}))
	o.Batch = 5
	require.Equal(t, 5, b.once(b.made(o)).Unanswered)
	require.Len(t, asked.asked, 5)
}

func TestACycleIsBounded(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 10, "CANCELLED")
	o := b.options(b.rule())
	o.Batch, o.MaxBatches = 2, 3
	r := b.made(o)
	require.Equal(t, reconcile.Result{Rule: "reservations", Checked: 6, Mismatches: 6, More: true}, b.once(r))
	require.Equal(t, 4, b.once(r).Mismatches)
}

func TestAQueryFindsSuspects(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 2, "CANCELLED")
	b.reserve(3, 3, "PENDING")
	rule := b.rule()
	rule.Suspects, rule.Age, rule.Columns = nil, 0, nil
	rule.Query = b.in(`SELECT r.id AS key, r.status, r.since, r.order_id AS "orderId", '{"a": [1]}'::jsonb AS more, NULL AS nothing
		FROM @.reservations AS r WHERE r.status = 'ACTIVE' UNION ALL SELECT NULL, 'x', now(), 'x', NULL, NULL -- {orderId}`)
	r := b.reconciler(rule)
	warnings, err := r.Check(t.Context())
	require.NoError(t, err)
	require.Empty(t, warnings)
	require.Equal(t, reconcile.Result{Rule: "reservations", Checked: 3, Mismatches: 2, Kept: 1}, b.once(r))
	require.JSONEq(t, `{"a": [1]}`, string(b.events()[0].Payload["more"]))
	b.balanced()
}

// Run asks again when a suspect is due, long before the interval, gives back what it has claimed when it ends, and says how it is.
func TestRunAsksAgainAndGivesBackWhenItEnds(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 1, "CANCELLED")
	var calls atomic.Int32
	blocked := make(chan struct{})
	o := b.options(b.asking(func(ctx context.Context, _ reconcile.Suspect) (string, error) {
		if calls.Add(1) == 1 {
			return "", errors.New("away")
		}
		close(blocked)
		<-ctx.Done()
		return "", ctx.Err()
	}))
	o.Backoff = time.Second
	ready := make(chan error, 100)
	o.Ready = func(err error) { ready <- err }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.made(o).Run(ctx) }()
	require.NoError(t, <-ready)
	select {
	case <-blocked:
	case <-time.After(patience):
		t.Fatal("not asked again")
	}
	cancel()
	require.NoError(t, <-ended)
	require.True(t, one[bool](b, `SELECT next_check <= clock_timestamp() AND checks = 1 FROM @.reconcile_suspects`), "given back, and not counted")
	require.Equal(t, reconcile.Result{Rule: "reservations", Checked: 1, Mismatches: 1}, b.once(b.reconciler(b.rule())))
}

func TestADatabaseThatIsAwayIsWaitedFor(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 3, "CANCELLED")
	network := testkit.Proxy(t, b.URL)
	db := testkit.DB{URL: network.Through(t, b.URL)}
	pool := connect(t, db.URL)
	network.Cut()
	o := b.options(ruleIn(b.Schema, pool))
	o.Pool = pool
	var mu sync.Mutex
	var states []bool
	o.Ready = func(err error) { mu.Lock(); defer mu.Unlock(); states = append(states, err == nil) }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.made(o).Run(ctx) }()
	seen := func(state bool) func() bool {
		return func() bool { mu.Lock(); defer mu.Unlock(); return slices.Contains(states, state) }
	}
	testkit.Eventually(t, patience, "it to say that the database is away", seen(false))
	network.Heal(t)
	testkit.Eventually(t, patience, "it to be ready", seen(true))
	cancel()
	require.NoError(t, <-ended)
	b.balanced()
	require.Equal(t, 3, one[int](b, `SELECT count(*) FROM @.reservations WHERE status = 'RELEASED'`))
}

func TestOldRunsAndSuspectsAreForgotten(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 1, "PENDING")
	r := b.reconciler(b.rule())
	b.once(r)
	b.exec(`INSERT INTO @.reconcile_runs (id, rule, host, started_at) VALUES (gen_random_uuid(), 'reservations', 'h', now() - interval '31 days');
		INSERT INTO @.reconcile_suspects (rule, key_hash, key, since, run_id, next_check, resolved_at) VALUES
		('gone', '\x01', 'k', now(), gen_random_uuid(), now() - interval '25 h', NULL),
		('gone', '\x02', 'k', now(), gen_random_uuid(), now() - interval '25 h', now() - interval '29 days'),
		('gone', '\x03', 'k', now(), gen_random_uuid(), now() - interval '25 h', now() - interval '31 days')`)
	b.once(r)
	require.Equal(t, 2, one[int](b, `SELECT count(*) FROM @.reconcile_runs`))
	require.Equal(t, 1, one[int](b, `SELECT count(*) FROM @.reconcile_suspects WHERE rule = 'gone'`))
}
