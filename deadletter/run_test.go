package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// consume runs a real consumer of the work queue, whose handler fails for good where it says so.
func (s *stage) consume(handle func(id string) error) {
	s.Helper()
	c, err := consumer.New(consumer.Options{
		Queue: work, URL: s.broker.URL, Pool: s.db.Pool, Schema: s.db.Schema, Logger: testkit.Logger(s), Concurrency: 2, Version: "v2",
		Retry: []consumer.Tier{{Queue: work + ".retry", Delay: 300 * time.Millisecond}},
		Handler: func(_ context.Context, _ pgx.Tx, m message.Message) error {
			if err := handle(m.ID); err != nil {
				return resilience.Permanent(err)
			}
			return nil
		},
	})
	require.NoError(s, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	s.Cleanup(func() { cancel(); require.NoError(s, <-done) })
}

// inbox makes the queue's inbox known without a consumer, with what it remembers.
func (s *stage) inbox(processed ...string) {
	s.Helper()
	_, err := s.db.Pool.Exec(s.Context(), `INSERT INTO `+s.db.Schema+`.inbox_consumers (name, queue, retention) VALUES ($1, $1, '7 days')`, work)
	require.NoError(s, err)
	for _, id := range processed {
		_, err := s.db.Pool.Exec(s.Context(), `INSERT INTO `+s.db.Schema+`.inbox (consumer, message) SELECT id, `+s.db.Schema+`.inbox_key($1) FROM `+s.db.Schema+`.inbox_consumers`, id)
		require.NoError(s, err)
	}
}

func (s *stage) plan(change ...func(*deadletter.PlanRequest)) deadletter.Run {
	s.Helper()
	r := deadletter.PlanRequest{Common: deadletter.Common{Queue: work, Who: "ann@test"}, RunSettings: deadletter.RunSettings{MaxFailures: -1, Settle: 20 * time.Second}}
	for _, c := range change {
		c(&r)
	}
	run, err := s.letters.Plan(s.Context(), r)
	require.NoError(s, err)
	return run
}

func (s *stage) start(run deadletter.Run) (deadletter.Run, error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	return s.letters.StartRun(ctx, deadletter.DriveRequest{Run: run.ID, Who: "ann@test"}, false)
}

func (s *stage) result(run deadletter.Run) deadletter.Result {
	s.Helper()
	result, err := s.letters.RunResult(s.Context(), run)
	require.NoError(s, err)
	return result
}

// A plan tells safe from processed from forgotten, moves nothing, and its run moves exactly what it chose.
func TestAPlanIsExactlyWhatIsDone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.inbox("done", "old-done")
	old := func(id string) amqp.Publishing {
		m := letter(id, "order.paid", "transient", "x")
		m.Headers[message.HeaderLastFailedAt] = time.Now().Add(-8 * 24 * time.Hour).UTC().Format(time.RFC3339Nano)
		return m
	}
	again := letter("again", "order.paid", "transient", "x")
	again.Headers[message.HeaderRedriveCount] = int64(3)
	stray := letter("stray", "order.paid", "transient", "x")
	stray.Headers[message.HeaderOriginQueue] = "billing"
	s.fill(dlq, letter("a", "order.paid", "transient", "x"), letter("done", "order.paid", "transient", "x"), old("old"), old("old-done"),
		again, stray, letter("noise", "noise", "transient", "x"), letter("b", "order.paid", "permanent", "y"), letter("b", "order.paid", "permanent", "y"),
		amqp.Publishing{Type: "order.paid", Body: []byte("no id")})
	s.waitFor(dlq, 10)
	plan := s.plan(func(r *deadletter.PlanRequest) { r.Filter.Type = "order.paid" })
	require.Equal(t, deadletter.RunPlanned, plan.State)
	require.Equal(t, []int{10, 3, 5, 3}, []int{plan.Found, plan.Chosen, plan.Ineligible, plan.Pending})
	want := deadletter.Left{NotMatching: 1, Processed: 2, Expired: 1, Repeaters: 1, OtherOrigin: 1}
	result := s.result(plan)
	require.Equal(t, []any{4, want}, []any{result.Done, result.Left})
	require.Equal(t, 10, s.count(dlq))
	require.Empty(t, s.audit(), "a plan changes nothing")

	late := letter("late", "order.paid", "transient", "x") // matches, and was not chosen
	s.fill(dlq, late)
	s.waitFor(dlq, 11)
	run, err := s.start(plan)
	require.NoError(t, err)
	require.Equal(t, []any{deadletter.RunDone, 3, 0}, []any{run.State, run.Moved, run.Pending})
	result = s.result(run)
	require.Equal(t, []any{4, want}, []any{result.Done, result.Left})
	moved := s.take(work)
	require.Equal(t, []string{"a", "b", "b", ""}, idsOf(moved))
	require.Equal(t, run.ID.String(), moved[0].Headers[message.HeaderRedriveRun])
	require.Equal(t, []string{"done", "old", "old-done", "again", "stray", "noise", "late"}, s.ids(dlq))
	require.Equal(t, []string{"a", "b", "b", "(none)"}, s.recorded("redriven"))
	_, err = s.start(plan)
	require.ErrorIs(t, err, deadletter.ErrRunState, "once")

	s.fill(dlq, old("old"))
	plan = s.plan(func(r *deadletter.PlanRequest) { r.AllowReprocess = true })
	require.Equal(t, 1, plan.Chosen)
}

// What died again, or was taken, between the plan and its turn is not what was chosen.
func TestARunLeavesWhatHasChangedSinceThePlan(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, ids := batch("m", 10, "order.paid")
	s.fill(dlq, letters...)
	plan := s.plan()
	taken := s.take(dlq)
	again := message.Republishing(&taken[3])
	message.Failure{Class: "permanent", Message: "other", LastFailedAt: time.Now().Add(time.Second)}.Write(again.Headers, 1)
	letters[3] = again
	s.fill(dlq, letters[:8]...)
	s.waitFor(dlq, 8)
	run, err := s.start(plan)
	require.NoError(t, err)
	require.Equal(t, []any{deadletter.RunDone, 7, 2, 1}, []any{run.State, run.Moved, run.Missing, run.Left})
	require.Equal(t, 3, s.result(run).Left.Missing)
	require.Equal(t, append(slices.Clone(ids[:3]), ids[4:8]...), s.ids(work))
	require.Equal(t, ids[3:4], s.ids(dlq))
}

func TestOneLiveRunPerMessage(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, _ := batch("m", 20, "order.paid")
	s.fill(dlq, letters...)
	first := s.plan(func(r *deadletter.PlanRequest) { r.Max = 15; r.Rate = 4 })
	second := s.plan()
	require.Equal(t, []int{15, 20}, []int{first.Chosen, second.Chosen})
	ended := make(chan deadletter.Run, 1)
	go func() {
		run, _ := s.letters.StartRun(context.WithoutCancel(t.Context()), deadletter.DriveRequest{Run: first.ID, Who: "ann"}, false)
		ended <- run
	}()
	testkit.Eventually(t, 10*time.Second, "the first run", func() bool { return s.count(work) > 0 })
	require.NoError(t, s.letters.PauseRun(t.Context(), first.ID, "ann", "lunch"))
	paused := <-ended
	require.Equal(t, deadletter.RunPaused, paused.State)
	require.Contains(t, paused.Note, "lunch")
	require.Less(t, paused.Moved, 15)
	require.Equal(t, 5, s.plan().Chosen, "the rest belongs to the paused run")
	run, err := s.start(second)
	require.NoError(t, err)
	require.Equal(t, []int{5, 15}, []int{run.Moved, run.Ineligible})
	run, err = s.letters.StartRun(t.Context(), deadletter.DriveRequest{Run: first.ID, Who: "bob"}, true)
	require.NoError(t, err)
	require.Equal(t, []any{deadletter.RunDone, 15}, []any{run.State, run.Moved})
	all := s.ids(work)
	slices.Sort(all)
	require.Len(t, slices.Compact(all), 20)
	require.Len(t, all, 20, "none twice")
	require.ErrorIs(t, s.letters.CancelRun(t.Context(), first.ID, "ann", ""), deadletter.ErrRunState)
	require.ErrorIs(t, s.letters.PauseRun(t.Context(), uuid.New(), "ann", ""), deadletter.ErrNoRun)
}

// The canary's whole fate decides: a handler that is fixed, one that is fixed for some, and one that is not.
func TestTheCanaryDecides(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		broken func(id string) bool
		state  deadletter.RunState
		most   int
	}{
		"fixed":      {func(string) bool { return false }, deadletter.RunDone, 60},
		"not fixed":  {func(string) bool { return true }, deadletter.RunStopped, 1},
		"half fixed": {func(id string) bool { return id > "m00003" }, deadletter.RunStopped, 16},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			letters, ids := batch("m", 60, "order.paid")
			for i := range letters { // what the handler says below has the same cause
				letters[i].Headers[message.HeaderFingerprint] = message.Fingerprint("permanent", "deadletter_test.textError", "provider said 503")
			}
			s.fill(dlq, letters...)
			s.consume(func(id string) error {
				if c.broken(id) {
					return textError("provider said 503")
				}
				return nil
			})
			testkit.Eventually(t, 10*time.Second, "the consumer's inbox", func() bool {
				var n int
				require.NoError(t, s.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+s.db.Schema+`.inbox_consumers`).Scan(&n))
				return n == 1
			})
			run, err := s.start(s.plan(func(r *deadletter.PlanRequest) { r.Ramp, r.MaxFailures = []int{1, 5, 10}, 2 }))
			require.NoError(t, err)
			require.Equal(t, c.state, run.State, run.Note)
			require.LessOrEqual(t, run.Moved, c.most)
			if c.state == deadletter.RunStopped {
				require.Contains(t, run.Note, "failure")
				require.Equal(t, []any{run.Failed, run.Failed > 0}, []any{run.FailedSame, true})
				s.waitFor(dlq, 60-run.Processed)
				return
			}
			testkit.Eventually(t, 20*time.Second, "all processed", func() bool {
				run, err = s.letters.GetRun(t.Context(), run.ID)
				require.NoError(t, err)
				return run.Processed == len(ids)
			})
			require.Equal(t, 4, run.Wave)
		})
	}
}

type textError string

// Error implements error.
func (e textError) Error() string { return string(e) }

// Without a consumer a canary is not processed: the run pauses, and says so. Without an inbox there is no ramp at all.
func TestACanaryThatIsNotProcessedPausesTheRun(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, _ := batch("m", 10, "order.paid")
	s.fill(dlq, letters...)
	ramp := deadletter.PlanRequest{Common: deadletter.Common{Queue: work, Who: "ann"}, RunSettings: deadletter.RunSettings{Ramp: []int{2}, Settle: time.Second}}
	_, err := s.letters.Plan(t.Context(), ramp)
	require.ErrorIs(t, err, deadletter.ErrBadRequest)
	s.inbox()
	run, err := s.letters.Plan(t.Context(), ramp)
	require.NoError(t, err)
	run, err = s.start(run)
	require.NoError(t, err)
	require.Equal(t, []any{deadletter.RunPaused, 2, 8}, []any{run.State, run.Moved, run.Pending})
	require.Contains(t, run.Note, "is a consumer running?")
	require.NoError(t, s.letters.CancelRun(t.Context(), run.ID, "ann", "test"))
	require.Equal(t, 8, s.count(dlq))
}

// What follows a message that is dead again, and has its key, would overtake it.
func TestARunKeepsTheOrderOfKeys(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var letters []amqp.Publishing
	for i := range 6 {
		m := letter(fmt.Sprintf("m%d", i), "order.paid", "transient", "x")
		m.Headers[message.HeaderKey] = []string{"even", "odd"}[i%2]
		letters = append(letters, m)
	}
	s.fill(dlq, letters...)
	s.consume(func(id string) error {
		if id == "m1" {
			return textError("not yet")
		}
		return nil
	})
	testkit.Eventually(t, 10*time.Second, "the consumer's inbox", func() bool {
		var n int
		require.NoError(t, s.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+s.db.Schema+`.inbox_consumers`).Scan(&n))
		return n == 1
	})
	run, err := s.start(s.plan(func(r *deadletter.PlanRequest) { r.Ramp = []int{1, 1} }))
	require.NoError(t, err)
	require.Equal(t, []any{deadletter.RunDone, 4, 2}, []any{run.State, run.Moved, run.Left}, run.Note)
	s.waitFor(dlq, 3)
	dead := s.ids(dlq)
	slices.Sort(dead)
	require.Equal(t, []string{"m1", "m3", "m5"}, dead)
}

// A run whose process is killed at any step is driven on by whoever comes, and moves exactly what was chosen.
func TestARunSurvivesAKillAtEveryStep(t *testing.T) {
	t.Parallel()
	for _, point := range fault.Points() {
		if !strings.HasPrefix(point, "redrive.") || point == "redrive.after-start" || point == "redrive.after-publish" { // as the ones beside them
			continue
		}
		t.Run(point, func(t *testing.T) {
			s := newStage(t)
			letters, ids := batch("m", 120, "order.paid")
			var kept []string
			for i := range letters {
				letters[i].Headers[message.HeaderKey] = fmt.Sprintf("key-%d", i%7)
				if i%10 == 0 {
					letters[i].Type = "noise"
					kept = append(kept, ids[i])
				}
			}
			s.fill(dlq, letters...)
			at := "@30"
			for _, once := range []string{"start", "wave", "record", "close"} {
				if strings.HasSuffix(point, once) {
					at = ""
				}
			}
			out, err := s.child("run", point+":kill"+at)
			exit, ok := errors.AsType[*exec.ExitError](err)
			require.True(t, ok && exit.ExitCode() == -1, "the fault did not act: %s", out)
			s.settledDepth(len(ids))
			_, err = s.db.Pool.Exec(t.Context(), `UPDATE `+s.db.Schema+`.dlq_lock SET expires_at = now(); UPDATE `+s.db.Schema+`.dlq_runs SET lease_until = now()`)
			require.NoError(t, err)
			runs, err := s.letters.Runs(t.Context(), work, false, 10)
			require.NoError(t, err)
			require.Equal(t, deadletter.RunRunning, runs[0].State)
			run, err := s.letters.DriveRun(t.Context(), deadletter.DriveRequest{Run: runs[0].ID, Who: "next"})
			require.NoError(t, err)
			require.Equal(t, []any{deadletter.RunDone, 108, 0, 0}, []any{run.State, run.Moved, run.Missing, run.Left})
			// A killed look can leave the queue in another order; nothing else is there.
			require.ElementsMatch(t, kept, s.ids(dlq))
			taken := s.take(work)
			moved := idsOf(taken)
			require.LessOrEqual(t, len(moved)-108, 2*crashWindow, "duplicates")
			last, seen := map[string]string{}, map[string]bool{}
			for _, d := range taken {
				key := message.Text(d.Headers, message.HeaderKey)
				require.True(t, seen[d.MessageId] || last[key] < d.MessageId, "the order of %s", key)
				seen[d.MessageId] = true
				last[key] = max(last[key], d.MessageId)
			}
			slices.Sort(moved)
			require.Equal(t, without(ids, kept), slices.Compact(moved))
		})
	}
}

// The keeper of any replica goes on with what nobody drives.
func TestTheKeeperGoesOnWithARunWhoseDriverIsGone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, ids := batch("m", 50, "order.paid")
	s.fill(dlq, letters...)
	plan := s.plan(func(r *deadletter.PlanRequest) { r.Rate = 10 })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.letters.StartRun(ctx, deadletter.DriveRequest{Run: plan.ID, Who: "ann"}, false)
		ended <- err
	}()
	testkit.Eventually(t, 10*time.Second, "the run", func() bool { return s.count(work) > 2 })
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	_, err := s.db.Pool.Exec(t.Context(), `UPDATE `+s.db.Schema+`.dlq_runs SET rate = 0`)
	require.NoError(t, err)
	keeper, err := deadletter.NewKeeper(deadletter.KeeperOptions{DeadLetters: s.letters, Who: "keeper@test", Interval: 50 * time.Millisecond})
	require.NoError(t, err)
	ctx, cancel = context.WithCancel(t.Context())
	var stopped atomic.Bool
	go func() { _ = keeper.Run(ctx); stopped.Store(true) }()
	testkit.Eventually(t, 20*time.Second, "the end of the run", func() bool {
		run, err := s.letters.GetRun(t.Context(), plan.ID)
		require.NoError(t, err)
		return run.State == deadletter.RunDone
	})
	cancel()
	testkit.Eventually(t, 10*time.Second, "the keeper's end", stopped.Load)
	require.Equal(t, ids, s.ids(work), "none twice: the first driver had time to finish what was on its way")
}

// A run is driven by one. Whoever finds its lease with somebody else stops, and writes nothing more to the run.
func TestARunIsDrivenByOne(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, _ := batch("m", 40, "order.paid")
	s.fill(dlq, letters...)
	plan := s.plan(func(r *deadletter.PlanRequest) { r.Rate = 5 })
	ended := make(chan error, 1)
	go func() {
		_, err := s.letters.StartRun(context.WithoutCancel(t.Context()), deadletter.DriveRequest{Run: plan.ID, Who: "ann"}, false)
		ended <- err
	}()
	testkit.Eventually(t, 10*time.Second, "the first message", func() bool { return s.count(work) > 0 })
	_, err := s.letters.DriveRun(t.Context(), deadletter.DriveRequest{Run: plan.ID, Who: "bob"})
	require.ErrorIs(t, err, deadletter.ErrRunOwned)
	require.ErrorContains(t, err, "if that process has died, its lease ends at ")
	require.ErrorContains(t, err, "ann")
	_, err = s.db.Pool.Exec(t.Context(), `UPDATE `+s.db.Schema+`.dlq_runs SET token = gen_random_uuid(), owner = 'carol'`) // as if ann had been frozen
	require.NoError(t, err)
	require.ErrorContains(t, <-ended, "the lease of the run was lost")
	run, err := s.letters.GetRun(t.Context(), plan.ID)
	require.NoError(t, err)
	require.Equal(t, []any{deadletter.RunRunning, "carol"}, []any{run.State, run.Owner})
	require.Less(t, run.Moved, 40)
}

// A killed look can leave the queue in another order than that of the plan, which is what counts for a key.
func TestARunMovesAKeyInThePlansOrder(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, ids := batch("m", 12, "order.paid")
	for i := range letters {
		letters[i].Headers[message.HeaderKey] = []string{"even", "odd"}[i%2]
	}
	s.fill(dlq, letters...)
	plan := s.plan()
	s.take(dlq)
	slices.Reverse(letters)
	s.fill(dlq, letters...)
	run, err := s.start(plan)
	require.NoError(t, err)
	require.Equal(t, []any{deadletter.RunDone, 12}, []any{run.State, run.Moved}, run.Note)
	byKey := map[string][]string{}
	for _, d := range s.take(work) {
		key := message.Text(d.Headers, message.HeaderKey)
		byKey[key] = append(byKey[key], d.MessageId)
	}
	for i, key := range []string{"even", "odd"} {
		require.Equal(t, []string{ids[i], ids[i+2], ids[i+4], ids[i+6], ids[i+8], ids[i+10]}, byKey[key])
	}
}

// What was chosen is fixed before anything moves: of a plan whose process died over it that is not known.
func TestAPlanThatIsNotWholeIsNotCarriedOut(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, _ := batch("m", 5, "order.paid")
	s.fill(dlq, letters...)
	plan := s.plan()
	_, err := s.db.Pool.Exec(t.Context(), `UPDATE `+s.db.Schema+`.dlq_runs SET found = 0; DELETE FROM `+s.db.Schema+`.dlq_run_letters WHERE seq > 3`)
	require.NoError(t, err)
	_, err = s.start(plan)
	require.ErrorIs(t, err, deadletter.ErrRunState)
	require.ErrorContains(t, err, "make another")
	require.Equal(t, 5, s.count(dlq))
}

// What a process that died has moved, and recorded, is let go by the next one and not moved again. Where it cannot be told from a copy, or
// from another letter of its id, it is moved again: the inbox makes that one effect.
func TestWhatWasRecordedAsMovedIsNotMovedAgain(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, ids := batch("m", 10, "order.paid")
	bare := amqp.Publishing{MessageId: "z-no-time", Type: "order.paid", Body: []byte("{}"), DeliveryMode: amqp.Persistent}
	letters = append(letters, letter("twice", "order.paid", "x", "x"), letter("twice", "order.paid", "x", "x"), bare)
	s.fill(dlq, letters...)
	plan := s.plan()
	run, err := s.start(plan)
	require.NoError(t, err)
	require.Equal(t, []any{deadletter.RunDone, 12}, []any{run.State, run.Moved})
	require.Len(t, s.take(work), 13)
	s.fill(dlq, letters...) // as if the broker had not heard the acknowledgements
	_, err = s.db.Pool.Exec(t.Context(), `UPDATE `+s.db.Schema+`.dlq_runs SET state = 'running', ended_at = NULL`)
	require.NoError(t, err)
	run, err = s.letters.DriveRun(t.Context(), deadletter.DriveRequest{Run: run.ID, Who: "next"})
	require.NoError(t, err)
	require.Equal(t, []any{deadletter.RunDone, 12}, []any{run.State, run.Moved})
	require.Zero(t, s.count(dlq))
	require.Equal(t, []string{"twice", "twice", "z-no-time"}, s.ids(work))
	require.Equal(t, ids, s.recorded("let go: redriven before its process died"))
}
