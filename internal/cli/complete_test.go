package cli_test

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// complete returns what the shell proposes for the last of args.
func complete(t *testing.T, e cli.Env, args ...string) []string {
	t.Helper()
	got := run(t, e, append([]string{"__complete"}, args...)...)
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, "Completion ended with directive: ShellCompDirectiveNoFileComp\n", got.stderr, "nothing but what cobra says")
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	return lines[:len(lines)-1] // the last is the directive
}

func TestCompletionKnowsQueuesAndGroups(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Database(t), testkit.Broker(t)
	e := env("topology: {exchange: x, queues: [{name: orders.saga}, {name: loans.mail}]}\n")
	e.Environ = []string{
		"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema, "SUREFOOT_AMQP_URL=" + broker.URL, "SUREFOOT_MANAGEMENT_URL=" + broker.ManagementURL,
	}
	require.Zero(t, run(t, e, "topology", "apply", "--yes").code)
	conn, err := amqp.Dial(broker.URL)
	require.NoError(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(t, err)
	for _, name := range []string{"orders.old.dlq", "evil\x1b[2J.dlq", "other"} {
		_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1_000_000})
		require.NoError(t, err)
	}
	testkit.Eventually(t, 10*time.Second, "the queue that only the broker knows", func() bool {
		return len(complete(t, e, "dlq", "show", "--queue", "")) == 3
	})
	require.Equal(t, []string{"loans.mail", "orders.old", "orders.saga"}, complete(t, e, "dlq", "show", "--queue", ""))
	require.Equal(t, []string{"orders.old", "orders.saga"}, complete(t, e, "consume", "pause", "--queue", "orders"))

	require.NoError(t, ch.Confirm(false))
	confirmed, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", "loans.mail.dlq", true, false, amqp.Publishing{
		MessageId: "m", Type: "loan.due", DeliveryMode: amqp.Persistent,
		Headers: amqp.Table{"sf-error-class": "permanent", "sf-error-type": "BadLoan", "sf-error-message": "no \x1b[2J such loan", "sf-fingerprint": "f00"},
	})
	require.NoError(t, err)
	require.True(t, confirmed.Wait())
	require.Zero(t, run(t, e, "dlq", "groups", "--scan").code)
	group := strings.TrimSpace(run(t, e, "dlq", "groups", "-o", "name").stdout)
	words := complete(t, e, "dlq", "note", "")
	require.Len(t, words, 1)
	require.Equal(t, group+"\tloans.mail: 1 loan.due, permanent: no \\x1b[2J such loan", words[0])
	require.Empty(t, complete(t, e, "dlq", "note", group, ""), "its second argument is a text")
	require.Len(t, complete(t, e, "dlq", "redrive", "--queue", "loans.mail", "--fingerprint", ""), 1)
	require.Empty(t, complete(t, e, "dlq", "redrive", "--queue", "orders.saga", "--fingerprint", ""))
}

func TestCompletionOfFixedWords(t *testing.T) {
	t.Parallel()
	e := env("dependencies: {orders: {}, payments: {}}\n")
	require.Equal(t, []string{"json", "jsonl"}, complete(t, e, "dlq", "ls", "-o", "j"))
	require.Equal(t, []string{"warn"}, complete(t, e, "version", "--log-level", "w"))
	require.Equal(t, []string{"view", "operate", "admin"}, complete(t, e, "console", "hash-password", "--role", ""))
	require.Equal(t, []string{"orders", "payments"}, complete(t, e, "circuits", "ls", "--dependency", ""))
	require.Equal(t, []string{"reconcile", "relay"}, slices.Sorted(slices.Values(complete(t, e, "doctor", "--role", "re"))))
	require.Equal(t, []string{"retry-window"}, complete(t, e, "doctor", "--skip", "re"))
	require.Empty(t, complete(t, e, "version", ""), "no files")
}

// With services away, or a configuration with faults, it is quick and silent, and knows what it can.
func TestCompletionWithoutServices(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and never answers
	require.NoError(t, err)
	defer listener.Close()
	silent := listener.Addr().String()
	e := env("topology: {exchange: x, queues: [{name: q}]}\n")
	e.Environ = []string{"SUREFOOT_DATABASE_URL=postgres://ann@" + silent + "/d", "SUREFOOT_AMQP_URL=amqp://ann:x@" + silent + "/", "SUREFOOT_MANAGEMENT_URL=http://" + silent}
	began := time.Now()
	require.Equal(t, []string{"q"}, complete(t, e, "dlq", "show", "--queue", ""))
	require.Empty(t, complete(t, e, "dlq", "note", ""))
	require.Less(t, time.Since(began), 5*time.Second)
	require.Empty(t, complete(t, env("nonsense: 1\n"), "dlq", "show", "--queue", ""))
	require.Equal(t, []string{"q"}, complete(t, env("topology: {exchange: x, queues: [{name: q}]}\n"), "dlq", "show", "--queue", ""))
}
