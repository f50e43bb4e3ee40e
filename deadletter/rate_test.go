package deadletter_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
)

// The runbook's flags on a deep queue: when the last letter is moved the run ends, and so does an interrupted one.
func TestAFewLettersOfADeepQueueEndAtOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, _ := batch("m", 1500, "order.paid")
	s.fill(dlq, letters...)
	began := time.Now()
	result, err := s.letters.Redrive(t.Context(), deadletter.RedriveRequest{Common: deadletter.Common{Queue: work, Who: "ann", Max: 5, Rate: 10}})
	require.NoError(t, err)
	require.Equal(t, 5, result.Done)
	require.Less(t, time.Since(began), 5*time.Second)
	s.waitFor(dlq, 1495)

	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var interrupted time.Time
	request := deadletter.RedriveRequest{Common: deadletter.Common{Queue: work, Who: "ann", Rate: 10}}
	request.Progress = func(p deadletter.Progress) {
		if p.Done >= 2 && interrupted.IsZero() {
			interrupted = time.Now()
			interrupt()
		}
	}
	result, err = s.letters.Redrive(ctx, request)
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, time.Since(interrupted), 5*time.Second)
	s.waitFor(dlq, 1495-result.Done)
}

func TestARateIsANumberWithinItsBounds(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, rate := range []float64{math.NaN(), math.Inf(1), -1, 1e-9, 1e7} {
		common := deadletter.Common{Queue: work, Who: "ann", Rate: rate}
		_, err := s.letters.Redrive(t.Context(), deadletter.RedriveRequest{Common: common})
		require.ErrorIs(t, err, deadletter.ErrBadRequest, rate)
		_, err = s.letters.Plan(t.Context(), deadletter.PlanRequest{Common: common})
		require.ErrorIs(t, err, deadletter.ErrBadRequest, rate)
	}
}
