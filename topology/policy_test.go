package topology_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/topology"
)

// One policy of each kind applies, that of the highest priority whose pattern and kind of queue match; the lower number wins.
func TestWhichPolicyCounts(t *testing.T) {
	t.Parallel()
	limit := func(n int64) map[string]any { return map[string]any{"delivery-limit": n} }
	for name, c := range map[string]struct {
		policies []topology.Policy
		problem  string // empty: safe
		opaque   bool
	}{
		"higher priority first":  {policies: []topology.Policy{{Pattern: "^q$", ApplyTo: "all", Priority: 2, Definition: limit(50)}, {Pattern: "^q$", ApplyTo: "all", Priority: 1, Definition: limit(3)}}},
		"higher priority second": {policies: []topology.Policy{{Pattern: "^q$", ApplyTo: "all", Priority: 1, Definition: limit(50)}, {Name: "p", Pattern: "^q$", ApplyTo: "all", Priority: 2, Definition: limit(3)}}, problem: "lowered to 3 by policy p"},
		"operator's counts too":  {policies: []topology.Policy{{Pattern: "^q$", ApplyTo: "all", Priority: 9, Definition: limit(50)}, {Name: "o", Pattern: "^q$", ApplyTo: "queues", Operator: true, Definition: limit(4)}}, problem: "lowered to 4 by operator policy o"},
		"another pattern":        {policies: []topology.Policy{{Pattern: "^other", ApplyTo: "all", Definition: limit(3)}}},
		"quorum queues":          {policies: []topology.Policy{{Pattern: "^q$", ApplyTo: "quorum_queues", Definition: limit(3)}}, problem: "lowered to 3"},
		"classic queues":         {policies: []topology.Policy{{Pattern: "^q$", ApplyTo: "classic_queues", Definition: limit(3)}}},
		"exchanges":              {policies: []topology.Policy{{Pattern: "^q$", ApplyTo: "exchanges", Definition: limit(3)}}},
		"no limit, which is one": {policies: []topology.Policy{{Pattern: "^q$", ApplyTo: "all", Definition: limit(-1)}}, problem: "lowered to -1"},
		"beyond Go's patterns":   {policies: []topology.Policy{{Pattern: "^(?!x)q$", ApplyTo: "queues", Definition: limit(3)}}, opaque: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := topology.Desired(topology.Spec{Exchange: "x", Queues: []topology.Queue{{Name: "q"}}})
			state.Policies = c.policies
			report := topology.Check(state, topology.Queue{Name: "q"}.Path())
			if c.problem == "" {
				require.NoError(t, report.Err())
			} else {
				require.ErrorContains(t, report.Err(), c.problem)
				require.Len(t, report.Findings, 1)
			}
			require.Equal(t, c.opaque, len(report.Unchecked) > 0, "%v", report.Unchecked)
		})
	}
}

func TestWhereDeadLettersGo(t *testing.T) {
	t.Parallel()
	path := topology.Queue{Name: "q"}.Path()
	for name, c := range map[string]struct {
		kind, dlx, key, binding string
		problem                 string
		unchecked               int
	}{
		"default exchange":              {dlx: "", key: "q.dlq"},
		"default exchange, another key": {dlx: "", key: "elsewhere", problem: "no binding leads"},
		"fanout":                        {kind: "fanout", dlx: "d", binding: "anything"},
		"topic":                         {kind: "topic", dlx: "d", key: "q", binding: "*"},
		"topic, another key":            {kind: "topic", dlx: "d", key: "q", binding: "p.*", problem: "no binding leads"},
		"topic without key, all":        {kind: "topic", dlx: "d", key: "-", binding: "#"},
		"topic without key, not all":    {kind: "topic", dlx: "d", key: "-", binding: "order.*", problem: "no binding leads"},
		"topic without key, one word":   {kind: "topic", dlx: "d", key: "-", binding: "*", problem: "no binding leads"},
		"headers":                       {kind: "headers", dlx: "d", binding: "", unchecked: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := topology.Desired(topology.Spec{Exchange: "x", Queues: []topology.Queue{{Name: "q"}}})
			work := state.Queues["q"]
			work.Arguments["x-dead-letter-exchange"], work.Arguments["x-dead-letter-routing-key"] = c.dlx, c.key
			if c.key == "-" {
				delete(work.Arguments, "x-dead-letter-routing-key")
			}
			if c.dlx != "" {
				state.Exchanges[c.dlx] = topology.ExchangeState{Type: c.kind, Durable: true}
				state.Bindings[topology.Binding{Exchange: c.dlx, Queue: "q.dlq", RoutingKey: c.binding}] = ""
			}
			report := topology.Check(state, path)
			if c.problem == "" {
				require.NoError(t, report.Err())
			} else {
				require.ErrorContains(t, report.Err(), c.problem)
			}
			require.Len(t, report.Unchecked, c.unchecked)
		})
	}
}
