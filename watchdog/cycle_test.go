package watchdog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/watchdog"
)

func replaceSchema(sql, schema string) string { return strings.ReplaceAll(sql, "@.", schema+".") }

func TestStuckRowIsChangedWithItsEvent(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 1)
	b.exec(`INSERT INTO @.sagas (id, status, since) VALUES (2, 'STOCK_RESERVED', now() - interval '9 min'),
		(3, 'PAID', now() - interval '1 h'), (4, 'STOCK_RESERVED', '-infinity')`)
	var log bytes.Buffer
	w := b.watchdog(func(o *watchdog.Options) { o.Logger = zerolog.New(&log) })

	require.Equal(t, watchdog.Result{Rule: "PAYMENT_TIMEOUT", Cancelled: 1}, b.once(w))

	require.Equal(t, 1, b.count(`SELECT count(*) FROM @.sagas WHERE id = 1 AND status = 'CANCELLED'
		AND reason = 'PAYMENT_TIMEOUT' AND changed > now() - interval '1 min'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM @.sagas WHERE status = 'CANCELLED'`))
	events := b.events()
	require.Len(t, events, 1)
	require.Equal(t, "order.cancelled", events[0].Type)
	require.Equal(t, "1", events[0].Key)
	require.Equal(t, "watchdog/PAYMENT_TIMEOUT", events[0].Source)
	require.JSONEq(t, `"PAYMENT_TIMEOUT"`, string(events[0].Payload["reason"]))
	require.JSONEq(t, `"STOCK_RESERVED"`, string(events[0].Payload["previousStatus"]))
	require.JSONEq(t, `"1"`, string(events[0].Payload["key"]))
	require.Equal(t, "9007199254740993", string(events[0].Payload["cents"]), "numbers are not read as floats")
	require.Contains(t, string(events[0].Payload["overdueSince"]), "Z")
	require.Contains(t, log.String(), `"level":"warn"`)
	require.Contains(t, log.String(), `"reason":"PAYMENT_TIMEOUT"`)
	require.Contains(t, log.String(), "saga cancelled")

	require.Zero(t, b.once(w).Cancelled, "a second cycle finds nothing")
	require.Len(t, b.events(), 1)
}

// A row whose change ends the database session stands in nobody's way.
func TestRowThatEndsTheSessionIsIsolated(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 25)
	b.exec(`CREATE FUNCTION @.die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.id IN (25, 12) THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END $$;
		CREATE TRIGGER die BEFORE UPDATE ON @.sagas FOR EACH ROW EXECUTE FUNCTION @.die()`)
	w := b.watchdog(func(o *watchdog.Options) { o.Batch = 10 })
	require.Equal(t, watchdog.Result{Rule: "PAYMENT_TIMEOUT", Cancelled: 23, Failed: 2}, b.once(w))
	require.Len(t, b.events(), 23)
	require.Equal(t, watchdog.Result{Rule: "PAYMENT_TIMEOUT"}, b.once(w), "they wait for their next try")
	overdue, err := w.List(t.Context(), watchdog.Filter{Limit: 10})
	require.NoError(t, err)
	require.Len(t, overdue, 2)
	require.Contains(t, overdue[0].Error, "session ended")
	b.exec(`DROP TRIGGER die ON @.sagas; UPDATE @.watchdog_failures SET next_try = now()`)
	require.Equal(t, watchdog.Result{Rule: "PAYMENT_TIMEOUT", Cancelled: 2}, b.once(w))
}

// A clock that JSON cannot write keeps no row from being cancelled or listed.
func TestClockBeforeOurEraIsCancelled(t *testing.T) {
	b := newBench(t)
	b.exec(`INSERT INTO @.sagas (id, status, since) VALUES (1, 'STOCK_RESERVED', '4000-01-01 BC'), (2, 'STOCK_RESERVED', now() - interval '1 h')`)
	w := b.watchdog()
	overdue, err := w.List(t.Context(), watchdog.Filter{Limit: 10})
	require.NoError(t, err)
	text, err := json.Marshal(overdue)
	require.NoError(t, err)
	require.Contains(t, string(text), `"since":null`)
	require.Equal(t, watchdog.Result{Rule: "PAYMENT_TIMEOUT", Cancelled: 2}, b.once(w))
	require.Equal(t, "null", string(b.events()[0].Payload["overdueSince"]))
}

func TestTwoWatchdogsCancelEachOrderOnce(t *testing.T) {
	b := newBench(t)
	const sagas = 300
	b.stuck(1, sagas)
	var wg sync.WaitGroup
	cancelled := make([]int, 2)
	for i := range cancelled {
		w := b.watchdog(func(o *watchdog.Options) { o.Batch = 10 })
		wg.Go(func() {
			results, err := w.Once(t.Context())
			if err == nil {
				cancelled[i] = results[0].Cancelled
			}
		})
	}
	wg.Wait()
	require.Equal(t, sagas, cancelled[0]+cancelled[1])
	require.NotZero(t, cancelled[0], "replicas share the work")
	require.NotZero(t, cancelled[1], "replicas share the work")
	require.Equal(t, sagas, b.count(`SELECT count(DISTINCT message_id) FROM @.outbox`))
	require.Equal(t, sagas, b.count(`SELECT count(*) FROM @.outbox`))
}

func TestHeldRowIsPassedOver(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 3)
	w := b.watchdog()
	release := b.hold(`UPDATE @.sagas SET status = 'PAID' WHERE id = 2`)
	require.Equal(t, watchdog.Result{Rule: "PAYMENT_TIMEOUT", Cancelled: 2}, b.once(w), "the cycle neither waits for the payment nor overwrites it")
	release()
	require.Zero(t, b.once(w).Cancelled, "the payment came first")
	require.Equal(t, 1, b.count(`SELECT count(*) FROM @.sagas WHERE status = 'PAID'`))
	require.Len(t, b.events(), 2)
}

// A row that somebody changed between the claim and its own UPDATE: here a trigger of its sibling, which runs
// in the watchdog's own transaction, where no lock can keep it out.
func TestGuardedUpdateLeavesWhatWasChangedMeanwhile(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 2)
	b.exec(`CREATE FUNCTION @.pay_sibling() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		UPDATE ` + b.Schema + `.sagas SET status = 'PAID' WHERE id <> NEW.id; RETURN NULL; END $$;
		CREATE TRIGGER pay_sibling AFTER UPDATE ON @.sagas FOR EACH ROW WHEN (NEW.status = 'CANCELLED') EXECUTE FUNCTION @.pay_sibling()`)
	require.Equal(t, watchdog.Result{Rule: "PAYMENT_TIMEOUT", Cancelled: 1}, b.once(b.watchdog()))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM @.sagas WHERE status = 'PAID'`))
	require.Len(t, b.events(), 1)
	require.Zero(t, b.count(`SELECT count(*) FROM @.watchdog_failures`))
}

func TestLimitIsLookedAtAgainBeforeTheChange(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 2)
	b.exec(`CREATE FUNCTION @.extend_sibling() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		UPDATE ` + b.Schema + `.sagas SET since = now() WHERE id <> NEW.id AND status = 'STOCK_RESERVED'; RETURN NULL; END $$;
		CREATE TRIGGER extend_sibling AFTER UPDATE ON @.sagas FOR EACH ROW WHEN (NEW.status = 'CANCELLED') EXECUTE FUNCTION @.extend_sibling()`)
	require.Equal(t, watchdog.Result{Rule: "PAYMENT_TIMEOUT", Cancelled: 1}, b.once(b.watchdog()))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM @.sagas WHERE status = 'STOCK_RESERVED'`))
}

func TestFailingRowsStarveNobody(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 30) // the higher the id, the older: sagas 6 to 30 come first and fail
	b.refuse(6, 30)
	reg := prometheus.NewRegistry()
	w := b.watchdog(func(o *watchdog.Options) { o.Batch, o.MaxBatches, o.Registerer = 5, 8, reg })

	require.Equal(t, watchdog.Result{Rule: "PAYMENT_TIMEOUT", Cancelled: 5, Failed: 25}, b.once(w))
	require.Equal(t, 25, b.count(`SELECT count(*) FROM @.watchdog_failures WHERE tries = 1 AND error LIKE '%sealed%'
		AND next_try > now() + interval '30 s'`))
	require.Len(t, b.events(), 5, "a failed row has no event")
	require.Equal(t, watchdog.Result{Rule: "PAYMENT_TIMEOUT"}, b.once(w), "left out until the next try")

	b.exec(`UPDATE @.watchdog_failures SET next_try = now() - interval '1 s'`)
	b.stuck(31, 35)
	w = b.watchdog(func(o *watchdog.Options) { o.Batch, o.MaxBatches = 5, 3 })
	require.Equal(t, watchdog.Result{Rule: "PAYMENT_TIMEOUT", Cancelled: 5, Failed: 5, More: true}, b.once(w), "fresh rows come first")
	require.Equal(t, 5, b.count(`SELECT count(*) FROM @.watchdog_failures WHERE tries = 2 AND next_try > now() + interval '90 s'`))

	require.InDelta(t, 25, testutil.ToFloat64(gauge(t, reg, "surefoot_watchdog_failing")), 0)
	require.InDelta(t, 25, testutil.ToFloat64(gauge(t, reg, "surefoot_saga_overdue")), 0)
}

func TestMendedRowIsForgiven(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 1)
	b.refuse(1, 1)
	w := b.watchdog(func(o *watchdog.Options) { o.Backoff = time.Millisecond })
	require.Equal(t, 1, b.once(w).Failed)
	b.exec(`DROP TRIGGER refuse ON @.sagas`)
	testkit.Eventually(t, 5*time.Second, "the next try", func() bool { return b.once(w).Cancelled == 1 })
	require.Zero(t, b.count(`SELECT count(*) FROM @.watchdog_failures`))
}

// Without a record of such a row it would be claimed again at once, for ever.
func TestUndoneChangeIsAFailure(t *testing.T) {
	for name, body := range map[string]string{"kept": "NEW.status := OLD.status; RETURN NEW;", "swallowed": "RETURN NULL;"} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.stuck(1, 3)
			b.exec(`CREATE FUNCTION @.undo() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.id > 1 THEN ` + body + ` END IF; RETURN NEW; END $$;
				CREATE TRIGGER undo BEFORE UPDATE ON @.sagas FOR EACH ROW EXECUTE FUNCTION @.undo()`)
			require.Equal(t, watchdog.Result{Rule: "PAYMENT_TIMEOUT", Cancelled: 1, Failed: 2}, b.once(b.watchdog(func(o *watchdog.Options) { o.Batch = 1 })))
			require.Len(t, b.events(), 1)
			require.Equal(t, 2, b.count(`SELECT count(*) FROM @.watchdog_failures WHERE error LIKE 'the change was undone%'`))
		})
	}
}

// A key that no index can hold and no message can carry must not break the batch of its neighbours.
func TestHugeKeyFailsAlone(t *testing.T) {
	b := newBench(t)
	b.exec(`CREATE TABLE @.wide (id text NOT NULL, status text NOT NULL, since timestamptz NOT NULL)`)
	b.exec(`INSERT INTO @.wide VALUES ('ok', 'STUCK', now() - interval '1 h')`)
	b.exec(`INSERT INTO @.wide SELECT string_agg(md5(i::text), ''), 'STUCK', now() - interval '2 h' FROM generate_series(1, 1000) AS i`)
	w := b.watchdog(func(o *watchdog.Options) {
		o.Rules[0].Table, o.Rules[0].Stuck, o.Rules[0].Payload = b.Schema+".wide", []string{"STUCK"}, nil
		o.Rules[0].ReasonColumn, o.Rules[0].ChangedColumn = "", ""
	})
	require.Equal(t, watchdog.Result{Rule: "PAYMENT_TIMEOUT", Cancelled: 1, Failed: 1}, b.once(w))
	require.Equal(t, watchdog.Result{Rule: "PAYMENT_TIMEOUT"}, b.once(w))
}

// The event belongs to the change: when it cannot be written, the row stays as it was.
func TestRowWithoutItsEventIsNotChanged(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 2)
	b.exec(`ALTER TABLE @.outbox ADD CONSTRAINT not_saga_2 CHECK (key <> '2')`)
	require.Equal(t, watchdog.Result{Rule: "PAYMENT_TIMEOUT", Cancelled: 1, Failed: 1}, b.once(b.watchdog()))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM @.sagas WHERE id = 2 AND status = 'STOCK_RESERVED' AND reason IS NULL`))
	require.Len(t, b.events(), 1)
}

func TestEventIDIsTheSameForTheSameStay(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 1)
	w := b.watchdog()
	require.Equal(t, 1, b.once(w).Cancelled)
	b.exec(`UPDATE @.sagas SET status = 'STOCK_RESERVED'`) // as after a restore
	require.Equal(t, 1, b.once(w).Cancelled)
	b.exec(`UPDATE @.sagas SET status = 'STOCK_RESERVED', since = since + interval '1 s'`)
	require.Equal(t, 1, b.once(w).Cancelled)
	events := b.events()
	require.Len(t, events, 3)
	require.Equal(t, events[0].ID, events[1].ID)
	require.NotEqual(t, events[0].ID, events[2].ID, "stuck again later is another case")
}

func TestCycleDrainsAllBatchesAndRunStops(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 57)
	ready := make(chan error, 100)
	w := b.watchdog(func(o *watchdog.Options) {
		o.Batch, o.MaxBatches, o.Interval = 5, 2, time.Hour // only More brings the next cycle
		o.Ready = func(err error) { ready <- err }
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	testkit.Eventually(t, 10*time.Second, "all sagas to be cancelled", func() bool {
		return b.count(`SELECT count(*) FROM @.sagas WHERE status = 'CANCELLED'`) == 57
	})
	require.NoError(t, <-ready)
	cancel()
	require.NoError(t, <-ended)
}

// A transaction in flight at the stop is rolled back after DrainTimeout, whole.
func TestStopCutsOffAfterTheDrainTimeout(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 2)
	b.exec(`CREATE TABLE @.gate (id int); INSERT INTO @.gate VALUES (1);
		CREATE FUNCTION @.wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.id = 1 THEN PERFORM 1 FROM ` + b.Schema + `.gate FOR UPDATE; END IF; RETURN NEW; END $$;
		CREATE TRIGGER wait_at_gate BEFORE UPDATE ON @.sagas FOR EACH ROW EXECUTE FUNCTION @.wait_at_gate()`)
	release := b.hold(`UPDATE @.gate SET id = 2`)
	w := b.watchdog(func(o *watchdog.Options) { o.DrainTimeout, o.LockTimeout = 100*time.Millisecond, time.Minute })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	testkit.Eventually(t, 10*time.Second, "the change to wait at the gate", func() bool {
		return b.count(`SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN (
			SELECT pid FROM pg_stat_activity WHERE query LIKE '%'||$1||'%')`, b.Schema) > 0
	})
	cancel()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(5 * time.Second):
		t.Fatal("Run did not end after its drain timeout")
	}
	release()
	require.Equal(t, 2, b.count(`SELECT count(*) FROM @.sagas WHERE status = 'STOCK_RESERVED'`))
	require.Empty(t, b.events())
	require.Zero(t, b.count(`SELECT count(*) FROM @.watchdog_failures`), "an interruption is no failure of the row")
}

func TestRowWaitingForALockFailsAlone(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 3)
	b.exec(`CREATE TABLE @.account (id int PRIMARY KEY); INSERT INTO @.account VALUES (1);
		CREATE FUNCTION @.touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.id = 2 THEN PERFORM 1 FROM ` + b.Schema + `.account FOR UPDATE; END IF; RETURN NEW; END $$;
		CREATE TRIGGER touch BEFORE UPDATE ON @.sagas FOR EACH ROW EXECUTE FUNCTION @.touch()`)
	release := b.hold(`SELECT 1 FROM @.account FOR UPDATE`)
	w := b.watchdog(func(o *watchdog.Options) { o.LockTimeout = 50 * time.Millisecond })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // the pool's statement timeout is 30 s
	defer cancel()
	results, err := w.Once(ctx)
	require.NoError(t, err)
	require.Equal(t, []watchdog.Result{{Rule: "PAYMENT_TIMEOUT", Cancelled: 2, Failed: 1}}, results)
	release()
}

func TestStaleFailuresExpire(t *testing.T) {
	b := newBench(t)
	b.exec(`INSERT INTO @.watchdog_failures (rule, key_hash, since, key, tries, error, next_try) VALUES
		('gone', '\x01', now(), '1', 3, 'e', now() - interval '25 h'), ('gone', '\x02', now(), '2', 3, 'e', now() - interval '1 h')`)
	b.once(b.watchdog())
	require.Equal(t, 1, b.count(`SELECT count(*) FROM @.watchdog_failures`))
}

func TestListShowsOverdueRowsAndTheirFailures(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 3)
	b.refuse(2, 2)
	w := b.watchdog()
	list, err := w.List(t.Context(), watchdog.Filter{Limit: 2})
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, "3", list[0].Key, "oldest first")
	require.Greater(t, list[0].Over, 49*time.Minute)
	b.once(w)
	list, err = w.List(t.Context(), watchdog.Filter{Limit: 10})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "2", list[0].Key)
	require.Equal(t, 1, list[0].Tries)
	require.Contains(t, list[0].Error, "sealed")
	require.NotNil(t, list[0].NextTry)
}

// gauge gathers one metric by name.
func gauge(t *testing.T, reg *prometheus.Registry, name string) prometheus.Gauge {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	found := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: name})
	for _, family := range families {
		if family.GetName() == name {
			found.Set(family.GetMetric()[0].GetGauge().GetValue())
			return found
		}
	}
	t.Fatalf("there is no metric %s", name)
	return nil
}

// Before `migrate up`, and after that of a later version, no row is touched.
func TestASchemaOfAnotherVersionIsLeftAlone(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 3)
	w := b.watchdog()
	for sql, why := range map[string]string{
		`INSERT INTO @.schema_version (version_id, is_applied) VALUES (999, true)`: "use a newer surefoot",
		`DELETE FROM @.schema_version WHERE version_id > 5`:                        "run `surefoot migrate up`",
	} {
		b.exec(sql)
		_, err := w.Once(t.Context())
		require.ErrorContains(t, err, why)
		b.exec(`DELETE FROM @.schema_version WHERE version_id = 999`)
	}
	require.Equal(t, 3, b.count(`SELECT count(*) FROM @.sagas WHERE status = 'STOCK_RESERVED'`))
	require.Empty(t, b.events())
}
