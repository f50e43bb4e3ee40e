package demo

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/surefoot-mq/surefoot/examples/shop/inventory"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/sample"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/topology"
)

// Account is what became of everything. The lists are sorted.
type Account struct {
	// Seconds that the run took.
	Seconds float64 `json:"seconds"`
	// Lines of orders that were read; orders sent twice are two.
	Lines  int         `json:"lines"`
	Orders []OrderLine `json:"orders"`
	Events []EventLine `json:"events"`
	Queues []QueueLine `json:"queues"`
	// Dead are the letters that lie in dead-letter queues at the end.
	Dead []DeadLine `json:"dead"`
	// Violations are what is unaccounted for, or is not as it must be. Empty: all is well.
	Violations []string `json:"violations"`
}

// OrderLine counts the orders that ended alike.
type OrderLine struct {
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Orders  int    `json:"orders"`
	Charged int    `json:"charged"`
	// KeptCents is what the payment provider kept of them.
	KeptCents int64 `json:"kept_cents"`
}

// EventLine accounts for the events of one type.
type EventLine struct {
	Type string `json:"type"`
	// Enqueued and Published count different events.
	Enqueued  int `json:"enqueued"`
	Published int `json:"published"`
	// Again counts further copies of the same events.
	Again int `json:"again"`
	// Due are the deliveries that follow: one for each queue that is bound to the type.
	Due     int `json:"due"`
	Handled int `json:"handled"`
	Dead    int `json:"dead"`
	// Lost is what is unaccounted for: neither handled nor dead.
	Lost int `json:"lost"`
}

// QueueLine accounts for the deliveries of one queue.
type QueueLine struct {
	Queue   string `json:"queue"`
	Due     int    `json:"due"`
	Handled int    `json:"handled"`
	// Repeats are deliveries of what was handled before; they had no effect.
	Repeats int `json:"repeats"`
	Retried int `json:"retried"`
	// Buried went to the dead-letter queue, Redriven came back from it, and Dead are there at the end.
	Buried   int `json:"buried"`
	Redriven int `json:"redriven"`
	Dead     int `json:"dead"`
	Lost     int `json:"lost"`
}

// DeadLine counts the dead letters of one kind.
type DeadLine struct {
	Queue      string `json:"queue"`
	Type       string `json:"type"`
	ErrorClass string `json:"error_class"`
	Letters    int    `json:"letters"`
}

// maxViolations bounds the list: whatever goes wrong at all often goes wrong for everything.
const maxViolations = 100

func (a *Account) violated(format string, args ...any) {
	switch n := len(a.Violations); {
	case n < maxViolations:
		a.Violations = append(a.Violations, fmt.Sprintf(format, args...))
	case n == maxViolations:
		a.Violations = append(a.Violations, "and more")
	}
}

// addOrders holds the shop's books against the orders that were submitted.
func (a *Account) addOrders(submitted map[string]orders.Order, books *shop.Account) {
	for _, violation := range books.Violations {
		a.violated("%s", violation)
	}
	if len(submitted) == 0 {
		a.violated("there were no orders")
	}
	ends := map[OrderLine]*OrderLine{}
	known := map[string]bool{}
	for _, o := range books.Orders {
		known[o.ID] = true
		key := OrderLine{Status: o.Status, Reason: o.Reason}
		if ends[key] == nil {
			ends[key] = &OrderLine{Status: o.Status, Reason: o.Reason}
		}
		line := ends[key]
		line.Orders++
		line.Charged += o.Charges
		line.KeptCents += o.NetCents
		order, ok := submitted[o.ID]
		if !ok {
			a.violated("order %s was never submitted", o.ID)
			continue
		}
		if status, reason := sample.Expected(order); status != o.Status || reason != o.Reason {
			a.violated("order %s is %s %s, but should be %s %s", o.ID, o.Status, o.Reason, status, reason)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(submitted)) {
		if !known[id] {
			a.violated("order %s was submitted, and nobody knows of it", id)
		}
	}
	if books.Pending > 0 {
		a.violated("%d orders have not come to their end", books.Pending)
	}
	for _, line := range ends {
		a.Orders = append(a.Orders, *line)
	}
	slices.SortFunc(a.Orders, func(x, y OrderLine) int {
		return cmp.Or(cmp.Compare(y.Status, x.Status), cmp.Compare(x.Reason, y.Reason))
	})
}

// addEvents accounts for each event: enqueued, published, and then handled or dead in every queue where it is due.
func (a *Account) addEvents(b *books, spec topology.Spec) {
	lines := map[string]*EventLine{}
	for _, id := range slices.Sorted(maps.Keys(b.enqueued)) {
		eventType := b.enqueued[id]
		if lines[eventType] == nil {
			lines[eventType] = &EventLine{Type: eventType}
		}
		line := lines[eventType]
		line.Enqueued++
		if copies := b.published[id]; copies > 0 {
			line.Published++
			line.Again += copies - 1
		} else {
			a.violated("event %s (%s) was enqueued and never published", id, eventType)
		}
		for _, queue := range queuesOf(spec, eventType) {
			line.Due++
			a.addDelivery(b, line, queue, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(b.published)) {
		if _, ok := b.enqueued[id]; !ok {
			a.violated("event %s was published, but never enqueued", id)
		}
	}
	for _, eventType := range slices.Sorted(maps.Keys(lines)) {
		a.Events = append(a.Events, *lines[eventType])
	}
}

func (a *Account) addDelivery(b *books, line *EventLine, queue, id string) {
	handled, dead := b.handled[queue][id], b.dead[queue][id]
	switch {
	case handled && dead:
		line.Handled++
		a.violated("event %s (%s) is a dead letter of %s, although it was handled", id, line.Type, queue)
	case handled:
		line.Handled++
	case dead:
		line.Dead++
	default:
		line.Lost++
		a.violated("event %s (%s) is lost: due in %s, and neither handled nor dead", id, line.Type, queue)
	}
}

// addQueues accounts for each queue, and finds what was handled or died where it was never due.
func (a *Account) addQueues(b *books, spec topology.Spec) {
	for _, q := range spec.Queues {
		line := QueueLine{
			Queue: q.Name, Handled: len(b.handled[q.Name]), Dead: len(b.dead[q.Name]), Repeats: b.repeats[q.Name],
			Retried: b.retries[q.Name], Buried: b.buried[q.Name], Redriven: b.redriven[q.Name],
		}
		for id, eventType := range b.enqueued {
			if slices.Contains(q.Bindings, eventType) {
				line.Due++
				if !b.handled[q.Name][id] && !b.dead[q.Name][id] {
					line.Lost++
				}
			}
		}
		for what, ids := range map[string]map[string]bool{"handled": b.handled[q.Name], "dead": b.dead[q.Name]} {
			for _, id := range slices.Sorted(maps.Keys(ids)) {
				if eventType, ok := b.enqueued[id]; !ok || !slices.Contains(q.Bindings, eventType) {
					a.violated("message %s is %s in %s, where it was never due", id, what, q.Name)
				}
			}
		}
		a.Queues = append(a.Queues, line)
	}
	for kind, letters := range b.kinds {
		kind.Letters = letters
		a.Dead = append(a.Dead, kind)
	}
	slices.SortFunc(a.Dead, func(x, y DeadLine) int {
		return cmp.Or(cmp.Compare(x.Queue, y.Queue), cmp.Compare(x.Type, y.Type), cmp.Compare(x.ErrorClass, y.ErrorClass))
	})
	for _, name := range slices.Sorted(maps.Keys(b.onWay)) {
		a.violated("%d messages are still in %s", b.onWay[name], name)
	}
	if b.waiting > 0 {
		a.violated("%d rows are still in the outbox", b.waiting)
	}
}

// checkStory demands that the run has shown what it is for: an account in which nothing happened would balance, too.
func (a *Account) checkStory(r *run, b *books) {
	if !b.dead[inventory.Queue][r.malformed] {
		a.violated("the malformed message is not a dead letter of %s", inventory.Queue)
	}
	redriven, retried := 0, 0
	for _, line := range a.Queues {
		redriven += line.Redriven
		retried += line.Retried
	}
	if want := len(r.outage) + 1; redriven != want {
		a.violated("%d dead letters were redriven instead of %d", redriven, want)
	}
	if retried == 0 {
		a.violated("nothing was retried, although payments failed for a time")
	}
}
