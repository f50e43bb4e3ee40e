package app_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/topology"
)

// Every role at work, with all that each logs about its connections: testkit's logger refuses a line with a key twice.
func TestNoLogLineHasAKeyTwice(t *testing.T) {
	t.Parallel()
	db, vhost := testkit.Database(t), testkit.Broker(t)
	spec := topology.Spec{Exchange: "shop.events", Queues: []topology.Queue{{Name: "mail", Target: &topology.Target{Exec: []string{"true"}}}}}
	_, err := db.Pool.Exec(t.Context(), `CREATE TABLE `+db.Schema+`.orders (id text PRIMARY KEY, status text, since timestamptz);
		INSERT INTO `+db.Schema+`.orders VALUES ('1', 'new', now() - interval '1 hour')`)
	require.NoError(t, err)
	c := settings(db)
	c.AMQP.URL, c.AMQP.ManagementURL, c.Topology = config.URL(vhost.URL), config.URL(vhost.ManagementURL), spec
	c.Watchdog.Rules = []config.Rule{{
		Name: "unpaid", Table: db.Schema + ".orders", Key: "id", Status: "status", Stuck: []string{"new"}, Clock: "since",
		Limit: time.Minute, NewStatus: "cancelled", EventType: "order.cancelled", Reason: "TIMEOUT",
	}}
	p := start(t, c, app.Roles()...)
	testkit.Eventually(t, patience, "the missing queue to be reported", func() bool {
		return strings.Contains(p.get(t, "/readyz").Reasons["consume"], "surefoot topology apply")
	})

	top, err := topology.New(topology.Options{Spec: spec, URL: vhost.URL, ManagementURL: vhost.ManagementURL})
	require.NoError(t, err)
	_, err = top.Apply(t.Context(), topology.ApplyOptions{})
	require.NoError(t, err)
	testkit.Eventually(t, patience, "all roles to be ready", func() bool { return p.get(t, "/readyz").code == http.StatusOK })
	require.NoError(t, p.end(t))
}
