package deadletter_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// The keeper shows what redrives do, also those of a command, which nobody scrapes.
func TestTheKeeperShowsRedrives(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, _ := batch("m", 7, "order.paid")
	s.fill(dlq, letters...)
	run, err := s.start(s.plan())
	require.NoError(t, err)
	require.Equal(t, 7, run.Moved)
	registry := prometheus.NewRegistry()
	keeper, err := deadletter.NewKeeper(deadletter.KeeperOptions{
		DeadLetters: s.letters, Who: "keeper@test", Interval: 50 * time.Millisecond, Registerer: registry,
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- keeper.Run(ctx) }()
	testkit.Eventually(t, 10*time.Second, "the letters of the run", func() bool {
		families, err := registry.Gather()
		require.NoError(t, err)
		var shown float64
		for _, family := range families {
			if family.GetName() == "surefoot_dlq_redrive_letters" {
				for _, m := range family.GetMetric() {
					shown += m.GetGauge().GetValue()
				}
			}
		}
		return shown == 7
	})
	cancel()
	require.NoError(t, <-done)
}
