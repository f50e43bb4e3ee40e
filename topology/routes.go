package topology

import (
	"context"
	"fmt"
	"slices"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// Routes tells which messages would reach no queue of a vhost. It is what was there when it was read, and safe for concurrent use.
type Routes struct {
	types map[string]string   // of exchanges
	keys  map[string][]string // of the bindings of each exchange
	open  map[string]bool     // exchanges of which it cannot be told
}

// ReadRoutes reads the exchanges, bindings and policies of the vhost through the management API.
func ReadRoutes(ctx context.Context, m *rabbit.Management) (*Routes, error) {
	exchanges, err := m.Exchanges(ctx)
	if err != nil {
		return nil, err
	}
	bindings, err := m.Bindings(ctx)
	if err != nil {
		return nil, err
	}
	policies, err := m.Policies(ctx)
	if err != nil {
		return nil, err
	}
	r := &Routes{types: map[string]string{}, keys: map[string][]string{}, open: map[string]bool{}}
	// What an exchange cannot route may go to an alternate one. Policies that name one are not matched with exchanges: they are rare.
	alternate := slices.ContainsFunc(policies, func(p rabbit.Policy) bool { return p.Definition["alternate-exchange"] != nil })
	for _, e := range exchanges {
		r.types[e.Name] = e.Type
		r.open[e.Name] = alternate || e.Arguments["alternate-exchange"] != nil
	}
	for _, b := range bindings {
		r.keys[b.Source] = append(r.keys[b.Source], b.RoutingKey)
		r.open[b.Source] = r.open[b.Source] || b.DestinationType != "queue" // where another exchange leads is not followed
	}
	return r, nil
}

// Unroutable says why a message with the routing key would reach no queue from the exchange. It is empty when it would reach one, and when
// that cannot be told: of exchanges that are bound to others or have an alternate one, and of types other than topic, direct and fanout.
func (r *Routes) Unroutable(exchange, key string) string {
	kind, there := r.types[exchange]
	if !there {
		return fmt.Sprintf("there is no exchange %q", exchange)
	}
	takes, known := map[string]func(binding string) bool{
		exchangeTypeTopic:  func(binding string) bool { return topicMatches(binding, key) },
		exchangeTypeDirect: func(binding string) bool { return binding == key },
		"fanout":           func(string) bool { return true },
	}[kind]
	if r.open[exchange] || !known || slices.ContainsFunc(r.keys[exchange], takes) {
		return ""
	}
	return fmt.Sprintf("no queue is bound to exchange %q with routing key %q", exchange, key)
}
