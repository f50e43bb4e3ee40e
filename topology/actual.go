package topology

import (
	"context"
	"errors"
	"fmt"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// Read reads the vhost through the management API, for [Diff], [Check] and [State.Number]. When the user may not see policies they are left
// out, and unchecked says so.
func Read(ctx context.Context, m *rabbit.Management) (state State, unchecked []string, err error) {
	state = newState()
	if err := state.readExchanges(ctx, m); err != nil {
		return state, nil, err
	}
	if err := state.readQueues(ctx, m); err != nil {
		return state, nil, err
	}
	if err := state.readBindings(ctx, m); err != nil {
		return state, nil, err
	}
	policies, err := m.Policies(ctx)
	if errors.Is(err, rabbit.ErrManagementDenied) {
		return state, []string{fmt.Sprintf("the policies of the vhost, which may change what queues do: %s", err)}, nil
	}
	state.addPolicies(policies)
	return state, nil, err
}

// StateOf is a State of one queue and the policies of its vhost, for [State.Number].
func StateOf(q rabbit.Queue, policies []rabbit.Policy) State {
	state := newState()
	state.addQueue(q)
	state.addPolicies(policies)
	return state
}

func (s State) readExchanges(ctx context.Context, m *rabbit.Management) error {
	exchanges, err := m.Exchanges(ctx)
	for _, e := range exchanges {
		if e.Name != "" {
			s.Exchanges[e.Name] = ExchangeState{Type: e.Type, Durable: e.Durable, AutoDelete: e.AutoDelete, Internal: e.Internal}
		}
	}
	return err
}

func (s State) readQueues(ctx context.Context, m *rabbit.Management) error {
	queues, err := m.Queues(ctx)
	for _, q := range queues {
		s.addQueue(q)
	}
	return err
}

func (s State) addQueue(q rabbit.Queue) {
	arguments := normalArguments(q.Arguments)
	if _, named := arguments[argType]; !named && q.Type != "" {
		arguments[argType] = q.Type
	}
	s.Queues[q.Name] = QueueState{Durable: q.Durable, AutoDelete: q.AutoDelete, Exclusive: q.Exclusive, Arguments: arguments, Messages: q.Messages}
}

func (s State) readBindings(ctx context.Context, m *rabbit.Management) error {
	bindings, err := m.Bindings(ctx)
	for _, b := range bindings {
		if b.DestinationType == "queue" && b.Source != "" {
			s.Bindings[Binding{Exchange: b.Source, Queue: b.Destination, RoutingKey: b.RoutingKey, Arguments: canonical(b.Arguments)}] = b.PropertiesKey
		}
	}
	return err
}

func (s *State) addPolicies(policies []rabbit.Policy) {
	for _, p := range policies {
		s.Policies = append(s.Policies, Policy{
			Name: p.Name, Pattern: p.Pattern, ApplyTo: p.ApplyTo, Priority: p.Priority, Operator: p.Operator, Definition: normalArguments(p.Definition),
		})
	}
}
