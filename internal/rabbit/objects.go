package rabbit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

// queueQuery leaves the statistics out, which are costly and up to 5 s old, and asks for the totals, which the queue itself keeps.
const queueQuery = "?disable_stats=true&enable_queue_totals=true"

// Queue is a queue as the management API shows it. Numbers in the arguments are json.Number.
type Queue struct {
	Name       string         `json:"name"`
	Type       string         `json:"type"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Exclusive  bool           `json:"exclusive"`
	Arguments  map[string]any `json:"arguments"`
	// Messages, ready and unacknowledged, may lag by some seconds; absent, they are 0. A passive declare is exact for the ready ones.
	Messages       int64 `json:"messages"`
	Unacknowledged int64 `json:"messages_unacknowledged"`
}

// Exchange is an exchange as the management API shows it.
type Exchange struct {
	Name       string         `json:"name"`
	Type       string         `json:"type"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Internal   bool           `json:"internal"`
	Arguments  map[string]any `json:"arguments"`
}

// Binding joins an exchange to a queue or another exchange.
type Binding struct {
	Source          string         `json:"source"`
	Destination     string         `json:"destination"`
	DestinationType string         `json:"destination_type"` // "queue" or "exchange"
	RoutingKey      string         `json:"routing_key"`
	Arguments       map[string]any `json:"arguments"`
	PropertiesKey   string         `json:"properties_key"` // tells it from others between the same two
}

// Policy changes queues and exchanges whose name matches. Of each kind (user's and operator's) one applies to a queue.
type Policy struct {
	Name       string         `json:"name"`
	Pattern    string         `json:"pattern"`
	ApplyTo    string         `json:"apply-to"`
	Priority   int            `json:"priority"`
	Definition map[string]any `json:"definition"`
	Operator   bool           `json:"-"`
}

// Queues returns all queues of the vhost.
func (m *Management) Queues(ctx context.Context) ([]Queue, error) {
	return queuePages[Queue](ctx, m, queueQuery)
}

// queuePages reads the vhost's queues page by page, with what the query asks of each.
func queuePages[T any](ctx context.Context, m *Management, query string) ([]T, error) {
	var all []T
	for page, pages := 1, 1; page <= pages; page++ {
		var answer struct {
			Items []T `json:"items"`
			Pages int `json:"page_count"`
		}
		path := m.inVhost("queues") + query + "&pagination=true&page_size=" + strconv.Itoa(m.queuePage) + "&page=" + strconv.Itoa(page)
		if err := m.list(ctx, "queues", path, &answer); err != nil {
			return nil, err
		}
		all, pages = append(all, answer.Items...), answer.Pages
	}
	return all, nil
}

// Queue returns one queue, or ErrNotFound. Its totals come from the statistics.
func (m *Management) Queue(ctx context.Context, name string) (Queue, error) {
	var q Queue
	err := m.get(ctx, fmt.Sprintf("read queue %q", name), m.inVhost("queues", name), &q)
	return q, err
}

// Exchanges returns all exchanges of the vhost, the broker's own included.
func (m *Management) Exchanges(ctx context.Context) (all []Exchange, err error) {
	err = m.list(ctx, "exchanges", m.inVhost("exchanges"), &all)
	return all, err
}

// Bindings returns all bindings of the vhost, those of the default exchange included.
func (m *Management) Bindings(ctx context.Context) (all []Binding, err error) {
	err = m.list(ctx, "bindings", m.inVhost("bindings"), &all)
	return all, err
}

// Unbind removes a binding as Bindings returned it. AMQP's own unbind needs arguments of the very same integer types, which are not shown, and
// does nothing without an error when they differ. A binding that is gone is no error.
func (m *Management) Unbind(ctx context.Context, b Binding) error {
	kind := map[string]string{"queue": "q", "exchange": "e"}[b.DestinationType]
	path := m.inVhost("bindings", "e", b.Source, kind, b.Destination, b.PropertiesKey)
	err := m.call(ctx, http.MethodDelete, fmt.Sprintf("unbind %q from %q", b.Destination, b.Source), path, nil)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// Policies returns the users' and the operators' policies of the vhost. They are current, unlike what the queues' statistics show of them.
func (m *Management) Policies(ctx context.Context) ([]Policy, error) {
	var users, operators []Policy
	if err := m.list(ctx, "policies", m.inVhost("policies"), &users); err != nil {
		return nil, err
	}
	if err := m.list(ctx, "operator policies", m.inVhost("operator-policies"), &operators); err != nil {
		return nil, err
	}
	for i := range operators {
		operators[i].Operator = true
	}
	return append(users, operators...), nil
}
