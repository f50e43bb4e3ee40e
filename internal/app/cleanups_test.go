package app

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCleanupsRunLastInFirstOut(t *testing.T) {
	t.Parallel()
	var c cleanups
	var order []string
	step := func(name string, err error) {
		c.add(name, func(context.Context) error { order = append(order, name); return err })
	}
	step("probes", errors.New("x"))
	step("tracing", nil)
	step("pool", errors.New("y"))
	require.EqualError(t, c.run(t.Context()), "close pool: y\nclose probes: x")
	require.Equal(t, []string{"pool", "tracing", "probes"}, order)
	require.NoError(t, c.run(t.Context()), "a step is taken twice")
}

func TestHangingCleanupLeavesTimeForOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c cleanups
		var left time.Duration
		hung := make(chan struct{})
		c.add("tracing", func(ctx context.Context) error {
			deadline, _ := ctx.Deadline()
			left = time.Until(deadline)
			return nil
		})
		c.add("pool", func(context.Context) error { <-hung; return nil })
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		require.ErrorContains(t, c.run(ctx), "close pool: context deadline exceeded")
		require.Equal(t, time.Second, left)
		close(hung)
	})
}
