package topology

// Desired returns the state that a spec asks for. It is pure; the spec should be valid.
func Desired(spec Spec) State {
	s := newState()
	for _, q := range spec.WithDefaults().Queues {
		s.addExchanges(q.Exchange)
		s.addQueues(q)
		for _, pattern := range q.Bindings {
			s.Bindings[Binding{Exchange: q.Exchange, Queue: q.Name, RoutingKey: pattern}] = ""
		}
		s.Bindings[Binding{Exchange: q.Exchange + dlxSuffix, Queue: q.DLQ(), RoutingKey: q.Name}] = ""
		s.Bindings[Binding{Exchange: q.Exchange + retrySuffix, Queue: q.Name, RoutingKey: q.Name}] = ""
	}
	return s
}

func (s State) addExchanges(name string) {
	s.Exchanges[name] = ExchangeState{Type: exchangeTypeTopic, Durable: true}
	s.Exchanges[name+dlxSuffix] = ExchangeState{Type: exchangeTypeDirect, Durable: true}
	s.Exchanges[name+retrySuffix] = ExchangeState{Type: exchangeTypeDirect, Durable: true}
}

// addQueues always sends the type: the vhost's default can change what an omitted one means.
func (s State) addQueues(q Queue) {
	work := QueueState{Durable: true, Role: RoleWork, Arguments: map[string]any{
		argType: typeQuorum, argDLX: q.Exchange + dlxSuffix, argDLKey: q.Name,
		argStrategy: strategyAtLeast, argOverflow: overflowReject, argDeliveryLimit: workDeliveryLimit,
	}}
	if q.SingleActiveConsumer {
		work.Arguments[argSingleActive] = true
	}
	s.Queues[q.Name] = work
	for _, tier := range q.Tiers() {
		s.Queues[tier.Queue] = QueueState{Durable: true, Role: RoleRetry, Arguments: map[string]any{
			argType: typeQuorum, argDLX: q.Exchange + retrySuffix, argDLKey: q.Name,
			argStrategy: strategyAtLeast, argOverflow: overflowReject, argTTL: tier.Delay.Milliseconds(),
		}}
	}
	s.Queues[q.DLQ()] = QueueState{Durable: true, Role: RoleDeadLetters, Arguments: map[string]any{
		argType: typeQuorum, argDeliveryLimit: dlqDeliveryLimit,
	}}
}
