package topology_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/topology"
)

func TestWhatReachesNoQueue(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	put := func(path string, body map[string]any) {
		t.Helper()
		s.API(t, http.MethodPut, "/api/"+path, body, nil)
	}
	bind := func(exchange, kind, to, key string) {
		t.Helper()
		s.API(t, http.MethodPost, "/api/bindings/"+s.Vhost+"/e/"+exchange+"/"+kind+"/"+to, map[string]any{"routing_key": key}, nil)
	}
	for name, kind := range map[string]string{"topics": "topic", "keys": "direct", "all": "fanout", "none": "fanout", "values": "headers", "first": "topic"} {
		put("exchanges/"+s.Vhost+"/"+name, map[string]any{"type": kind, "durable": true})
	}
	put("exchanges/"+s.Vhost+"/spare", map[string]any{"type": "topic", "durable": true, "arguments": map[string]any{"alternate-exchange": "all"}})
	put("queues/"+s.Vhost+"/q", map[string]any{"durable": true})
	bind("topics", "q", "q", "order.*")
	bind("keys", "q", "q", "order.*")
	bind("all", "q", "q", "")
	bind("first", "e", "topics", "mail.#")

	told := func() map[string]string {
		routes, err := topology.ReadRoutes(t.Context(), s.management(t))
		require.NoError(t, err)
		unroutable := map[string]string{}
		for _, exchange := range []string{"topics", "keys", "all", "none", "values", "first", "spare", "missing"} {
			for _, key := range []string{"order.paid", "order.*", "a"} {
				if why := routes.Unroutable(exchange, key); why != "" {
					unroutable[exchange+" "+key] = why
				}
			}
		}
		return unroutable
	}
	unbound := func(exchange, key string) string {
		return `no queue is bound to exchange "` + exchange + `" with routing key "` + key + `"`
	}
	missing := `there is no exchange "missing"`
	require.Equal(t, map[string]string{
		"topics a": unbound("topics", "a"), "keys order.paid": unbound("keys", "order.paid"), "keys a": unbound("keys", "a"),
		"none order.paid": unbound("none", "order.paid"), "none order.*": unbound("none", "order.*"), "none a": unbound("none", "a"),
		"missing order.paid": missing, "missing order.*": missing, "missing a": missing,
	}, told())

	put("policies/"+s.Vhost+"/spare", map[string]any{"pattern": "^topics$", "apply-to": "exchanges", "definition": map[string]any{"alternate-exchange": "all"}})
	require.Equal(t, map[string]string{"missing order.paid": missing, "missing order.*": missing, "missing a": missing}, told())
}
