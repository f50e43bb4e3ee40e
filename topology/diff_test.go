package topology_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/topology"
)

// vhost is the model: a broker that executes a plan by the broker's rules.
type vhost struct{ topology.State }

func emptyVhost() vhost {
	return vhost{topology.State{Exchanges: map[string]topology.ExchangeState{}, Queues: map[string]topology.QueueState{}, Bindings: map[topology.Binding]string{}}}
}

// execute applies changes as the broker would let it: no binding without both ends, no declaration over something else. Queues with messages are not deleted.
func (v vhost) execute(t require.TestingT, wanted topology.State, plan topology.Plan, prune bool) {
	for _, c := range plan.Changes {
		if c.Prune && !prune {
			continue
		}
		switch {
		case c.Action == topology.ActionCreate && c.Kind == topology.KindExchange:
			require.NotContains(t, v.Exchanges, c.Name)
			v.Exchanges[c.Name] = wanted.Exchanges[c.Name]
		case c.Action == topology.ActionCreate:
			require.NotContains(t, v.Queues, c.Name)
			v.Queues[c.Name] = asFound(wanted.Queues[c.Name])
		case c.Action == topology.ActionBind:
			b := bindingOf(t, wanted, c.Name)
			require.Contains(t, v.Exchanges, b.Exchange, "bound before its exchange is there: %s", c.Name)
			require.Contains(t, v.Queues, b.Queue, "bound before its queue is there: %s", c.Name)
			v.requireWayOut(t, wanted, b)
			v.Bindings[b] = ""
		case c.Action == topology.ActionUnbind:
			b := bindingOf(t, v.State, c.Name)
			require.NotContains(t, wanted.Bindings, b, "a wanted binding removed")
			delete(v.Bindings, b)
		case c.Action == topology.ActionDelete:
			require.NotContains(t, wanted.Queues, c.Name, "a wanted queue deleted")
			v.drop(c.Name)
		case c.Action == topology.ActionReplace && v.Queues[c.Name].Messages == 0:
			require.NotEqual(t, topology.RoleWork, wanted.Queues[c.Name].Role, "a work queue deleted under its bindings")
			v.Queues[c.Name] = asFound(wanted.Queues[c.Name])
		}
	}
}

// requireWayOut: a queue gets events only when its dead letters and retries have a place to go.
func (v vhost) requireWayOut(t require.TestingT, wanted topology.State, b topology.Binding) {
	if wanted.Exchanges[b.Exchange].Type != "topic" {
		return
	}
	dlx := topology.Binding{Exchange: b.Exchange + ".dlx", Queue: b.Queue + ".dlq", RoutingKey: b.Queue}
	require.Contains(t, v.Bindings, dlx, "events before dead letters have a place: %s", b)
	retry := topology.Binding{Exchange: b.Exchange + ".retry", Queue: b.Queue, RoutingKey: b.Queue}
	require.Contains(t, v.Bindings, retry, "events before retries come home: %s", b)
}

func (v vhost) drop(name string) {
	if v.Queues[name].Messages > 0 {
		return
	}
	delete(v.Queues, name)
	maps.DeleteFunc(v.Bindings, func(b topology.Binding, _ string) bool { return b.Queue == name })
}

// asFound is a queue as the management API shows it: without a role.
func asFound(q topology.QueueState) topology.QueueState {
	q.Role = ""
	q.Arguments = maps.Clone(q.Arguments)
	return q
}

func bindingOf(t require.TestingT, s topology.State, name string) topology.Binding {
	for b := range s.Bindings {
		if b.String() == name {
			return b
		}
	}
	require.Fail(t, "no such binding", name)
	return topology.Binding{}
}

func specs() *rapid.Generator[topology.Spec] {
	return rapid.Custom(func(t *rapid.T) topology.Spec {
		names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"orders", "mail", "stock", "pay.v2"}), 1, 4, rapid.ID[string]).Draw(t, "names")
		spec := topology.Spec{Exchange: "shop"}
		for _, name := range names {
			spec.Queues = append(spec.Queues, topology.Queue{
				Name:                 name,
				Exchange:             rapid.SampledFrom([]string{"", "", "audit"}).Draw(t, "exchange"),
				Bindings:             rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"order.*", "#", "pay.done"}), 0, 3, rapid.ID[string]).Draw(t, "bindings"),
				Retry:                slices.Clone(rapid.SampledFrom([][]time.Duration{nil, {time.Second}, {time.Second, time.Minute}, {time.Minute, time.Hour}}).Draw(t, "retry")),
				SingleActiveConsumer: rapid.Bool().Draw(t, "single"),
			})
		}
		return spec
	})
}

func TestAnApplyMakesTheNextPlanEmpty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := emptyVhost()
		for i := range rapid.IntRange(1, 4).Draw(t, "specs") {
			spec := specs().Draw(t, fmt.Sprintf("spec %d", i))
			require.NoError(t, spec.Validate())
			wanted := topology.Desired(spec)
			v.fill(t)
			full := v.full()
			prune := rapid.Bool().Draw(t, "prune")
			v.execute(t, wanted, topology.Diff(wanted, v.State), prune)

			for name := range full {
				require.Contains(t, v.Queues, name, "a queue with messages is gone")
			}
			again := topology.Diff(wanted, v.State)
			for _, c := range again.Changes {
				switch {
				case c.Prune && !prune, c.Action == topology.ActionConflict:
				case c.Action == topology.ActionDelete, c.Action == topology.ActionReplace:
					require.Contains(t, full, c.Name, "still to do after an apply: %+v", c)
				default:
					require.Fail(t, "still to do after an apply", "%+v", c)
				}
			}
			v.requireWhole(t, wanted)
		}
	})
}

// fill puts messages into some queues.
func (v vhost) fill(t *rapid.T) {
	for _, name := range slices.Sorted(maps.Keys(v.Queues)) {
		q := v.Queues[name]
		q.Messages = rapid.SampledFrom([]int64{0, 0, 1}).Draw(t, "messages of "+name)
		v.Queues[name] = q
	}
}

func (v vhost) full() map[string]bool {
	full := map[string]bool{}
	for name, q := range v.Queues {
		if q.Messages > 0 {
			full[name] = true
		}
	}
	return full
}

// requireWhole: everything wanted is there, if perhaps with the properties of an earlier spec.
func (v vhost) requireWhole(t require.TestingT, wanted topology.State) {
	for name := range wanted.Exchanges {
		require.Contains(t, v.Exchanges, name)
	}
	for name := range wanted.Queues {
		require.Contains(t, v.Queues, name)
	}
	for b := range wanted.Bindings {
		require.Contains(t, v.Bindings, b)
	}
}

func TestAFreshVhostIsSafe(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		spec := specs().Draw(t, "spec")
		v := emptyVhost()
		wanted := topology.Desired(spec)
		v.execute(t, wanted, topology.Diff(wanted, v.State), false)
		for _, q := range spec.WithDefaults().Queues {
			report := topology.Check(v.State, q.Path())
			require.NoError(t, report.Err())
			require.Empty(t, report.Unchecked)
		}
	})
}

func TestDesiredIsTheContract(t *testing.T) {
	t.Parallel()
	s := topology.Desired(topology.Spec{Exchange: "shop.events", Queues: []topology.Queue{{Name: "orders.saga", Bindings: []string{"order.*"}}}})
	require.Equal(t, map[string]topology.ExchangeState{
		"shop.events":       {Type: "topic", Durable: true},
		"shop.events.dlx":   {Type: "direct", Durable: true},
		"shop.events.retry": {Type: "direct", Durable: true},
	}, s.Exchanges)
	require.Equal(t, map[string]topology.QueueState{
		"orders.saga": {Durable: true, Role: topology.RoleWork, Arguments: map[string]any{
			"x-queue-type": "quorum", "x-dead-letter-exchange": "shop.events.dlx", "x-dead-letter-routing-key": "orders.saga",
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-delivery-limit": int64(20),
		}},
		"orders.saga.retry": {Durable: true, Role: topology.RoleRetry, Arguments: map[string]any{
			"x-queue-type": "quorum", "x-dead-letter-exchange": "shop.events.retry", "x-dead-letter-routing-key": "orders.saga",
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-message-ttl": int64(30000),
		}},
		"orders.saga.dlq": {Durable: true, Role: topology.RoleDeadLetters, Arguments: map[string]any{
			"x-queue-type": "quorum", "x-delivery-limit": int64(1000000),
		}},
	}, s.Queues)
	require.Equal(t, map[topology.Binding]string{
		{Exchange: "shop.events", Queue: "orders.saga", RoutingKey: "order.*"}:             "",
		{Exchange: "shop.events.retry", Queue: "orders.saga", RoutingKey: "orders.saga"}:   "",
		{Exchange: "shop.events.dlx", Queue: "orders.saga.dlq", RoutingKey: "orders.saga"}: "",
	}, s.Bindings)
}
