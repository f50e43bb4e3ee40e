package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// runOf reads the id of a redrive from its JSON.
func runOf(t *testing.T, stdout string) string {
	t.Helper()
	var r struct{ Run string }
	require.NoError(t, json.Unmarshal([]byte(stdout), &r), stdout)
	return r.Run
}

func TestDLQPlanAndRuns(t *testing.T) {
	t.Parallel()
	s := newDLQStage(t)
	for i := range 4 {
		s.letter(fmt.Sprintf("m%d", i), "order.paid", "x")
	}
	got := s.run("redrive", "--queue", "orders.saga", "--max", "2", "--dry-run", "-o", "json")
	require.Zero(t, got.code, got.stderr)
	plan := runOf(t, got.stdout)
	require.Contains(t, got.stderr, "surefoot dlq redrive --plan "+plan)
	require.Equal(t, 4, s.depth("orders.saga.dlq"))
	require.Equal(t, cli.ExitUsage, s.run("redrive", "--plan", plan, "--max", "3", "--yes").code)
	require.Equal(t, cli.ExitUsage, s.run("redrive", "--plan", "x", "--yes").code)
	require.Equal(t, cli.ExitFailed, s.run("redrive", "--plan", uuid.NewString(), "--yes").code)
	require.Equal(t, cli.ExitUsage, s.run("redrive", "--plan", plan).code, "not asked")
	got = s.run("redrive", "--plan", plan, "--yes", "-o", "json")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, plan, runOf(t, got.stdout))
	require.Equal(t, []int{2, 2}, []int{s.depth("orders.saga"), s.depth("orders.saga.dlq")})
	require.Equal(t, cli.ExitUsage, s.run("redrive", "--plan", plan, "--yes").code, "once")

	got = s.run("runs", "show", plan)
	require.Zero(t, got.code, got.stderr)
	require.Regexp(t, `(?m)^state +done$`, got.stdout)
	require.Regexp(t, `(?m)^moved +2$`, got.stdout)
	require.Equal(t, "m0\nm1\n", s.run("runs", "show", plan, "--state", "moved", "-o", "name").stdout)
	require.Equal(t, cli.ExitUsage, s.run("runs", "show", plan, "--state", "lost").code)
	require.Equal(t, cli.ExitFailed, s.run("runs", "resume", plan, "--yes").code, "it is done")
	require.Equal(t, plan+"\n", s.run("runs", "ls", "-o", "name").stdout)
	require.Equal(t, cli.ExitUsage, s.run("redrive", "--queue", "orders.saga", "--ramp", "1,x", "--yes").code)
	got = s.run("redrive", "--queue", "orders.saga", "--ramp", "1", "--yes")
	require.Equal(t, cli.ExitUsage, got.code, "without an inbox nobody knows what was processed")
	require.Contains(t, got.stderr, "inbox")

	// Declined and empty ones leave nothing behind.
	require.Equal(t, cli.ExitUsage, s.run("redrive", "--queue", "orders.saga").code)
	require.Zero(t, s.run("redrive", "--queue", "orders.saga", "--type", "none", "--yes").code)
	require.Equal(t, plan+"\n", s.run("runs", "ls", "--plans", "-o", "name").stdout)
}

func TestDLQRunIsPausedResumedAndCancelled(t *testing.T) {
	t.Parallel()
	s := newDLQStage(t)
	for i := range 6 {
		s.letter(fmt.Sprintf("m%d", i), "order.paid", "x")
	}
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan result, 1)
	go func() {
		ended <- runIn(ctx, t, s.env(), "dlq", "redrive", "--queue", "orders.saga", "--rate", "2/s", "--yes")
	}()
	testkit.Eventually(t, 20*time.Second, "the first message", func() bool { return s.depth("orders.saga") > 0 })
	interrupt()
	got := <-ended
	require.Equal(t, cli.ExitInterrupted, got.code, got.stderr)
	require.Contains(t, got.stderr, "surefoot dlq runs resume ")
	id := s.run("runs", "ls", "-o", "name").stdout
	id = id[:len(id)-1]
	require.Zero(t, s.run("redrive", "--queue", "orders.saga", "--dry-run").code, "a look exits 0 whatever is found")
	for _, args := range [][]string{{"redrive", "--queue", "orders.saga", "--yes"}, {"discard", "--queue", "orders.saga", "--reason", "r", "--yes"}, {"edit", "--queue", "orders.saga", "--id", "m5", "--header", "a=b", "--reason", "r", "--yes"}} {
		got = s.run(args...)
		require.Equal(t, cli.ExitFailed, got.code, got.stderr)
		require.Contains(t, got.stderr, "surefoot dlq runs cancel "+id)
	}
	s.letter("m6", "order.paid", "x")
	got = s.run("redrive", "--queue", "orders.saga", "--yes")
	require.Equal(t, cli.ExitPartly, got.code, "one is free: %s", got.stderr)
	require.Contains(t, got.stderr, "still in orders.saga.dlq: run "+id+" is paused and has them")
	got = s.run("runs", "ls")
	require.Contains(t, got.stderr, "holds its 6 messages: `surefoot dlq runs resume "+id)
	require.Regexp(t, `(?m)^holds +6 messages: `, s.run("runs", "show", id).stdout)
	require.Zero(t, s.run("runs", "cancel", id, "--dry-run").code)
	require.Equal(t, cli.ExitFailed, s.run("runs", "pause", id).code, "it is paused already; the brake asks nothing")
	got = s.run("runs", "cancel", id, "--reason", "changed my mind", "--yes")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stderr, "of orders.saga is cancelled")
	got = s.run("redrive", "--queue", "orders.saga", "--yes")
	require.Zero(t, got.code, got.stderr)
	require.Regexp(t, "not yet processed: [1-5] messages?; `surefoot dlq runs show ", got.stderr)
	require.Equal(t, []int{7, 0}, []int{s.depth("orders.saga"), s.depth("orders.saga.dlq")})
}
