package deadletter_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// live begins a run that moves next to nothing, and leaves it paused.
func (s *stage) live(most int) deadletter.Run {
	s.Helper()
	run := s.plan(func(r *deadletter.PlanRequest) { r.Max, r.Rate = most, 0.01 })
	ended := make(chan error, 1)
	go func() {
		_, err := s.letters.StartRun(context.WithoutCancel(s.Context()), deadletter.DriveRequest{Run: run.ID, Who: "ann"}, false)
		ended <- err
	}()
	testkit.Eventually(s, 10*time.Second, "the first message", func() bool { return s.count(work) == 1 })
	require.NoError(s, s.letters.PauseRun(s.Context(), run.ID, "ann", ""))
	require.NoError(s, <-ended)
	return run
}

func (s *stage) discard(change ...func(*deadletter.DiscardRequest)) (deadletter.Result, error) {
	s.Helper()
	r := deadletter.DiscardRequest{Common: deadletter.Common{Queue: work, Who: "bob", Reason: "test"}}
	for _, c := range change {
		c(&r)
	}
	return s.letters.Discard(s.Context(), r)
}

// Until a run has ended its messages are its own, also while it is paused or stopped: nobody else takes them, and is told whose they are.
func TestMessagesOfALiveRunAreLeftToIt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, ids := batch("m", 8, "order.paid")
	s.fill(dlq, letters...)
	run := s.live(5)
	for _, state := range []deadletter.RunState{deadletter.RunPaused, deadletter.RunStopped, deadletter.RunRunning} {
		_, err := s.db.Pool.Exec(t.Context(), `UPDATE `+s.db.Schema+`.dlq_runs SET state = $1`, state)
		require.NoError(t, err)
		dry, err := s.discard(func(r *deadletter.DiscardRequest) { r.DryRun = true })
		require.NoError(t, err)
		held := []deadletter.Holding{{Run: run.ID, State: state, Count: 4}}
		require.Equal(t, []any{3, 4, held}, []any{dry.Done, dry.Left.InRun, dry.HeldBy})
		require.Contains(t, dry.Problems[0].Reason, run.ID.String())
		require.Contains(t, held[0].Advice(), "dlq runs cancel "+run.ID.String())
		listed, err := s.letters.GetRun(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, 5, listed.Holds)
	}
	result, err := s.discard(func(r *deadletter.DiscardRequest) { r.Max = 2 })
	require.NoError(t, err)
	require.Equal(t, []int{2, 4}, []int{result.Done, result.HeldBy[0].Count})
	require.Equal(t, []string{ids[5], ids[6]}, s.recorded("discarded"))
	require.Equal(t, ids[1:5], s.recorded("held back: another run has it"))
	moved, err := s.redrive()
	require.NoError(t, err)
	require.Equal(t, []int{1, 4}, []int{moved.Done, moved.Left.InRun})
	_, err = s.letters.Edit(t.Context(), deadletter.EditRequest{Queue: work, ID: ids[1], Who: "bob", Reason: "r", Body: []byte("{}")})
	var held *deadletter.HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, run.ID, held.Holding.Run)
	planned := s.plan()
	require.Equal(t, []deadletter.Holding{{Run: run.ID, State: deadletter.RunRunning, Count: 4}}, s.result(planned).HeldBy)

	require.NoError(t, s.letters.CancelRun(t.Context(), run.ID, "ann", ""))
	listed, err := s.letters.GetRun(t.Context(), run.ID)
	require.NoError(t, err)
	require.Zero(t, listed.Holds)
	result, err = s.discard()
	require.NoError(t, err)
	require.Equal(t, 4, result.Done)
	require.Empty(t, result.HeldBy)
	require.Zero(t, s.count(dlq))
}

// A run that starts while a discard is asked about has what it chose: the discard stops before the first of these.
func TestADiscardStopsAtWhatARunHasGotMeanwhile(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, ids := batch("m", 6, "order.paid")
	s.fill(dlq, letters...)
	run := s.plan()
	ended := make(chan deadletter.Run, 1)
	result, err := s.discard(func(r *deadletter.DiscardRequest) {
		r.Confirm = func(ctx context.Context, plan deadletter.Result) error {
			ctx = context.WithoutCancel(ctx) // the run outlives the discard
			require.Equal(t, 6, plan.Done)
			go func() {
				got, _ := s.letters.StartRun(ctx, deadletter.DriveRequest{Run: run.ID, Who: "ann"}, false)
				ended <- got
			}()
			testkit.Eventually(t, 10*time.Second, "the run", func() bool {
				started, err := s.letters.GetRun(ctx, run.ID)
				return err == nil && started.State == deadletter.RunRunning
			})
			return nil
		}
	})
	var held *deadletter.HeldError
	require.ErrorAs(t, err, &held)
	require.Contains(t, err.Error(), run.ID.String())
	require.Zero(t, result.Done)
	got := <-ended
	require.Equal(t, []any{deadletter.RunDone, 6, 0}, []any{got.State, got.Moved, got.Missing})
	require.Equal(t, ids, s.ids(work))
	require.Empty(t, s.recorded("discarded"))
}
