package cli_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestConsumePauseResumeAndList(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	do := func(args ...string) result {
		e := env(`
topology:
  exchange: shop.events
  queues:
    - {name: orders.saga, bindings: ["order.#"]}
`)
		e.Environ = []string{"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema}
		return run(t, e, append([]string{"consume"}, args...)...)
	}
	states := func() (all []consumer.QueueState) {
		ls := do("ls", "-o", "json")
		require.Zero(t, ls.code, ls.stderr)
		require.NoError(t, json.Unmarshal([]byte(ls.stdout), &all))
		return all
	}

	require.Empty(t, states())
	require.Equal(t, cli.ExitUsage, do("pause").code)
	typo := do("pause", "--queue", "orders.sage", "--yes")
	require.Equal(t, cli.ExitUsage, typo.code)
	require.Contains(t, typo.stderr, "orders.sage is not in surefoot.yaml")
	require.Equal(t, cli.ExitUsage, do("pause", "--queue", "orders.saga").code, "no terminal, no --yes")
	require.Zero(t, do("pause", "--queue", "orders.saga", "--dry-run").code)
	require.Empty(t, states(), "nothing has changed so far")

	paused := do("pause", "--queue", "orders.saga", "--reason", "INC-7", "--as", "ann", "--yes")
	require.Zero(t, paused.code, paused.stderr)
	require.Contains(t, paused.stderr, "is paused")
	again := do("pause", "--queue", "orders.saga", "--as", "bob", "--yes")
	require.Zero(t, again.code)
	require.Contains(t, again.stderr, "paused already")
	all := states()
	require.Len(t, all, 1)
	require.Equal(t, "ann", all[0].Who)
	require.Equal(t, "INC-7", all[0].Reason)
	require.True(t, all[0].Paused)
	require.Contains(t, do("ls", "--queue", "orders.saga").stdout, "INC-7")

	require.Zero(t, do("resume", "--queue", "orders.saga", "--as", "bob", "--yes").code)
	require.Empty(t, states())
	var audited []string
	require.NoError(t, db.Pool.QueryRow(t.Context(),
		`SELECT array_agg(who || ' ' || action || ' ' || target || ' ' || reason ORDER BY id) FROM `+db.Schema+`.audit`).Scan(&audited))
	require.Equal(t, []string{"ann consume pause orders.saga INC-7", "bob consume resume orders.saga "}, audited)
}

// "Working" is what the broker says now, not what once was.
func TestConsumeLsTellsLiveConsumersFromDeadOnes(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Database(t), testkit.Broker(t)
	conn, err := amqp.Dial(broker.URL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	require.NoError(t, err)
	for _, queue := range []string{"live", "dead", "held", "gone"} {
		_, err = db.Pool.Exec(t.Context(), `INSERT INTO `+db.Schema+`.inbox_consumers (name, queue, retention) VALUES ($1, $1, '1 day')`, queue)
		require.NoError(t, err)
		if queue != "gone" {
			_, err = ch.QueueDeclare(queue, true, false, false, false, nil)
			require.NoError(t, err)
		}
	}
	_, err = ch.Consume("live", "", false, false, false, false, nil)
	require.NoError(t, err)
	_, err = consumer.PauseQueue(t.Context(), db.Pool, db.Schema, "held", "ann", "INC-7")
	require.NoError(t, err)
	list := func(amqpURL string, args ...string) (result, map[string]string) {
		e := env("")
		e.Environ = []string{"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema, "SUREFOOT_AMQP_URL=" + amqpURL}
		got := run(t, e, append([]string{"consume", "ls"}, args...)...)
		require.Zero(t, got.code, got.stderr)
		states := map[string]string{}
		for line := range strings.Lines(got.stdout) {
			cells := regexp.MustCompile(` {2,}`).Split(strings.TrimSpace(line), -1)
			states[cells[0]] = cells[min(1, len(cells)-1)]
		}
		return got, states
	}
	got, states := list(broker.URL)
	require.Equal(t, map[string]string{"QUEUE": "STATE", "live": "working", "dead": "no consumer", "held": "paused", "gone": "no consumer"}, states)
	require.Contains(t, got.stderr, "queue gone is not on the broker")
	for url, why := range map[string]string{"": "set SUREFOOT_AMQP_URL", "amqp://a:b@127.0.0.1:1/": "connection refused"} {
		got, states = list(url)
		require.Equal(t, []string{"unknown", "paused"}, []string{states["live"], states["held"]})
		require.Contains(t, got.stderr, why)
	}
	got, _ = list(broker.URL, "--queue", "nope")
	require.Equal(t, "no consumer of nope was ever started, and it is not paused; `surefoot consume ls` lists all queues\n", got.stderr)
	got, _ = list(broker.URL, "-o", "json", "--queue", "live")
	require.Contains(t, got.stdout, `"state": "working",`)
	require.Contains(t, got.stdout, `"consumers": 1`)
}
