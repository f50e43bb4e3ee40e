package relay_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
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
	const rows = 150
	for n := 1; n <= rows; n++ {
		m := msg("", n)
		if n%2 == 0 {
			m = msg(fmt.Sprint("k", n%20), n)
		}
		m.ID, m.Type = fmt.Sprint("id-", n), "stray.created"
		w.enqueue(m)
	}
	o := w.options()
	o.Window, o.ProbeMax = 16, o.ProbeMin
	w.start(o)
	w.wait("the route to be stopped", func() bool { return w.count("outbox_stopped") > 0 })
	_, err := w.db.Pool.Exec(t.Context(), `INSERT INTO `+w.db.Schema+`.outbox_requests (operation, shard, row_id, message_id, action, who, reason)
		SELECT $1, shard, id, message_id, 'discard', 'ann@host', 'test' FROM `+w.db.Schema+`.outbox WHERE id % 3 <> 0`, uuid.New())
	require.NoError(t, err)
	ch := w.channel()
	w.bind(ch, "stray", "stray.nothing")
	open := false
	testkit.Eventually(t, 2*patience, "every request to be answered", func() bool {
		if open = !open; open {
			require.NoError(t, ch.QueueBind("stray", "stray.#", exchange, false, nil))
		} else {
			require.NoError(t, ch.QueueUnbind("stray", "stray.#", exchange, nil))
		}
		var pending int
		require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+w.db.Schema+`.outbox_requests WHERE state = 'pending'`).Scan(&pending))
		return pending == 0
	})
	require.NoError(t, ch.QueueBind("stray", "stray.#", exchange, false, nil))
	w.wait("the rest to be published", func() bool { return w.count("outbox") == 0 })
	var discarded []string
	require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT coalesce(array_agg(message_id), '{}') FROM `+w.db.Schema+`.outbox_requests WHERE state = 'done'`).Scan(&discarded))
	w.wait("the rest to arrive", func() bool { return len(w.ids())+len(discarded) >= rows })
	t.Logf("%d discarded, %d delivered", len(discarded), len(w.ids()))
	require.NotEmpty(t, discarded)
	require.Len(t, append(w.ids(), discarded...), rows)
	for _, id := range w.ids() {
		require.NotContains(t, discarded, id)
	}
	w.inOrder()
	w.wait("what was parked while the route came and went to be settled", func() bool { return w.count("outbox_parked") == 0 })
	var audits int
	require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+w.db.Schema+`.audit WHERE outcome LIKE 'done:%'`).Scan(&audits))
	require.Len(t, discarded, audits)
}
