package pause_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pause"
)

func TestFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.True(t, pause.For(t.Context(), time.Minute))
		require.Equal(t, time.Minute, time.Since(began))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.False(t, pause.For(ctx, time.Minute))
		require.Equal(t, time.Minute+time.Second, time.Since(began))
		require.False(t, pause.For(ctx, 0), "a dead context never reads as alive")
	})
}

func TestJitter(t *testing.T) {
	t.Parallel()
	require.Zero(t, pause.Jitter(0))
	for range 1000 {
		d := pause.Jitter(time.Second)
		require.GreaterOrEqual(t, d, time.Second/2)
		require.LessOrEqual(t, d, 3*time.Second/2)
	}
}
