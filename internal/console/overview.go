package console

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// step is one card of the flow.
type step struct {
	Name, Link string
	Known      bool
	Count      int64
	Estimated  bool
	Age        string // of the oldest; empty: nothing waits, or not known
	Rate, Says string // what the rate is of
	Kind       string
}

// service is one line of health.
type service struct {
	Name   string
	Status status
	Detail string
}

type overviewData struct {
	Steps    []step
	Calls    []call
	Looked   bool // everything was asked at least once
	Services []service
	Circuits []circuit
	Groups   []deadletter.FailureGroup
	Runs     []deadletter.Run
	Plots    []plot
}

// circuit is a snapshot that says whether it is still believed.
type circuit struct {
	policy.Snapshot
	Status status
	Stale  bool
}

func (c *Console) overview(*http.Request) (found, error) {
	f := c.known.get()
	rows, now := c.rows(&f), time.Now()
	groups := slices.Clone(f.Groups.Value.Groups)
	slices.SortStableFunc(groups, func(a, b deadletter.FailureGroup) int { return b.LastDead.Compare(a.LastDead) })
	d := overviewData{
		Steps: c.steps(&f, rows, now), Calls: c.calls(&f), Services: c.services(&f, rows), Circuits: circuits(f.Circuits.Value),
		Groups: groups[:min(len(groups), 5)], Runs: f.Runs.Value,
		Looked: (f.Outbox.Known() || f.Outbox.Err != nil) && (f.Broker.Known() || f.Broker.Err != nil),
		Plots: []plot{
			c.history.draw(now, "rates", "Messages per second", false, perSecond,
				figure{"enqueued", func(s *sample) float64 { return s.enqueued }},
				figure{"left the outbox", func(s *sample) float64 { return s.published }},
				figure{"handled", func(s *sample) float64 { return s.handled }}),
			c.history.draw(now, "depths", "Messages waiting", false, short,
				figure{"in queues", func(s *sample) float64 { return s.ready }},
				figure{"to be retried", func(s *sample) float64 { return s.retrying }},
				figure{"dead", func(s *sample) float64 { return s.dead }}),
			c.history.draw(now, "outbox-age", "Age of the oldest that waits", true, seconds,
				figure{"outbox", func(s *sample) float64 { return s.outboxAge }},
				figure{"in queues", func(s *sample) float64 { return s.queueAge }},
				figure{"to be retried", func(s *sample) float64 { return s.retryAge }}),
			c.history.draw(now, "dead-age", "Age of the oldest dead letter", true, seconds,
				figure{"dead letters", func(s *sample) float64 { return s.deadAge }}),
		},
	}
	return found{title: "Overview", data: d}, nil
}

func (c *Console) steps(f *facts, rows []queueRow, now time.Time) []step {
	out, queue, retry, dead := step{Name: "Outbox", Link: "/outbox"}, step{Name: "Queues", Link: "/queues"}, step{Name: "Retry", Link: "/queues"}, step{Name: "Dead letters", Link: "/dead"}
	o := f.Outbox.Value
	out.Known, out.Count, out.Estimated = f.Outbox.Known(), o.Pending, o.Estimated
	if o.Pending > 0 {
		out.Age = seconds(o.Oldest)
	}
	out.Rate, out.Says = perSecond(c.history.lately(func(s *sample) float64 { return s.published })), "published"
	queue.Known, retry.Known, dead.Known = f.Broker.Known(), f.Broker.Known(), f.Broker.Known()
	in, again, lastHour := 0.0, 0.0, 0
	queue.Age, retry.Age = oldestWaiting(rows).String(), oldestTry(rows).String()
	for _, r := range rows {
		queue.Count += int64(r.Ready + r.Unacked)
		retry.Count += int64(r.Retrying)
		dead.Count += int64(r.Dead)
		in, again, lastHour = in+r.Out, again+r.Again, lastHour+r.LastHour
	}
	queue.Says, retry.Says = "acknowledged", "to be tried again"
	if queue.Rate, retry.Rate = "–", "–"; f.Flows.Known() {
		queue.Rate, retry.Rate = perSecond(in), perSecond(again)
	}
	if dead.Rate = "–"; f.Groups.Known() {
		dead.Rate = number(lastHour)
	}
	dead.Says = "died in the last hour"
	if oldest := oldestDead(rows); !oldest.IsZero() {
		dead.Age = span(now.Sub(oldest))
	}
	if dead.Count > 0 {
		dead.Kind = "bad"
	}
	if out.Known && (o.Dead > 0 || o.Oldest > outboxLate.Seconds()) {
		out.Kind = "bad"
	}
	if retry.Count > 0 {
		retry.Kind = "warn"
	}
	return []step{out, queue, retry, dead}
}

// lateFrom is from which age on a page says it of figures: longer than asking every 5 seconds, and with some delay, takes.
const lateFrom = 10 * time.Second

// health is of a service that was last asked with this result, and last answered at known.
func health(name string, known time.Time, err error, late time.Duration, detail string) service {
	switch {
	case err != nil:
		return service{name, status{"bad", "away"}, "see above why"}
	case known.IsZero():
		return service{name, status{"none", "being asked"}, ""}
	case time.Since(known) > late:
		detail += "; answers slowly, figures are from " + at(known).Abs
	}
	return service{name, status{"ok", "answers"}, detail}
}

func (c *Console) services(f *facts, rows []queueRow) []service {
	late := max(lateFrom, 3*c.opts.Interval)
	o := f.Outbox.Value
	relays := service{"Relays", status{"none", "unknown"}, ""}
	if f.Outbox.Fresh() {
		relays.Status, relays.Detail = status{"ok", "running"}, relayNames(f.Relays.Value)
		switch unable := unableRelays(f.Relays.Value); {
		case o.Relays == 0:
			relays.Status, relays.Detail = status{"none", "none"}, "no relay is running"
		case unable > 0:
			relays.Status = status{"warn", "not all able"}
		}
	}
	working, idle := 0, 0
	for _, r := range rows {
		if r.Consumers > 0 {
			working++
		} else {
			idle++
		}
	}
	consumers := service{"Consumers", status{"none", "unknown"}, ""}
	if f.Broker.Fresh() && len(rows) > 0 {
		consumers.Status = status{"ok", "connected"}
		consumers.Detail = "on " + counted(working, "queue")
		if idle > 0 {
			consumers.Status, consumers.Detail = status{"warn", "missing"}, consumers.Detail+", none on "+counted(idle, "queue")
		}
	}
	return []service{
		health("PostgreSQL", f.Outbox.At, f.Outbox.Err, late, "schema "+c.opts.Schema),
		health("RabbitMQ", f.Broker.At, f.Broker.Err, late, "vhost "+c.management.Vhost()),
		health("Management API", f.Flows.At, f.Flows.Err, late, "rates and unacknowledged messages"),
		relays, consumers,
	}
}

// relayNames tells those that cannot publish from the others.
func relayNames(list []relayFact) string {
	names := make([]string, len(list))
	for i, r := range list {
		if names[i] = cell(r.Name); !r.Able {
			names[i] += " (cannot publish)"
		}
	}
	return line(strings.Join(names, ", "))
}

func unableRelays(list []relayFact) (n int) {
	for _, r := range list {
		if !r.Able {
			n++
		}
	}
	return n
}

// circuits puts those that are not closed first.
func circuits(list []policy.Snapshot) []circuit {
	all := make([]circuit, len(list))
	for i, s := range list {
		one := circuit{Snapshot: s, Status: status{"ok", "closed"}, Stale: time.Since(s.UpdatedAt) > circuitFresh}
		switch s.State {
		case "open":
			one.Status = status{"bad", "open"}
		case "half-open":
			one.Status = status{"warn", "trying"}
		}
		if one.Stale {
			one.Status = status{"none", "last seen " + one.Status.Word}
		}
		all[i] = one
	}
	rank := func(c circuit) int { return map[string]int{"bad": 0, "warn": 1, "ok": 2, "none": 3}[c.Status.Kind] }
	slices.SortStableFunc(all, func(a, b circuit) int { return rank(a) - rank(b) })
	return all[:min(len(all), maxShown)]
}
