package watchdog_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/watchdog"
)

func act(keys ...string) watchdog.Act {
	return watchdog.Act{Rule: "PAYMENT_TIMEOUT", Keys: keys, Who: "ann@test", Reason: "provider is down", Origin: "test"}
}

// states lists the sagas, by key.
func (b bench) states(w *watchdog.Watchdog, f watchdog.Filter) map[string]watchdog.State {
	b.t.Helper()
	f.Limit = 100
	list, err := w.List(b.t.Context(), f)
	require.NoError(b.t, err)
	states := map[string]watchdog.State{}
	for _, saga := range list {
		states[saga.Key] = saga.State
	}
	return states
}

func (b bench) audited(f audit.Filter) []audit.Item {
	b.t.Helper()
	f.Limit = 100
	items, err := audit.List(b.t.Context(), b.Pool, b.Schema, f)
	require.NoError(b.t, err)
	return items
}

func TestExtendedAndSkippedRowsAreLeftAlone(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 4)
	b.exec(`INSERT INTO @.sagas (id, status, since) VALUES (5, 'STOCK_RESERVED', now() - interval '9 min'), (6, 'STOCK_RESERVED', now())`)
	reg := prometheus.NewRegistry()
	w := b.watchdog(func(o *watchdog.Options) { o.Registerer = reg })
	dry := act("1")
	dry.DryRun = true
	would, err := w.Extend(t.Context(), dry, time.Hour)
	require.NoError(t, err)
	require.True(t, would[0].Done)
	require.Zero(t, would[0].Operation)
	require.Zero(t, b.count(`SELECT count(*) FROM @.watchdog_holds`))
	require.Empty(t, b.audited(audit.Filter{}))

	extended, err := w.Extend(t.Context(), act("1", "5"), time.Hour)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(time.Hour), *extended[0].Until, 10*time.Second, "from now, for it is overdue")
	require.WithinDuration(t, time.Now().Add(61*time.Minute), *extended[1].Until, 10*time.Second, "from its limit")
	again, err := w.Extend(t.Context(), act("1"), time.Hour)
	require.NoError(t, err)
	require.Equal(t, extended[0].Until.Add(time.Hour), *again[0].Until, "from the end of the first")
	skipped, err := w.Skip(t.Context(), act("2"))
	require.NoError(t, err)
	require.Equal(t, "skipped", skipped[0].Outcome)
	all := map[string]watchdog.State{"1": "held", "2": "held", "3": "overdue", "4": "overdue"}
	require.Equal(t, all, b.states(w, watchdog.Filter{}))
	all["5"] = "held"
	require.Equal(t, all, b.states(w, watchdog.Filter{Soon: 2 * time.Minute}))
	require.Equal(t, map[string]watchdog.State{"4": "overdue"}, b.states(w, watchdog.Filter{Keys: []string{"4", "5", "99"}}))
	held, err := w.List(t.Context(), watchdog.Filter{Rule: "PAYMENT_TIMEOUT", States: []watchdog.State{watchdog.StateHeld}, Limit: 10})
	require.NoError(t, err)
	require.Equal(t, []any{"ann@test", "provider is down"}, []any{held[0].Hold.Who, held[0].Hold.Reason})

	require.Equal(t, 2, b.once(w).Cancelled)
	require.Equal(t, 3, b.count(`SELECT count(*) FROM @.sagas WHERE id IN (1, 2, 5) AND status = 'STOCK_RESERVED' AND changed IS NULL`))
	require.Zero(t, testutil.ToFloat64(gauge(t, reg, "surefoot_saga_overdue")), "held rows are not overdue")
	require.InDelta(t, 3, testutil.ToFloat64(gauge(t, reg, "surefoot_watchdog_held")), 0)

	_, err = w.Lift(t.Context(), act("2"))
	require.NoError(t, err)
	b.exec(`UPDATE @.watchdog_holds SET until = now() - interval '1 s'`) // the time is over
	require.Equal(t, 2, b.once(w).Cancelled)
	require.Equal(t, map[string]watchdog.State{"5": "due-soon"}, b.states(w, watchdog.Filter{Soon: 2 * time.Minute}))

	first := b.audited(audit.Filter{Action: "watchdog extend"})
	require.Len(t, first, 5, "one entry per row and one at the end of each")
	require.Equal(t, []string{"PAYMENT_TIMEOUT", "provider is down", "test"}, []string{first[4].Target, first[4].Reason, first[4].Origin})
	require.Equal(t, extended[0].EventID, first[4].MessageID, "under the id that the event has in the end")
	require.Contains(t, idsOf(b.events()), extended[0].EventID)
}

func idsOf(events []event) []string {
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.ID
	}
	return ids
}

// A hold is of one stay: who changes the row makes it another case.
func TestAHoldIsOfOneStay(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 1)
	w := b.watchdog()
	_, err := w.Skip(t.Context(), act("1"))
	require.NoError(t, err)
	require.Zero(t, b.once(w).Cancelled)
	b.exec(`UPDATE @.sagas SET since = now() - interval '11 min'`)
	require.Equal(t, 1, b.once(w).Cancelled)
}

// A hold that commits between the watchdog's claim and its change wins.
func TestAHoldIsLookedAtAgainBeforeTheChange(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 2) // 2 is the older one, and dealt with first
	b.exec(`CREATE FUNCTION @.holds() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO ` + b.Schema + `.watchdog_holds (rule, key_hash, since, key, until, who, reason)
		SELECT 'PAYMENT_TIMEOUT', sha256('1'), since, '1', 'infinity', 'ann', 'why' FROM ` + b.Schema + `.sagas WHERE id = 1; RETURN NEW; END $$;
		CREATE TRIGGER holds BEFORE UPDATE ON @.sagas FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION @.holds()`)
	require.Equal(t, watchdog.Result{Rule: "PAYMENT_TIMEOUT", Cancelled: 1}, b.once(b.watchdog()))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM @.sagas WHERE id = 1 AND status = 'STOCK_RESERVED'`))
	require.Len(t, b.events(), 1)
}

func TestCancelDoesWhatTheWatchdogDoes(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 3)
	b.exec(`INSERT INTO @.sagas (id, status, since) VALUES (4, 'STOCK_RESERVED', now()), (5, 'PAID', now() - interval '1 h')`)
	b.refuse(2, 2)
	w := b.watchdog()
	_, err := w.Skip(t.Context(), act("1"))
	require.NoError(t, err)
	acted, err := w.Cancel(t.Context(), act("1", "2", "4", "5", "6", "x'; --"), false)
	require.NoError(t, err)
	require.Equal(t, []bool{true, false, false, false, false, false}, done(acted))
	for i, why := range []string{"changed to CANCELLED", "sealed", "within its limit until", `its status is "PAID"`, "no such row", "cannot be a key"} {
		require.Contains(t, acted[i].Outcome, why)
	}
	require.Equal(t, []string{acted[0].EventID}, idsOf(b.events()))
	early, err := w.Cancel(t.Context(), act("4"), true)
	require.NoError(t, err)
	require.True(t, early[0].Done, early[0].Outcome)
	events := b.events()
	require.Len(t, events, 2)
	var since, until time.Time
	require.NoError(t, json.Unmarshal(events[1].Payload["overdueSince"], &until))
	require.NoError(t, b.Pool.QueryRow(t.Context(), b.in(`SELECT since FROM @.sagas WHERE id = 4`)).Scan(&since))
	require.WithinDuration(t, since.Add(10*time.Minute), until, time.Millisecond)
	require.Zero(t, b.count(`SELECT count(*) FROM @.watchdog_holds`), "what is changed is held no more")

	b.exec(`DROP TRIGGER refuse ON @.sagas`)
	require.Equal(t, 2, b.once(w).Cancelled, "the others are the watchdog's, with the same ids")
	second, err := w.Cancel(t.Context(), act("1"), true)
	require.NoError(t, err)
	require.Equal(t, []bool{false}, done(second), "once")
	require.Len(t, b.events(), 4)
	require.Len(t, b.audited(audit.Filter{Operation: uuid.NullUUID{UUID: acted[0].Operation, Valid: true}}), 7, "what was refused, too")
}

func done(acted []watchdog.Acted) []bool {
	all := make([]bool, len(acted))
	for i, one := range acted {
		all[i] = one.Done
	}
	return all
}

// A row that somebody works on is not waited for longer than the limit, and what is decided is what is there then.
func TestAnActMeetsARowThatIsLocked(t *testing.T) {
	b := newBench(t)
	b.stuck(1, 1)
	w := b.watchdog(func(o *watchdog.Options) { o.LockTimeout = 50 * time.Millisecond })
	release := b.hold(`UPDATE @.sagas SET status = 'PAID' WHERE id = 1`)
	acted, err := w.Skip(t.Context(), act("1"))
	require.NoError(t, err)
	require.Contains(t, acted[0].Outcome, "locked the row")
	release()
	acted, err = w.Skip(t.Context(), act("1"))
	require.NoError(t, err)
	require.Contains(t, acted[0].Outcome, `its status is "PAID"`)
}

func TestActsAreAskedForProperly(t *testing.T) {
	b := newBench(t)
	w := b.watchdog()
	for name, change := range map[string]func(*watchdog.Act){
		"no reason":   func(a *watchdog.Act) { a.Reason = "  " },
		"two lines":   func(a *watchdog.Act) { a.Reason = "a\nb" },
		"nobody":      func(a *watchdog.Act) { a.Who = "" },
		"no row":      func(a *watchdog.Act) { a.Keys = nil },
		"no rule":     func(a *watchdog.Act) { a.Rule = "" },
		"a long line": func(a *watchdog.Act) { a.Keys = make([]string, watchdog.MaxKeys+1) },
	} {
		a := act("1")
		change(&a)
		_, err := w.Skip(t.Context(), a)
		require.ErrorIs(t, err, watchdog.ErrBadRequest, name)
	}
	other := act("1")
	other.Rule = "OTHER"
	_, err := w.Skip(t.Context(), other)
	require.ErrorContains(t, err, "there is no such rule")
	_, err = w.Extend(t.Context(), act("1"), 0)
	require.ErrorIs(t, err, watchdog.ErrBadRequest)
	b.exec(`CREATE TABLE @.shared (id int NOT NULL, status text NOT NULL, since timestamptz NOT NULL); INSERT INTO @.shared SELECT 1, 'STOCK_RESERVED', now() FROM generate_series(1, 2)`)
	shared := b.watchdog(func(o *watchdog.Options) {
		o.Rules[0] = watchdog.Rule{
			Name: "PAYMENT_TIMEOUT", Table: b.Schema + ".shared", Key: "id", Status: "status", Stuck: []string{"STOCK_RESERVED"}, Clock: "since",
			Limit: time.Minute, NewStatus: "CANCELLED", Reason: "R", EventType: "order.cancelled",
		}
	})
	acted, err := shared.Skip(t.Context(), act("1"))
	require.NoError(t, err)
	require.Contains(t, acted[0].Outcome, "share this key")
}

func TestHoldsExpire(t *testing.T) {
	b := newBench(t)
	b.exec(`INSERT INTO @.watchdog_holds (rule, key_hash, since, key, until, at, who, reason) VALUES
		('r', '\x01', now(), '1', now() - interval '25 h', now(), 'w', 'r'), ('r', '\x02', now(), '2', 'infinity', now() - interval '401 days', 'w', 'r'),
		('r', '\x03', now(), '3', 'infinity', now(), 'w', 'r')`)
	b.once(b.watchdog())
	require.Equal(t, 1, b.count(`SELECT count(*) FROM @.watchdog_holds WHERE key = '3'`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM @.watchdog_holds`))
}
