package relay_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// The answer to the first parking is lost: the row is parked once, its key stays blocked, and it is tried again.
func TestParkingWhoseAnswerIsLost(t *testing.T) { //nolint:paralleltest // the fault is the process's
	w := newWorld(t)
	w.topology()
	require.NoError(t, fault.Arm("relay.after-park:error"))
	w.poison("k", "poison")
	w.enqueue(msg("k", 2), msg("k", 3))
	w.start(w.options())
	w.wait("the bad row to be dead", func() bool { return w.dead() == 1 })
	require.Empty(t, w.ids())
	require.Equal(t, 2, w.count("outbox"))
}

// The answer to a discard, and to a retry, is lost: the owner finds out, and the key goes on.
func TestRequestWhoseAnswerIsLost(t *testing.T) { //nolint:paralleltest // the fault is the process's
	for _, action := range []string{"discard", "retry"} {
		w := newWorld(t)
		w.topology()
		require.NoError(t, fault.Arm("relay.after-request:error"))
		w.poison("k", "poison")
		w.enqueue(msg("k", 2), msg("k", 3))
		w.start(w.options())
		w.wait("the bad row to be dead", func() bool { return w.dead() == 1 })
		if action == "retry" {
			_, err := w.db.Pool.Exec(t.Context(), `UPDATE `+w.db.Schema+`.outbox_parked SET headers = NULL, payload = '1'`)
			require.NoError(t, err)
		}
		require.Equal(t, "done", w.request(action, "poison"))
		w.wait("all rows to be gone", func() bool { return w.count("outbox")+w.count("outbox_parked") == 0 })
	}
}

// A shard is handed over while the broker closes its channels: it gives its fence back all the same.
func TestAShardWithoutAChannelGivesItsFenceBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	o := w.options()
	o.Connections = 1 // which other shards keep up
	feeding, stop := context.WithCancel(t.Context())
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		for n := 1; feeding.Err() == nil; n++ {
			bad := msg("", n)
			bad.Exchange = "missing-" + bad.ID
			w.enqueue(bad) //nolint:contextcheck // the test's own
		}
	}()
	t.Cleanup(func() { stop(); <-fed })
	w.start(o)
	w.wait("rows that close channels", func() bool { return w.count("outbox") > 50 })
	p, ready := w.options(), atomic.Bool{}
	p.Ready = func(err error) { ready.Store(err == nil) }
	w.start(p)
	w.wait("half of the shards to be handed over", func() bool {
		owners := w.owners()
		for _, shards := range owners {
			if shards != 4 {
				return false
			}
		}
		return len(owners) == 2
	})
	stop()
	<-fed
	_, err := w.db.Pool.Exec(t.Context(), `DELETE FROM `+w.db.Schema+`.outbox`)
	require.NoError(t, err)
	testkit.Eventually(t, patience, "the new owner to have its fences", ready.Load)
}
