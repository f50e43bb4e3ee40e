package reconcile_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/reconcile"
)

// Variables that turn this test binary into a reconciler that dies at a named step.
const (
	faultVar  = "RECONCILE_TEST_FAULT"
	schemaVar = "RECONCILE_TEST_SCHEMA"
	urlVar    = "RECONCILE_TEST_DATABASE_URL"
)

// victim runs one cycle with a fault armed.
func victim() error {
	if err := fault.Arm(os.Getenv(faultVar)); err != nil {
		return err
	}
	pool, err := pg.Open(context.Background(), pg.Options{URL: os.Getenv(urlVar)})
	if err != nil {
		return err
	}
	defer pool.Close()
	schema := os.Getenv(schemaVar)
	r, err := reconcile.New(reconcile.Options{Pool: pool, Schema: schema, Batch: 5, Rules: []reconcile.Rule{ruleIn(schema, pool)}})
	if err != nil {
		return err
	}
	_, err = r.Once(context.Background())
	return err
}

// Two replicas work side by side, and one is killed in the middle: what it had not finished is the other's after the lease, and nothing is
// done twice.
func TestAReplicaIsKilledBesideAnother(t *testing.T) {
	b := newBench(t)
	const suspects = 200
	b.reserve(1, suspects, "CANCELLED")
	victim := exec.CommandContext(t.Context(), os.Args[0])
	victim.Env = append(os.Environ(), faultVar+"=reconcile.after-change:kill@7", schemaVar+"="+b.Schema, urlVar+"="+b.URL)
	var out strings.Builder
	victim.Stdout, victim.Stderr = &out, &out
	require.NoError(t, victim.Start())
	// It has begun, and holds a claim.
	testkit.Eventually(t, patience, "the victim's first claim", func() bool { return one[int](b, `SELECT count(*) FROM @.reconcile_suspects`) > 0 })
	var asked counter
	o := b.options(b.asking(asked.cancelled))
	o.Batch = 5
	other := b.once(b.made(o))
	require.Error(t, victim.Wait())
	status, ok := victim.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	require.Equal(t, syscall.SIGKILL, status.Signal(), out.String())
	b.balanced()
	for key, times := range asked.asked {
		require.Equal(t, 1, times, key)
	}
	left := suspects - one[int](b, `SELECT count(*) FROM @.outbox`)
	require.Positive(t, left, "what the victim had claimed is nobody else's yet: %+v", other)
	b.exec(`UPDATE @.reconcile_suspects SET next_check = now() - interval '1 s' WHERE resolved_at IS NULL`)
	require.Equal(t, left, b.once(b.reconciler(b.rule())).Mismatches)
	b.balanced()
	require.Equal(t, suspects, one[int](b, `SELECT count(DISTINCT message_id) FROM @.outbox`))
}

// A replica is killed at a step; another one, which works beside it and after it, finishes: each is mended once.
func TestKilledAtEveryStepMendsEachOnce(t *testing.T) {
	for _, point := range fault.Points() {
		if !strings.HasPrefix(point, "reconcile.") {
			continue
		}
		t.Run(point, func(t *testing.T) {
			b := newBench(t)
			b.reserve(1, 12, "CANCELLED")
			b.reserve(13, 14, "PENDING")
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0])
			cmd.Env = append(os.Environ(), faultVar+"="+point+":kill@2", schemaVar+"="+b.Schema, urlVar+"="+b.URL)
			out, err := cmd.CombinedOutput()
			require.Error(t, err, string(out))
			status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
			require.True(t, ok)
			require.Equal(t, syscall.SIGKILL, status.Signal(), "%s was not reached: %s", point, out)
			b.balanced()

			r := b.reconciler(b.rule())
			first := b.once(r)
			b.balanced()
			leased := one[int](b, `SELECT count(*) FROM @.reconcile_suspects WHERE resolved_at IS NULL AND checks = 0 AND next_check > now()`)
			if point != "reconcile.after-commit" { // there all others of its batch may have been committed beside it
				require.NotZero(t, leased, "what the dead one had claimed is left to it until its lease ends: %+v", first)
			}
			b.exec(`UPDATE @.reconcile_suspects SET next_check = now() - interval '1 s' WHERE resolved_at IS NULL`)
			b.once(r)
			b.balanced()
			require.Equal(t, 12, one[int](b, `SELECT count(*) FROM @.reservations WHERE status = 'RELEASED'`))
			require.Equal(t, 12, one[int](b, `SELECT count(DISTINCT message_id) FROM @.outbox`))
			require.Equal(t, 1, one[int](b, `SELECT count(*) FROM @.reconcile_runs WHERE ended_at IS NULL`), "the dead one's run never ended")
		})
	}
}
