package deadletter_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

// deliveries are those that the broker has made from a queue, by its statistics.
func (s *stage) deliveries(queue string) int {
	s.Helper()
	var q struct {
		Stats struct {
			Deliver int `json:"deliver"`
		} `json:"message_stats"`
	}
	s.broker.API(s, "GET", "/api/queues/"+s.broker.Vhost+"/"+queue, nil, &q)
	return q.Stats.Deliver
}

// To give back what follows a wave, and receive it anew, costs more than to move the wave.
func TestWavesFollowWithoutGivingBackTheRest(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.letters.SetRestWave(10)
	letters, ids := batch("m", 95, "order.paid")
	s.fill(dlq, letters...)
	run, err := s.start(s.plan())
	require.NoError(t, err)
	require.Equal(t, []any{deadletter.RunDone, 95, 10}, []any{run.State, run.Moved, run.Wave})
	require.Equal(t, ids, s.ids(work))
	var made int
	testkit.Eventually(t, 20*time.Second, "the broker's statistics", func() bool { made = s.deliveries(dlq); return made >= 190 })
	require.Equal(t, 190, made, "once for the plan and once for the run")
}

// Waves in which a letter is missing, one waits for an earlier one of its key, or others stand between, leave nothing behind.
func TestWavesFollowInAQueueThatIsNotAsItWasPlanned(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.letters.SetRestWave(5)
	letters, _ := batch("m", 40, "order.paid")
	for i := range letters {
		if i%4 == 3 {
			letters[i].Type = "noise"
		}
	}
	s.fill(dlq, letters...)
	plan := s.plan(func(r *deadletter.PlanRequest) { r.Filter.Type = "order.paid" })
	there := s.take(dlq)
	slices.Reverse(there)
	var want, noise []string
	var back []amqp.Publishing
	for i := range there {
		if there[i].MessageId == "m00009" {
			continue
		}
		back = append(back, message.Republishing(&there[i]))
		if there[i].Type == "noise" {
			noise = append(noise, there[i].MessageId)
		} else {
			want = append(want, there[i].MessageId)
		}
	}
	s.fill(dlq, back...)
	run, err := s.start(plan)
	require.NoError(t, err)
	require.Equal(t, []any{deadletter.RunDone, 29}, []any{run.State, run.Moved})
	require.Equal(t, 1, s.result(run).Left.Missing)
	require.ElementsMatch(t, want, s.ids(work))
	require.Equal(t, noise, s.ids(dlq))
}

// What a driver has let go last may be back when it dies: its acknowledgements were on their way.
func TestADriverThatFollowsLooksAtTheWaveBefore(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.letters.SetRestWave(10)
	letters, ids := batch("m", 20, "order.paid")
	s.fill(dlq, letters...)
	run, err := s.start(s.plan())
	require.NoError(t, err)
	require.Equal(t, []any{deadletter.RunDone, 2}, []any{run.State, run.Wave})
	_, err = s.db.Pool.Exec(t.Context(), fmt.Sprintf("UPDATE %s.dlq_runs SET state = 'running', ended_at = NULL WHERE id = $1", s.db.Schema), run.ID)
	require.NoError(t, err)
	s.fill(dlq, letters[3], letters[4], letters[15])
	s.waitFor(dlq, 3)
	run, err = s.letters.DriveRun(t.Context(), deadletter.DriveRequest{Run: run.ID, Who: "bob@test"})
	require.NoError(t, err)
	require.Equal(t, []any{deadletter.RunDone, 20}, []any{run.State, run.Moved})
	require.Equal(t, ids, s.ids(work), "none has moved a second time")
	require.Empty(t, s.ids(dlq))
}

// A copy that came after the plan goes with its message, and takes nobody's place.
func TestACopySinceThePlanLeavesNoLetterBehind(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.letters.SetRestWave(10)
	letters, ids := batch("m", 20, "order.paid")
	s.fill(dlq, letters...)
	plan := s.plan()
	s.take(dlq)
	s.fill(dlq, append([]amqp.Publishing{letters[0]}, letters...)...)
	run, err := s.start(plan)
	require.NoError(t, err)
	require.Equal(t, []any{deadletter.RunDone, 20}, []any{run.State, run.Moved})
	require.ElementsMatch(t, append(ids, ids[0]), s.ids(work))
	require.Empty(t, s.ids(dlq))
}
