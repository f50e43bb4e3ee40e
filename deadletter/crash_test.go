package deadletter_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/fault"
)

// crashWindow is the window of the processes that are killed; they may leave twice as many duplicates.
const crashWindow = 25

// A process killed at any named step loses nothing, keeps the order of what stays, leaves at most a window twice, and
// another run goes on.
func TestKilledAtEveryStepLosesNothing(t *testing.T) {
	t.Parallel()
	for _, point := range fault.Points() {
		verb, _, _ := strings.Cut(point, ".")
		if verb != "redrive" && verb != "discard" || point == "redrive.after-wave" { // a step of runs
			continue
		}
		for _, action := range []string{"kill", "error"} {
			t.Run(point+":"+action, func(t *testing.T) {
				at := "@30"
				if strings.HasSuffix(point, "start") || strings.HasSuffix(point, "record") || strings.HasSuffix(point, "close") {
					at = ""
				}
				killed(t, verb, point+":"+action+at, action == "kill")
			})
		}
	}
}

func killed(t *testing.T, verb, spec string, isKill bool) {
	t.Helper()
	s := newStage(t)
	letters, ids := batch("m", 300, "order.paid")
	var kept []string
	for i := range letters {
		if i%10 == 0 {
			letters[i].Type = "noise"
			kept = append(kept, ids[i])
		}
	}
	chosen := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(kept, id) })
	s.fill(dlq, letters...)
	out, err := s.child(verb, spec)
	exit, ok := errors.AsType[*exec.ExitError](err)
	require.True(t, ok, "the fault did not act: %s", out)
	require.Equal(t, isKill, exit.ExitCode() == -1, "%s", out)
	require.Equal(t, "started", s.audit()[0].Outcome, "the operation's record survives")

	left := s.settledDepth(len(ids))
	dead := s.ids(dlq)
	require.Len(t, dead, left)
	require.True(t, slices.IsSorted(dead), "order kept: %v", dead)
	moved := s.ids(work)
	if verb == "discard" {
		require.Empty(t, moved)
		require.Subset(t, s.recorded("discarded"), without(ids, dead), "gone only with a record")
		return
	}
	require.True(t, slices.IsSorted(moved))
	// In flight are the copies without an acknowledgement, at most the window, and as many acknowledgements that the
	// broker had not carried out.
	require.LessOrEqual(t, len(moved)+len(dead)-len(ids), 2*crashWindow, "duplicates")
	require.Subset(t, append(moved, dead...), ids, "nothing is lost")
	require.Subset(t, dead, kept)
	require.Subset(t, chosen, moved)
}

func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(id string) bool { return slices.Contains(some, id) })
}

func (s *stage) recorded(outcome string) []string {
	s.Helper()
	ids := []string{}
	for _, row := range s.audit() {
		if row.Outcome == outcome {
			ids = append(ids, row.MessageID)
		}
	}
	return ids
}

// child runs the operation in a process of its own, with a fault.
func (s *stage) child(verb, spec string) (string, error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	binary, err := os.Executable()
	require.NoError(s, err)
	cmd := exec.CommandContext(ctx, binary)
	cmd.Env = append(os.Environ(), "DLQ_CHILD="+verb, "DLQ_FAULT="+spec,
		"DLQ_DATABASE="+s.db.URL, "DLQ_SCHEMA="+s.db.Schema, "DLQ_AMQP="+s.broker.URL)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// settledDepth waits until the broker has given back what a dead process held: the depth stands still, nobody consumes.
func (s *stage) settledDepth(most int) int {
	s.Helper()
	still, last := 0, -1
	deadline := time.After(20 * time.Second)
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for still < 6 {
		q, err := s.ch.QueueDeclarePassive(dlq, true, false, false, false, nil)
		require.NoError(s, err)
		require.LessOrEqual(s, q.Messages, most)
		if q.Consumers == 0 && q.Messages == last {
			still++
		} else {
			still = 0
		}
		last = q.Messages
		select {
		case <-ticker.C:
		case <-deadline:
			require.Fail(s, "the queue does not settle")
		}
	}
	return last
}

// After a crash the lock of the dead expires and the next run finishes the work.
func TestNextRunGoesOnAfterACrash(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, ids := batch("m", 200, "order.paid")
	s.fill(dlq, letters...)
	_, err := s.child("redrive", "redrive.after-confirm:kill@90")
	require.Error(t, err)
	_, err = s.redrive()
	locked, ok := errors.AsType[*deadletter.LockedError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, "child", locked.Holder.Who)
	_, err = s.db.Pool.Exec(t.Context(), "UPDATE "+s.db.Schema+".dlq_lock SET expires_at = clock_timestamp() + interval '1 second'")
	require.NoError(t, err)
	waited := ""
	_, err = s.redrive(func(r *deadletter.RedriveRequest) {
		r.Wait, r.Waiting = 20*time.Second, func(h deadletter.Holder) { waited = h.Who }
	})
	require.NoError(t, err)
	require.Equal(t, "child", waited)
	moved := s.ids(work)
	require.LessOrEqual(t, len(moved), len(ids)+2*crashWindow)
	slices.Sort(moved)
	require.Equal(t, ids, slices.Compact(moved))
	require.Zero(t, s.count(dlq))
}
