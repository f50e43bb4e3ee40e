package topology

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// State is what is, or shall be, in a vhost.
type State struct {
	Exchanges map[string]ExchangeState
	Queues    map[string]QueueState
	// Bindings with the key by which the management API knows them, empty for wanted ones.
	Bindings map[Binding]string
	// Policies of users and operators; only in an actual state.
	Policies []Policy
}

// ExchangeState is an exchange. All wanted ones are durable and not deleted automatically.
type ExchangeState struct {
	Type       string
	Durable    bool
	AutoDelete bool
	Internal   bool
}

// QueueState is a queue.
type QueueState struct {
	Durable    bool
	AutoDelete bool
	Exclusive  bool
	// Arguments as declared; whole numbers are int64. The type is x-queue-type, always set.
	Arguments map[string]any
	// Role is what the queue is for; only in a wanted state.
	Role Role
	// Messages ready and unacknowledged; only in an actual state, and some seconds old.
	Messages int64
}

// Role is what a queue is for.
type Role string

// The roles.
const (
	RoleWork        Role = "work"
	RoleRetry       Role = "retry"
	RoleDeadLetters Role = "dead letters"
)

// Binding joins an exchange to a queue.
type Binding struct {
	Exchange, Queue, RoutingKey string
	// Arguments of a binding as canonical text; wanted bindings have none.
	Arguments string
}

// Policy is a policy of the vhost.
type Policy struct {
	Name, Pattern, ApplyTo string
	Priority               int
	Operator               bool
	Definition             map[string]any // whole numbers are int64
}

func newState() State {
	return State{Exchanges: map[string]ExchangeState{}, Queues: map[string]QueueState{}, Bindings: map[Binding]string{}}
}

func (s State) bound(b Binding) bool {
	_, there := s.Bindings[b]
	return there
}

// bindingsOf returns the queue's bindings in order, without that of the default exchange.
func (s State) bindingsOf(queue string) []Binding {
	var found []Binding
	for b := range s.Bindings {
		if b.Queue == queue && b.Exchange != "" {
			found = append(found, b)
		}
	}
	slices.SortFunc(found, compareBindings)
	return found
}

func compareBindings(a, b Binding) int {
	return strings.Compare(a.Queue+"\x00"+a.Exchange+"\x00"+a.RoutingKey+"\x00"+a.Arguments, b.Queue+"\x00"+b.Exchange+"\x00"+b.RoutingKey+"\x00"+b.Arguments)
}

// Arguments that decide what a queue does with messages. Others, such as x-queue-leader-locator, may differ.
const (
	argType            = "x-queue-type"
	argDLX             = "x-dead-letter-exchange"
	argDLKey           = "x-dead-letter-routing-key"
	argStrategy        = "x-dead-letter-strategy"
	argOverflow        = "x-overflow"
	argDeliveryLimit   = "x-delivery-limit"
	argTTL             = "x-message-ttl"
	argExpires         = "x-expires"
	argMaxLength       = "x-max-length"
	argMaxLengthBytes  = "x-max-length-bytes"
	argSingleActive    = "x-single-active-consumer"
	typeQuorum         = "quorum"
	strategyAtLeast    = "at-least-once"
	overflowReject     = "reject-publish"
	workDeliveryLimit  = int64(20)
	dlqDeliveryLimit   = int64(1_000_000)
	exchangeTypeTopic  = "topic"
	exchangeTypeDirect = "direct"
)

func decisiveArguments() []string {
	return []string{
		argType, argDLX, argDLKey, argStrategy, argOverflow, argDeliveryLimit, argTTL, argExpires,
		argMaxLength, argMaxLengthBytes, argSingleActive,
	}
}

// normal makes values of JSON and of AMQP comparable: int32 and int64 of one value are equal to the broker too.
func normal(value any) any {
	switch v := value.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		return v.String()
	case int:
		return int64(v)
	case int8:
		return int64(v)
	case int16:
		return int64(v)
	case int32:
		return int64(v)
	case uint8:
		return int64(v)
	case uint16:
		return int64(v)
	case uint32:
		return int64(v)
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return value
}

func normalArguments(arguments map[string]any) map[string]any {
	out := make(map[string]any, len(arguments))
	for k, v := range arguments {
		out[k] = normal(v)
	}
	return out
}

// canonical is arguments as one comparable text.
func canonical(arguments map[string]any) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(arguments)) {
		parts = append(parts, fmt.Sprintf("%s=%v", k, normal(arguments[k])))
	}
	return strings.Join(parts, " ")
}
