package relay_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

func TestStoppedRoutesAreToldOf(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	for n := range 40 { // of every shard
		stray := msg(fmt.Sprint("k", n), 1)
		stray.Type = "stray.created"
		nowhere := msg(fmt.Sprint("n", n), 1)
		nowhere.Exchange = "nowhere"
		w.enqueue(stray, nowhere)
	}
	o := w.options()
	registry := prometheus.NewRegistry()
	o.Registerer = registry
	stop := w.start(o)
	routes := func() (names []string) {
		rows, err := w.db.Pool.Query(t.Context(), `SELECT DISTINCT concat_ws('|', exchange, routing_key, whole_exchange, is_default) FROM `+w.db.Schema+`.outbox_stopped`)
		require.NoError(t, err)
		defer rows.Close()
		for rows.Next() {
			var name string
			require.NoError(t, rows.Scan(&name))
			names = append(names, name)
		}
		slices.Sort(names)
		return names
	}
	both := []string{exchange + "|stray.created|f|t", "nowhere||t|f"}
	slices.Sort(both)
	w.wait("both to be told of", func() bool {
		return slices.Equal(both, routes()) && metric(t, registry, "surefoot_relay_stopped_routes", "") == 2 &&
			w.count("outbox_stopped") > 8 // of several shards, and yet counted once
	})
	stop()
	require.Zero(t, metric(t, registry, "surefoot_relay_stopped_routes", ""))
	require.Equal(t, both, routes(), "the last word stays")

	w.start(w.options())
	w.bind(w.channel(), "stray", "stray.#")
	w.wait("the one that works again to be forgotten", func() bool { return slices.Equal([]string{"nowhere||t|f"}, routes()) })
}

// Rows are discarded while their route opens and closes: each is delivered or discarded, never both and never neither.
func TestADiscardNeverRacesAPublish(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	const rows = 1000
	var msgs []message.Message
	for n := 1; n <= rows; n++ {
		m := msg("", n)
		if n%2 == 0 {
			m = msg(fmt.Sprint("k", n%20), n)
		}
		m.ID, m.Type = fmt.Sprint("id-", n), "stray.created"
		msgs = append(msgs, m)
	}
	w.enqueue(msgs...)
	o := w.options()
	o.Window, o.ProbeMax = 16, o.ProbeMin
	o.Attempts = 1000 // a row that is returned while others of its route pass is taken for a bad one, and this route comes and goes
	w.start(o)
	w.wait("the route to be stopped", func() bool { return w.count("outbox_stopped") > 0 })
	const parts = 30
	discard := func(part int) {
		_, err := w.db.Pool.Exec(t.Context(), `INSERT INTO `+w.db.Schema+`.outbox_requests (operation, shard, row_id, message_id, action, who, reason)
			SELECT $1, shard, id, message_id, 'discard', 'ann@host', 'test' FROM `+w.db.Schema+`.outbox WHERE id % 3 <> 0 AND id % $2::int = $3`, uuid.New(), parts, part)
		require.NoError(t, err)
	}
	discard(1)
	w.wait("the first to be discarded", func() bool { return w.count("outbox_requests WHERE state = 'done'") > 0 }) // the route may win all that follow
	ch := w.channel()
	w.bind(ch, "stray", "stray.nothing")
	open, part := false, 1
	testkit.Eventually(t, 2*patience, "every request to be answered", func() bool {
		if part++; part <= parts {
			discard(part % parts)
		}
		if open = !open; open {
			require.NoError(t, ch.QueueBind("stray", "stray.#", exchange, false, nil))
		} else {
			require.NoError(t, ch.QueueUnbind("stray", "stray.#", exchange, nil))
		}
		var pending int
		require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+w.db.Schema+`.outbox_requests WHERE state = 'pending'`).Scan(&pending))
		return part > parts && pending == 0
	})
	require.NoError(t, ch.QueueBind("stray", "stray.#", exchange, false, nil))
	w.wait("the rest to be published", func() bool { return w.count("outbox") == 0 })
	var discarded []string
	require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT coalesce(array_agg(message_id), '{}') FROM `+w.db.Schema+`.outbox_requests WHERE state = 'done'`).Scan(&discarded))
	testkit.EventuallyNil(t, 4*patience, "the rest to arrive", func() error { // what was parked while the route came and went has its time too
		if seen, parked := len(w.ids()), w.count("outbox_parked"); seen+len(discarded) < rows || parked > 0 {
			return fmt.Errorf("%d discarded, %d delivered, %d parked of %d", len(discarded), seen, parked, rows)
		}
		return nil
	})
	t.Logf("%d discarded, %d delivered", len(discarded), len(w.ids()))
	require.NotEmpty(t, discarded)
	require.Len(t, append(w.ids(), discarded...), rows)
	for _, id := range w.ids() {
		require.NotContains(t, discarded, id)
	}
	w.inOrder()
	var audits int
	require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+w.db.Schema+`.audit WHERE outcome LIKE 'done:%'`).Scan(&audits))
	require.Len(t, discarded, audits)
}
