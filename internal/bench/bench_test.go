package bench_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/bench"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// options are those of a short run in a corner of its own.
func options(t *testing.T, kind bench.Kind) (bench.Options, testkit.DB, testkit.AMQP) {
	t.Helper()
	db, broker := testkit.Database(t), testkit.Broker(t)
	return bench.Options{
		Kind: kind, DatabaseURL: db.URL, AMQPURL: broker.URL, ManagementURL: broker.ManagementURL, Binary: testkit.Binary(t), Environ: os.Environ(),
		Namespace: testkit.Name("b"), Rounds: 1, Rows: 300, Keys: 7, For: time.Second, Say: func(line string) { t.Log(line) },
	}, db, broker
}

// nothingLeft wants no schema and no queue of the run.
func nothingLeft(t *testing.T, o bench.Options, db testkit.DB, broker testkit.AMQP) {
	t.Helper()
	var schemas int
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_namespace WHERE starts_with(nspname, $1)`, o.Namespace).Scan(&schemas))
	require.Zero(t, schemas, "schemas are left")
	management, err := rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: broker.URL, URL: broker.ManagementURL})
	require.NoError(t, err)
	exchanges, err := management.Exchanges(t.Context())
	require.NoError(t, err)
	for _, x := range exchanges {
		require.False(t, strings.HasPrefix(x.Name, o.Namespace), "exchange %s is left", x.Name)
	}
	queues, err := management.Queues(t.Context())
	require.NoError(t, err)
	for _, q := range queues {
		require.False(t, strings.HasPrefix(q.Name, o.Namespace), "queue %s is left", q.Name)
	}
}

func TestEveryBenchmarkMeasuresItsArmsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		kind   bench.Kind
		change func(*bench.Options)
		arms   []string
		figure string
	}{
		"relay":          {bench.Relay, func(o *bench.Options) { o.Rows = 3000 }, []string{"bare publisher", "relay"}, "relay / bare publisher"},
		"relay, held":    {bench.Relay, func(o *bench.Options) { o.Held, o.Rounds, o.Rows = bench.HeldSnapshot, 2, 3000 }, []string{"bare publisher", "relay"}, "relay, last round / first"},
		"relay, backlog": {bench.Relay, func(o *bench.Options) { o.Backlog, o.Window = 2000, 2*time.Second }, []string{"relay", "relay with backlog"}, "relay with backlog / relay"},
		"relay, steady":  {bench.Relay, func(o *bench.Options) { o.Steady, o.For = 100, 3*time.Second }, []string{"relay"}, "WAL per message, insert and settle"},
		"consume":        {bench.Consume, nil, []string{"bare with row", "inbox", "batch", "bare", "plain", "inbox, prefetch 1000"}, "inbox / bare with row"},
		"redrive":        {bench.Redrive, nil, []string{"bare move", "redrive"}, "redrive / bare move"},
		"latency":        {bench.Latency, func(o *bench.Options) { o.Steady = 100 }, []string{"bare publish", "commit and relay"}, "commit to handler, p50"},
		"worker":         {bench.Worker, nil, []string{"bare post with row", "HTTP worker", "bare post"}, "HTTP worker / bare post with row"},
		"enqueue":        {bench.Enqueue, func(o *bench.Options) { o.Rows = 20 }, []string{"INSERT of 1", "Enqueue of 1", "COPY of 100", "Enqueue of 100"}, "Enqueue of 1 row / INSERT"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, db, broker := options(t, tt.kind)
			if tt.change != nil {
				tt.change(&o)
			}
			b, err := bench.New(o)
			require.NoError(t, err)
			report, err := b.Run(t.Context())
			require.NoError(t, err)
			var arms []string
			for _, arm := range report.Arms {
				arms = append(arms, arm.Name)
				require.Len(t, arm.Samples, o.Rounds, arm.Name)
			}
			require.Equal(t, tt.arms, arms)
			var figures []string
			for _, f := range report.Figures {
				figures = append(figures, f.Name)
			}
			require.Contains(t, figures, tt.figure)
			nothingLeft(t, o, db, broker)
		})
	}
}

func TestAnInterruptedRunLeavesNothing(t *testing.T) {
	t.Parallel()
	o, db, broker := options(t, bench.Relay)
	o.Rounds, o.Rows = 1000, 2000
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var lines atomic.Int32
	o.Say = func(string) {
		if lines.Add(1) == 3 {
			interrupt()
		}
	}
	b, err := bench.New(o)
	require.NoError(t, err)
	_, err = b.Run(ctx)
	require.ErrorIs(t, err, context.Canceled)
	nothingLeft(t, o, db, broker)
	var sessions int
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%' || $1 || '%' AND pid <> pg_backend_pid()`,
		o.Namespace).Scan(&sessions))
	require.Zero(t, sessions, "a process still works")
}

// Two runs would drop each other's schemas.
func TestOneRunAtATime(t *testing.T) {
	t.Parallel()
	o, db, _ := options(t, bench.Enqueue)
	conn, err := db.Pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `SELECT pg_advisory_lock(hashtext($1))`, o.Namespace)
	require.NoError(t, err)
	b, err := bench.New(o)
	require.NoError(t, err)
	_, err = b.Run(t.Context())
	require.ErrorContains(t, err, "another benchmark runs in this database")
	_, err = conn.Exec(t.Context(), `SELECT pg_advisory_unlock(hashtext($1))`, o.Namespace)
	require.NoError(t, err)
	_, err = b.Run(t.Context())
	require.NoError(t, err)
}

// A peer that says it has done its work, and has not, is found out.
func TestWhatNeverCameIsAnError(t *testing.T) {
	t.Parallel()
	o, db, broker := options(t, bench.Relay)
	o.Peers = filepath.Join(t.TempDir(), "peers")
	liar := "#!/bin/sh\n[ \"$2\" = drain ] && echo '{\"rows\":300,\"seconds\":0.1}'\nexit 0\n"
	require.NoError(t, os.WriteFile(o.Peers, []byte(liar), 0o700)) //nolint:gosec // it is run
	b, err := bench.New(o)
	require.NoError(t, err)
	_, err = b.Run(t.Context())
	require.ErrorContains(t, err, "textbook ended and 300 of its rows never came")
	nothingLeft(t, o, db, broker)
}

// A process that fails says why.
func TestAFailingArmIsShownWithItsWords(t *testing.T) {
	t.Parallel()
	o, _, _ := options(t, bench.Relay)
	o.Binary = filepath.Join(t.TempDir(), "surefoot")
	require.NoError(t, os.WriteFile(o.Binary, []byte("#!/bin/sh\necho out of luck >&2\nexit 7\n"), 0o700)) //nolint:gosec // it is run
	b, err := bench.New(o)
	require.NoError(t, err)
	_, err = b.Run(t.Context())
	require.ErrorContains(t, err, "out of luck")
}

// The meter sees what PostgreSQL does, also in processes that have ended since.
func TestMeterCountsPostgresAndTheBroker(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Database(t), testkit.Broker(t)
	management, err := rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: broker.URL, URL: broker.ManagementURL})
	require.NoError(t, err)
	meter, err := bench.NewMeter(t.Context(), db.Pool, management)
	require.NoError(t, err)
	before := meter.Read()
	if before.Postgres() == nil || before.Broker() == nil {
		t.Skip("the services run elsewhere")
	}
	busy, err := pg.Open(t.Context(), pg.Options{URL: db.URL, MaxConns: 1})
	require.NoError(t, err)
	began := time.Now()
	_, err = busy.Exec(t.Context(), `SELECT count(*) FROM generate_series(1, 2000000) g WHERE sin(g) > 2`)
	require.NoError(t, err)
	busy.Close() // its process ends
	require.Greater(t, time.Since(began), 50*time.Millisecond)
	testkit.EventuallyNil(t, 10*time.Second, "the work to be counted", func() error {
		if used := *meter.Read().Postgres() - *before.Postgres(); used < 50_000 {
			return fmt.Errorf("%.0f us", used)
		}
		return nil
	})
}
