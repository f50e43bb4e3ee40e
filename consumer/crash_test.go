package consumer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/message"
)

// workerVar makes the test binary a worker process: its value is a workerConfig.
const workerVar = "SUREFOOT_CONSUMER_TEST_WORKER"

type workerConfig struct {
	URL, Database, Schema string
	Batch                 bool
}

// runWorker consumes until it is killed. A message whose id begins with "killer" kills it in its handler.
func runWorker() error {
	var c workerConfig
	if err := json.Unmarshal([]byte(os.Getenv(workerVar)), &c); err != nil {
		return err
	}
	return work(c)
}

func work(c workerConfig) error {
	pool, err := pgxpool.New(context.Background(), c.Database+"&pool_max_conns=10")
	if err != nil {
		return err
	}
	o := consumer.Options{
		Queue: "q", URL: c.URL, Pool: pool, Schema: c.Schema, MaxAttempts: 3, PausePoll: 50 * time.Millisecond,
		Handler: func(ctx context.Context, tx pgx.Tx, m message.Message) error {
			if strings.HasPrefix(m.ID, "killer") {
				return syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			_, err := tx.Exec(ctx, `INSERT INTO `+c.Schema+`.effects (id, key) VALUES ($1, $2)`, m.ID, m.Key)
			return err
		},
	}
	if c.Batch {
		o.Batch, o.Handler = consumer.Each(o.Handler), nil
	}
	w, err := consumer.New(o)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return w.Run(ctx)
}

// process is one worker process after the other, started anew as long as there is one.
func (w *world) workers(n int, batch bool, until func() bool) (crashes int) {
	w.t.Helper()
	config, err := json.Marshal(workerConfig{w.vhost.URL, w.db.URL, w.db.Schema, batch})
	require.NoError(w.t, err)
	died := make(chan int, n)
	running := map[int]*exec.Cmd{}
	start := func(i int) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), workerVar+"="+string(config))
		cmd.Stderr = os.Stderr
		require.NoError(w.t, cmd.Start())
		running[i] = cmd
		go func() { _ = cmd.Wait(); died <- i }()
	}
	for i := range n {
		start(i)
	}
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(60 * time.Second)
	for !until() {
		select {
		case i := <-died:
			crashes++
			start(i)
		case <-ticker.C:
		case <-deadline:
			w.t.Error("the killer is not out of the way")
			until = func() bool { return true }
		}
	}
	for _, cmd := range running {
		_ = cmd.Process.Signal(syscall.SIGTERM) // in order: a dead letter's copy is followed by its acknowledgement
	}
	for range running {
		<-died
	}
	return crashes
}

func TestAMessageThatKillsItsProcessIsBoundedAndHarmsNobody(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]struct {
		world    worldOptions
		replicas int
		killers  int
		batch    bool
	}{
		"one process":   {worldOptions{}, 1, 1, false},
		"three at once": {worldOptions{}, 3, 1, false},
		"four killers":  {worldOptions{}, 2, 4, false},
		// Each killer crashes four times; what is held with it each time would pass the limit.
		"a low limit":   {worldOptions{limit: 6}, 1, 4, false},
		"classic queue": {worldOptions{classic: true}, 2, 1, false},
		"batches":       {worldOptions{}, 2, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o.world)
			for i := range o.killers {
				w.publish(fmt.Sprintf("before-%d", i), fmt.Sprintf("killer-%d", i))
			}
			for i := range 30 {
				w.publish(fmt.Sprintf("after-%d", i))
			}
			crashes := w.workers(o.replicas, o.batch, func() bool { return w.depth("q.dlq") == o.killers && len(w.effects()) == 30+o.killers })
			// The first crash is charged to nobody, as the process held others too; then three attempts.
			require.LessOrEqual(t, crashes, o.killers*(3+o.replicas), "crashes")
			last := w.options(nil)
			last.MaxAttempts = 3
			w.start(last)
			w.awaitEmpty("q.retry")
			require.Len(t, w.effects(), 30+o.killers)
			dead := map[string]bool{}
			for range w.depth("q.dlq") {
				d := w.get("q.dlq")
				require.True(t, strings.HasPrefix(d.MessageId, "killer"), "an innocent neighbour is dead: %s", d.MessageId)
				require.Equal(t, "crash", message.FailureOf(d.Headers).Class)
				require.Equal(t, 3, message.Attempts(d.Headers))
				dead[d.MessageId] = true
			}
			require.Len(t, dead, o.killers)
			var marks int
			require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+w.db.Schema+`.inbox_suspects`).Scan(&marks))
			require.Zero(t, marks)
		})
	}
}
