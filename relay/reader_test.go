package relay

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// TestAWakeServesWhoAsksLater has a shard that has not asked yet when the reader is woken.
func TestAWakeServesWhoAsksLater(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	r := newReader(Options{Pool: db.Pool, Schema: db.Schema, PollMin: time.Hour, PollMax: time.Hour}, nil)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.run(ctx) })
	defer running.Wait()
	defer stop()
	replies := map[int16]chan answer{0: make(chan answer, 1), 1: make(chan answer, 1)}
	ask := func(shard int16, urgent bool) {
		r.asks <- ask{shard: shard, snapshot: "1:1:", n: 100, bytes: 1 << 20, urgent: urgent, reply: replies[shard]}
	}
	answered := func(shard int16) {
		select {
		case a := <-replies[shard]:
			require.NoError(t, a.err)
		case <-time.After(30 * time.Second):
			require.FailNow(t, "not read", "shard %d", shard)
		}
	}
	ask(0, true)
	answered(0)
	ask(1, true)
	answered(1)
	ask(0, false)
	r.Wake()
	answered(0)
	ask(1, false)
	answered(1)
}

func TestADoorbellThatAnotherRelaySilencedStaysSo(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	d := newDoorbell(Options{Pool: db.Pool, Schema: db.Schema, ListenURL: db.Direct}, func() {})
	d.hearing.Store(true)
	require.True(t, d.arm(t.Context()))
	d.seen(true)
	require.True(t, d.armed)
	d.seen(false)
	require.False(t, d.arm(t.Context()))
	d.muteUntil = time.Time{}
	require.True(t, d.arm(t.Context()))
}

// TestTheDoorbellRestsWhenProducersQueueForIt has a commit that takes as long as the test wants, because no standby confirms it.
func TestTheDoorbellRestsWhenProducersQueueForIt(t *testing.T) {
	t.Parallel()
	db := testkit.PrivatePostgres(t).Database(t)
	d := newDoorbell(Options{Pool: db.Pool, Schema: db.Schema, ListenURL: db.Direct, Logger: zerolog.Nop()}, func() {})
	d.hearing.Store(true)
	require.True(t, d.arm(t.Context()))
	d.watch(t.Context())
	require.True(t, d.armed)
	require.True(t, d.free())

	standby := func(name string) {
		for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = '" + name + "'", "SELECT pg_reload_conf()"} {
			_, err := db.Pool.Exec(t.Context(), sql)
			require.NoError(t, err)
		}
	}
	standby("nobody")
	var producers sync.WaitGroup
	defer producers.Wait()
	defer standby("")
	for range 8 {
		conn, err := pgx.ConnectConfig(t.Context(), db.Pool.Config().ConnConfig)
		require.NoError(t, err)
		producers.Go(func() {
			defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
			_, _ = conn.Exec(t.Context(), "BEGIN; SELECT pg_logical_emit_message(true, 'a', 'b'); NOTIFY somebody; COMMIT", pgx.QueryExecModeSimpleProtocol)
		})
	}
	testkit.Eventually(t, 30*time.Second, "the doorbell to rest", func() bool {
		d.checkAt = time.Time{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // what it writes waits for the standby, too
		defer cancel()
		d.watch(ctx)
		return !d.free()
	})
	standby("")
	d.watch(t.Context())
	d.silence(t.Context())
	require.False(t, d.armed)
}
