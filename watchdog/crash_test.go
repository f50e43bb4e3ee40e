package watchdog_test

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
	"github.com/surefoot-mq/surefoot/watchdog"
)

// Variables that turn this test binary into a watchdog that dies at a named step.
const (
	faultVar  = "WATCHDOG_TEST_FAULT"
	schemaVar = "WATCHDOG_TEST_SCHEMA"
	urlVar    = "WATCHDOG_TEST_DATABASE_URL"
	actVar    = "WATCHDOG_TEST_CANCEL" // keys of rows to cancel; empty: one cycle
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
	w, err := watchdog.New(watchdog.Options{Pool: pool, Schema: schema, Batch: 5, Rules: []watchdog.Rule{ruleIn(schema)}})
	if err != nil {
		return err
	}
	if os.Getenv(actVar) != "" {
		_, err = w.Cancel(context.Background(), act(strings.Fields(os.Getenv(actVar))...), true)
		return err
	}
	_, err = w.Once(context.Background())
	return err
}

// An operator's cancel that is killed in the middle leaves each row either as it was, or changed with its event and its entry in the audit;
// doing it again does the rest.
func TestKilledCancelIsDoneAgain(t *testing.T) {
	for _, point := range []string{"watchdog.after-change", "watchdog.after-enqueue"} {
		t.Run(point, func(t *testing.T) {
			b := newBench(t)
			b.stuck(1, 5)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0])
			cmd.Env = append(os.Environ(), faultVar+"="+point+":kill@3", actVar+"=1 2 3 4 5", schemaVar+"="+b.Schema, urlVar+"="+b.URL)
			out, err := cmd.CombinedOutput()
			require.Error(t, err, string(out))
			b.balanced()
			require.Equal(t, 2, b.count(`SELECT count(*) FROM @.sagas WHERE status = 'CANCELLED'`))
			require.Equal(t, 2, b.count(`SELECT count(*) FROM @.audit WHERE outcome = 'changed to CANCELLED'`))
			again, err := b.watchdog().Cancel(t.Context(), act("1", "2", "3", "4", "5"), true)
			require.NoError(t, err)
			require.Equal(t, []bool{false, false, true, true, true}, done(again))
			b.balanced()
			require.Len(t, b.events(), 5)
		})
	}
}

func TestKilledAtEveryStepCancelsEachSagaOnce(t *testing.T) {
	for _, point := range fault.Points() {
		if !strings.HasPrefix(point, "watchdog.") {
			continue
		}
		t.Run(point, func(t *testing.T) {
			b := newBench(t)
			b.stuck(1, 12)
			b.refuse(3, 4)
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
			b.exec(`DROP TRIGGER refuse ON @.sagas; UPDATE @.watchdog_failures SET next_try = now() - interval '1 s'`)
			b.once(b.watchdog())
			b.balanced()
			require.Equal(t, 12, b.count(`SELECT count(*) FROM @.sagas WHERE status = 'CANCELLED'`))
		})
	}
}

// balanced demands one event for each cancelled saga and none for any other.
func (b bench) balanced() {
	b.t.Helper()
	var cancelled, events []string
	require.NoError(b.t, b.Pool.QueryRow(b.t.Context(), b.in(`SELECT
		(SELECT coalesce(array_agg(id::text ORDER BY id::text), '{}') FROM @.sagas WHERE status = 'CANCELLED'),
		(SELECT coalesce(array_agg(key ORDER BY key), '{}') FROM @.outbox)`)).Scan(&cancelled, &events))
	require.Equal(b.t, cancelled, events, "%d sagas, %d events", len(cancelled), len(events))
}
