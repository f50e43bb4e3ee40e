package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Action is what a change does, or what hinders it.
type Action string

// The actions.
const (
	ActionCreate Action = "create"
	ActionBind   Action = "bind"
	// ActionConflict: it exists with other immutable properties; Detail says what differs and the way out.
	ActionConflict Action = "conflict"
	// ActionUnbind: a binding that is no longer wanted; only with prune.
	ActionUnbind Action = "unbind"
	// ActionDelete: a queue that is no longer wanted; only with prune, and only when it is empty and unused.
	ActionDelete Action = "delete"
	// ActionReplace: a retry or dead-letter queue that conflicts is deleted, when empty and unused, and made anew; only with prune.
	ActionReplace Action = "replace"
)

// Kind of the thing that a change concerns.
type Kind string

// The kinds.
const (
	KindExchange Kind = "exchange"
	KindQueue    Kind = "queue"
	KindBinding  Kind = "binding"
)

// Change is one step from the actual to the wanted state, or an obstacle on the way.
type Change struct {
	Action Action `json:"action"`
	Kind   Kind   `json:"kind"`
	// Name of the exchange or queue; of a binding, "exchange -> queue (key)".
	Name string `json:"name"`
	// Detail for people.
	Detail string `json:"detail"`
	// Prune: done only by apply --prune.
	Prune bool `json:"prune"`
	// Done by this apply.
	Done bool `json:"done"`

	binding    Binding
	bindingKey string // of a binding to remove
	exchange   ExchangeState
	queue      QueueState // wanted, or for a deletion the actual one
	found      QueueState // the actual one of a replacement
	work       string     // for a deletion, the work queue that it belongs to
}

// Plan is what lies between actual and wanted, in the order in which it is applied.
type Plan struct {
	Changes []Change `json:"changes"`
}

// Pending returns how many changes an apply would make, with or without prune.
func (p Plan) Pending(prune bool) int {
	return p.count(func(c Change) bool { return c.Action != ActionConflict && (prune || !c.Prune) })
}

// Conflicts returns how many things exist with other properties: those that no apply changes, and those that only one with prune does.
func (p Plan) Conflicts() int {
	return p.count(func(c Change) bool { return c.Action == ActionConflict || c.Action == ActionReplace })
}

func (p Plan) count(counts func(Change) bool) int {
	n := 0
	for _, c := range p.Changes {
		if !c.Done && counts(c) {
			n++
		}
	}
	return n
}

// Diff compares. It is pure. The order is that of safe declaration: exchanges, dead-letter queues with their bindings, retry queues, work queues,
// then their bindings, so that no event reaches a queue whose way out is not there yet; what is pruned comes last.
func Diff(wanted, actual State) Plan {
	d := differ{wanted: wanted, actual: actual}
	d.exchanges()
	for _, role := range []Role{RoleDeadLetters, RoleRetry, RoleWork} {
		d.queues(role)
		d.binds(role)
	}
	d.unbinds()
	d.leftovers()
	return Plan{d.changes}
}

type differ struct {
	wanted, actual State
	changes        []Change
}

func (d *differ) add(c Change) { d.changes = append(d.changes, c) }

func (d *differ) exchanges() {
	for _, name := range slices.Sorted(maps.Keys(d.wanted.Exchanges)) {
		want := d.wanted.Exchanges[name]
		have, exists := d.actual.Exchanges[name]
		switch {
		case !exists:
			d.add(Change{Action: ActionCreate, Kind: KindExchange, Name: name, Detail: want.Type, exchange: want})
		case have != want:
			d.add(Change{Action: ActionConflict, Kind: KindExchange, Name: name, Detail: fmt.Sprintf(
				"is %s, should be %s, and an exchange cannot be changed; choose another exchange name in the spec, "+
					"or delete this one when nothing publishes to it", describeExchange(have), describeExchange(want))})
		}
	}
}

func describeExchange(e ExchangeState) string {
	parts := []string{e.Type}
	for _, p := range []struct {
		on   bool
		name string
	}{{e.Durable, "durable"}, {!e.Durable, "transient"}, {e.AutoDelete, "auto-delete"}, {e.Internal, "internal"}} {
		if p.on {
			parts = append(parts, p.name)
		}
	}
	return strings.Join(parts, " ")
}

func (d *differ) queues(role Role) {
	for _, name := range slices.Sorted(maps.Keys(d.wanted.Queues)) {
		want := d.wanted.Queues[name]
		if want.Role != role {
			continue
		}
		have, exists := d.actual.Queues[name]
		if !exists {
			d.add(Change{Action: ActionCreate, Kind: KindQueue, Name: name, Detail: string(role) + ": " + canonical(want.Arguments), queue: want})
			continue
		}
		if differences := differences(want, have); len(differences) > 0 {
			d.conflict(name, want, have, strings.Join(differences, "; "))
		}
	}
}

// conflict offers to replace queues that an outage of milliseconds does no harm: what is published to a missing retry or dead-letter queue is returned,
// and the original kept. An event for a missing work queue could be lost, when another queue takes it too.
func (d *differ) conflict(name string, want, have QueueState, differences string) {
	c := Change{Action: ActionConflict, Kind: KindQueue, Name: name}
	switch want.Role {
	case RoleWork:
		c.Detail = fmt.Sprintf("%s; a queue cannot be changed. Without loss: (1) give the queue a new name in the spec, such as %s, and apply; the old one stays beside it, and both get every event. "+
			"(2) Go on consuming the old one, too, until it is empty. (3) `surefoot topology apply --prune` unbinds the old one, and deletes it once it is empty and unused", differences, nextName(name))
		d.add(c)
	case RoleRetry, RoleDeadLetters:
		c.Action, c.Prune, c.queue, c.found = ActionReplace, true, want, have
		c.Detail = fmt.Sprintf("%s; a queue cannot be changed. Without loss: stop its consumers, let it run empty (%d messages now), then `surefoot topology apply --prune` makes it anew", differences, have.Messages)
		if want.Role == RoleRetry {
			c.Detail += "; or give the queue a ladder of other delays, whose queues are made beside this one"
		}
		d.add(c)
	}
}

// nextName is orders.saga.v2 for orders.saga, and v3 after v2.
func nextName(name string) string {
	base, version := name, 2
	if i := strings.LastIndex(name, ".v"); i >= 0 {
		var n int
		if _, err := fmt.Sscanf(name[i:], ".v%d", &n); err == nil && n > 1 && n < 1000 {
			base, version = name[:i], n+1
		}
	}
	return fmt.Sprintf("%s.v%d", base, version)
}

// differences names what cannot be changed.
func differences(want, have QueueState) []string {
	var out []string
	if !have.Durable {
		out = append(out, "it is transient, should be durable")
	}
	if have.AutoDelete {
		out = append(out, "it is deleted automatically, should stay")
	}
	if have.Exclusive {
		out = append(out, "it is exclusive to one connection")
	}
	for _, name := range decisiveArguments() {
		wanted, wants := want.Arguments[name]
		found, has := have.Arguments[name]
		if wants == has && wanted == found {
			continue
		}
		out = append(out, fmt.Sprintf("%s is %s, should be %s", name, orNone(found, has), orNone(wanted, wants)))
	}
	return out
}

func orNone(value any, there bool) string {
	if !there {
		return "not set"
	}
	return fmt.Sprint(value)
}

// binds brings retries and dead letters home first, and events last.
func (d *differ) binds(role Role) {
	events := func(b Binding) int {
		if d.wanted.Exchanges[b.Exchange].Type == exchangeTypeTopic {
			return 1
		}
		return 0
	}
	all := slices.SortedFunc(maps.Keys(d.wanted.Bindings), compareBindings)
	slices.SortStableFunc(all, func(a, b Binding) int { return events(a) - events(b) })
	for _, b := range all {
		if d.wanted.Queues[b.Queue].Role == role && !d.actual.bound(b) {
			d.add(Change{Action: ActionBind, Kind: KindBinding, Name: b.String(), binding: b})
		}
	}
}

// String is "exchange -> queue (key)".
func (b Binding) String() string {
	text := fmt.Sprintf("%s -> %s (%s)", b.Exchange, b.Queue, b.RoutingKey)
	if b.Arguments != "" {
		text += " " + b.Arguments
	}
	return text
}

// unbinds are for wanted queues; those of leftover queues come with them.
func (d *differ) unbinds() {
	for _, name := range slices.Sorted(maps.Keys(d.wanted.Queues)) {
		for _, b := range d.actual.bindingsOf(name) {
			if !d.wanted.bound(b) {
				d.add(Change{Action: ActionUnbind, Kind: KindBinding, Name: b.String(), Detail: "not in the spec", Prune: true, binding: b, bindingKey: d.actual.Bindings[b]})
			}
		}
	}
}

// leftovers are queues of earlier specs: retry queues first, then the work queues that they lead to, then the dead-letter queues that those lead to.
func (d *differ) leftovers() {
	var found []leftover
	for _, name := range slices.Sorted(maps.Keys(d.actual.Queues)) {
		if _, wanted := d.wanted.Queues[name]; !wanted {
			if l, ours := d.ours(name); ours {
				found = append(found, l)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b leftover) int { return a.role.rank() - b.role.rank() })
	for _, l := range found {
		for _, b := range d.actual.bindingsOf(l.name) {
			if !d.wayOut(b) {
				d.add(Change{Action: ActionUnbind, Kind: KindBinding, Name: b.String(), Detail: "its queue is not in the spec", Prune: true, binding: b, bindingKey: d.actual.Bindings[b]})
			}
		}
		have := d.actual.Queues[l.name]
		have.Role = l.role
		d.add(Change{
			Action: ActionDelete, Kind: KindQueue, Name: l.name, Prune: true, queue: have, work: l.work,
			Detail: fmt.Sprintf("%s, not in the spec, %d messages now; deleted only when empty and unused, until then consume or redrive it", l.role, have.Messages),
		})
	}
}

// leftover is a queue of an earlier spec, and the work queue that it belongs to.
type leftover struct {
	name, work string
	role       Role
}

// rank orders deletions: a queue goes before the one that its messages lead to.
func (r Role) rank() int {
	switch r {
	case RoleRetry:
		return 0
	case RoleWork:
		return 1
	case RoleDeadLetters:
	}
	return 2
}

// ours recognises a queue that an earlier spec with the same exchanges made: it dead-letters to their x.dlx or x.retry under its work queue's
// name, or it takes what comes from x.dlx.
func (d *differ) ours(name string) (leftover, bool) {
	have := d.actual.Queues[name]
	dlx, _ := have.Arguments[argDLX].(string)
	key, _ := have.Arguments[argDLKey].(string)
	for exchange, e := range d.wanted.Exchanges {
		work := strings.TrimSuffix(name, DLQSuffix)
		switch {
		case e.Type != exchangeTypeTopic:
		case dlx == exchange+dlxSuffix && key == name:
			return leftover{name, name, RoleWork}, true
		case dlx == exchange+retrySuffix && key != "" && strings.HasPrefix(name, key+retrySuffix):
			return leftover{name, key, RoleRetry}, true
		case work != name && d.actual.bound(Binding{Exchange: exchange + dlxSuffix, Queue: name, RoutingKey: work}):
			return leftover{name, work, RoleDeadLetters}, true
		}
	}
	return leftover{}, false
}

// wayOut says whether b brings dead letters or retries home, which a leftover needs until it is empty and is deleted.
func (d *differ) wayOut(b Binding) bool {
	for exchange, e := range d.wanted.Exchanges {
		if e.Type == exchangeTypeTopic && (b.Exchange == exchange+dlxSuffix || b.Exchange == exchange+retrySuffix) {
			return true
		}
	}
	return false
}
