package topology_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/topology"
)

// Names that the broker takes become names that Kubernetes takes, two of them never the same one.
func TestExportedResourcesHaveNamesOfKubernetes(t *testing.T) {
	t.Parallel()
	spec := topology.Spec{Exchange: "Shop Events", Queues: []topology.Queue{
		{Name: "orders.saga", Bindings: []string{"order.*", "order.#", "#"}}, {Name: "Orders.saga"}, {Name: "orders_saga"}, {Name: "orders..saga"}, {Name: "日本"}, {Name: strings.Repeat("q", 240)},
	}}
	require.NoError(t, spec.Validate())
	dns := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	seen := map[string]bool{}
	for _, item := range topology.ExportResources(spec, topology.ExportOptions{}).Items {
		name := item.Kind + " " + item.Metadata.Name
		require.False(t, seen[name], name)
		seen[name] = true
		require.Regexp(t, dns, item.Metadata.Name)
		require.LessOrEqual(t, len(item.Metadata.Name), 253)
	}
	require.True(t, seen["Queue orders.saga.retry"], "a name that fits is kept")
}

// A name with characters of regular expressions gives rights on itself alone.
func TestRightsAreOfExactlyTheNamedThings(t *testing.T) {
	t.Parallel()
	spec := topology.Spec{Exchange: "x", Queues: []topology.Queue{{Name: "a.b|.*"}}}
	require.NoError(t, spec.Validate())
	users, permissions := topology.Rights(spec, topology.ExportOptions{Vhost: "v", Exchanges: []string{"audit"}})
	require.Len(t, permissions, len(users))
	for _, p := range permissions {
		require.Equal(t, "v", p.Vhost)
		for _, pattern := range []string{p.Configure, p.Write, p.Read} {
			re := regexp.MustCompile(pattern)
			for _, other := range []string{"axb|.*", "a.b", "other", "x.y", "", "amq.default.x"} {
				require.False(t, other != "" && re.MatchString(other), "%s: %s takes %s", p.User, pattern, other)
			}
		}
		if p.User == "surefoot-relay" {
			require.Equal(t, `^(audit|x)$`, p.Write)
		}
	}
	text, err := json.Marshal(topology.Export(spec, topology.ExportOptions{}))
	require.NoError(t, err)
	require.NotContains(t, string(text), `"users"`, "only when asked for")
}
