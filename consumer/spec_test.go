package consumer_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/topology"
)

const ladderYAML = `
database: {schema: shop}
amqp: {url: amqp://ann:secret@broker/shop}
topology:
  exchange: shop.events
  queues:
    - {name: orders.saga}
    - {name: orders.mail, retry: [2s, 5s], max_attempts: 3, prefetch: 20, handler_timeout: 10s, ordering: lanes}
inbox: {retention: 24h}
log: {level: warn}
`

func writeConfig(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "surefoot.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestFromConfigTakesEverythingFromTheFile(t *testing.T) {
	t.Parallel()
	o, err := consumer.FromConfig(writeConfig(t, ladderYAML), "orders.mail")
	require.NoError(t, err)
	require.Equal(t, []consumer.Tier{{Queue: "orders.mail.retry.2s", Delay: 2 * time.Second}, {Queue: "orders.mail.retry.5s", Delay: 5 * time.Second}}, o.Retry)
	require.Equal(t, []any{"orders.mail", "orders.mail.dlq", 3, 20, 0, 10 * time.Second, consumer.OrderLanes},
		[]any{o.Queue, o.DeadLetters, o.MaxAttempts, o.Prefetch, o.Concurrency, o.Timeout, o.Ordering})
	require.Equal(t, []any{"shop", 24 * time.Hour}, []any{o.Schema, o.InboxRetention})
	require.NotEmpty(t, o.URL)
	require.NotEmpty(t, o.ManagementURL)
	host, err := os.Hostname()
	require.NoError(t, err)
	require.Equal(t, host, o.Host)
	require.Equal(t, zerolog.WarnLevel, o.Logger.GetLevel())
}

func TestFromConfigIsStrict(t *testing.T) {
	t.Parallel()
	_, err := consumer.FromConfig(writeConfig(t, "topology: {exchange: x, queues: [{name: q, retrie: [2s]}]}\nrelai: {}\n"), "q")
	require.ErrorContains(t, err, "surefoot.yaml:1: topology.queues[0].retrie: unknown key; did you mean retry?")
	require.ErrorContains(t, err, "surefoot.yaml:2: relai: unknown key")
	_, err = consumer.FromConfig(writeConfig(t, ladderYAML), "orders.male")
	require.ErrorContains(t, err, `queue "orders.male" is not under topology.queues in `)
	_, err = consumer.FromConfig(filepath.Join(t.TempDir(), "none.yaml"), "q")
	require.ErrorContains(t, err, "none.yaml")
}

// The ladder of the configuration and the program's: which differs from which is in the reason, and not once only.
func TestAnotherLadderThanTheTopologysIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	_, err := w.ch.QueueDelete("q.retry", false, false, false)
	require.NoError(t, err)
	spec := topology.Spec{Exchange: "x", Queues: []topology.Queue{{Name: "r", Retry: []time.Duration{2 * time.Second, 5 * time.Second}}}}
	top, err := topology.New(topology.Options{Spec: spec, URL: w.vhost.URL, ManagementURL: w.vhost.ManagementURL})
	require.NoError(t, err)
	_, err = top.Apply(t.Context(), topology.ApplyOptions{})
	require.NoError(t, err)
	for _, management := range []string{w.vhost.ManagementURL, ""} {
		o := w.options(nil)
		o.Queue, o.Retry, o.ManagementURL = "r", nil, management
		ready := watchReady(&o)
		stop := w.start(o)
		ready.await(t, `queue "r.retry" is missing`)
		ready.await(t, "other retry delays than the 30s that this consumer wants, take them from there (consumer.FromConfig)")
		if management != "" {
			ready.await(t, "the broker has r.retry.2s, r.retry.5s instead")
		}
		stop()
	}
}

// pgx makes a pool of four connections on a small machine: the first program of everybody must work with it.
func TestAnOrdinaryPoolIsEnough(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	pool, err := pgxpool.New(t.Context(), w.db.URL+"&pool_max_conns=3")
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	o := w.options(nil)
	o.Pool, o.Concurrency = pool, 0
	w.start(o)
	w.publish("m1", "m2", "m3", "m4", "m5")
	w.awaitEffects(5)
	require.InDelta(t, 3, w.logs.find("consuming")[0]["concurrency"], 0)
	require.Len(t, w.logs.find("as many handlers at a time as the pool has connections; enlarge it for more"), 1)

	fromSpec := consumer.FromSpec(topology.Queue{Name: "q"})
	fromSpec.Handler, fromSpec.URL, fromSpec.Pool = w.effect, w.vhost.URL, pool
	_, err = consumer.New(fromSpec)
	require.NoError(t, err)
	o.Concurrency = 4
	_, err = consumer.New(o)
	require.ErrorContains(t, err, "the pool has fewer connections than Concurrency (4)")
}
