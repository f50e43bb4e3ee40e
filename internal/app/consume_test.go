package app_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/topology"
)

// The role from its configuration to the dead-letter queue: a program for each of two queues, one of them not there
// yet when the role starts.
func TestConsumeHandsMessagesToPrograms(t *testing.T) {
	t.Parallel()
	db, vhost := testkit.Database(t), testkit.Broker(t)
	out := filepath.Join(t.TempDir(), "out")
	target := func(script string) *topology.Target { return &topology.Target{Exec: []string{"sh", "-c", script}} }
	spec := topology.Spec{Exchange: "shop.events", Queues: []topology.Queue{
		{Name: "mail", Bindings: []string{"order.#"}, Retry: []time.Duration{200 * time.Millisecond}, MaxAttempts: 2, Target: target(
			`case "$SUREFOOT_MESSAGE_ID" in bad) echo "no such customer" >&2; exit 65;; flaky) [ "$SUREFOOT_ATTEMPT" = 2 ] || exit 1;; esac; printf '%s %s\n' "$SUREFOOT_MESSAGE_ID" "$(cat)" >>` + out)},
		{Name: "other", Target: target("true")},
		{Name: "not.ours"},
	}}
	c := settings(db)
	c.AMQP.URL, c.AMQP.ManagementURL, c.Topology = config.URL(vhost.URL), config.URL(vhost.ManagementURL), spec
	var consume app.Role
	for _, role := range app.Roles() {
		if role.Name == "consume" {
			consume = role
		}
	}
	require.True(t, consume.Configured(c))
	p := start(t, c, consume)
	testkit.Eventually(t, patience, "readiness to name both queues", func() bool {
		reason := p.get(t, "/readyz").Reasons["consume"]
		return strings.Contains(reason, "mail: ") && strings.Contains(reason, "other: ") && strings.Contains(reason, "surefoot topology apply")
	})

	top, err := topology.New(topology.Options{Spec: spec, URL: vhost.URL, ManagementURL: vhost.ManagementURL})
	require.NoError(t, err)
	_, err = top.Apply(t.Context(), topology.ApplyOptions{})
	require.NoError(t, err)
	testkit.Eventually(t, patience, "the role to be ready", func() bool { return p.get(t, "/readyz").code == http.StatusOK })
	_, err = consumer.PauseQueue(t.Context(), db.Pool, db.Schema, "mail", "ann", "INC-7")
	require.NoError(t, err)
	testkit.Eventually(t, patience, "readiness to show the pause", func() bool {
		return strings.Contains(p.get(t, "/readyz").Reasons["consume"], "by ann: INC-7")
	})
	_, err = consumer.ResumeQueue(t.Context(), db.Pool, db.Schema, "mail", "ann", "")
	require.NoError(t, err)

	conn, err := amqp.Dial(vhost.URL)
	require.NoError(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(t, err)
	for _, id := range []string{"good", "flaky", "bad"} {
		require.NoError(t, ch.PublishWithContext(t.Context(), "shop.events", "order.created", true, false,
			amqp.Publishing{MessageId: id, Type: "order.created", Body: []byte("for " + id), DeliveryMode: amqp.Persistent}))
	}
	testkit.Eventually(t, patience, "the program's work", func() bool {
		text, _ := os.ReadFile(out)
		return len(strings.Fields(string(text))) == 6
	})
	text, err := os.ReadFile(out)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"good for good", "flaky for flaky"}, strings.Split(strings.TrimSpace(string(text)), "\n"))
	var dead amqp.Delivery
	testkit.Eventually(t, patience, "the dead letter", func() bool {
		var ok bool
		dead, ok, err = ch.Get("mail.dlq", true)
		return err == nil && ok
	})
	failure := message.FailureOf(dead.Headers)
	require.Equal(t, "bad", dead.MessageId)
	require.Equal(t, "permanent", failure.Class)
	require.Equal(t, "exit 65", failure.Type)
	require.Equal(t, "no such customer\n", failure.Stack)
	testkit.Eventually(t, patience, "the two that are done to be counted, which is after their commit", func() bool {
		return strings.Contains(p.get(t, "/metrics").body, `surefoot_consumer_handled_total{queue="mail",result="done",type="order.created"} 2`)
	})
	require.NoError(t, p.end(t))
}
