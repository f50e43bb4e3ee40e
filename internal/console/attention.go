package console

import (
	"errors"
	"fmt"
	"time"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/escape"
)

// call is something that needs somebody.
type call struct {
	Status status
	Text   string
	// Link leads to the page where something can be done; Do says what.
	Link, Do string
}

// problems are what the pages lack because a service is away.
func (c *Console) problems(f *facts) (list []problem) {
	away := func(title string, err error, known time.Time, lack string) {
		if err == nil {
			return
		}
		text := lack + " is missing"
		if !known.IsZero() {
			text = lack + " is from " + at(known).Abs
		}
		list = append(list, problem{title, text + ": " + escape.Line(err.Error(), maxLine)})
	}
	title := "PostgreSQL does not answer"
	if _, unfit := errors.AsType[unfitError](f.Outbox.Err); unfit {
		title = "The database cannot be used"
	}
	away(title, f.Outbox.Err, f.Outbox.At, "What the database knows (outbox, groups, runs, audit)")
	away("RabbitMQ does not answer", f.Broker.Err, f.Broker.At, "What lies in the queues")
	if f.Broker.Err == nil {
		away("RabbitMQ's management API does not answer", f.Flows.Err, f.Flows.At, "Rates and unacknowledged messages")
	}
	return list
}

// calls are what needs somebody now, the gravest first.
func (c *Console) calls(f *facts) []call {
	var bad, warn []call
	add := func(kind, word, link, do, text string, args ...any) {
		one := call{status{kind, word}, fmt.Sprintf(text, args...), link, do}
		if kind == "bad" {
			bad = append(bad, one)
		} else {
			warn = append(warn, one)
		}
	}
	c.serviceCalls(f, add)
	for _, row := range c.rows(f) {
		queueCalls(&row, f, add)
	}
	for _, r := range f.Runs.Value {
		switch {
		case r.State == deadletter.RunStopped:
			add("bad", "stopped", link("/run", "id", r.ID), "Look at the redrive", "The redrive of %s stopped: too many came back.", cell(r.Queue))
		case r.State == deadletter.RunPaused:
			add("warn", "paused", link("/run", "id", r.ID), "Look at the redrive", "The redrive of %s is paused; what it has not moved is held for it.", cell(r.Queue))
		case r.State == deadletter.RunRunning && r.Owner == "":
			add("warn", "nobody drives", link("/run", "id", r.ID), "Go on with it", "The redrive of %s has lost its process.", cell(r.Queue))
		}
	}
	for _, rule := range sortedKeys(f.Overdue.Value) {
		n := f.Overdue.Value[rule]
		text := counted(n, "saga") + map[bool]string{true: " is", false: " are"}[n == 1]
		if n >= sagasLimit {
			text = "At least " + text
		}
		add("warn", "overdue", link("/sagas", "rule", rule), "Look at them", "%s over the limit of %s.", text, cell(rule))
	}
	for _, s := range f.Circuits.Value {
		if s.State == "open" && time.Since(s.UpdatedAt) < circuitFresh {
			add("bad", "circuit open", "/#circuits", "See why", "The circuit to %s is open on %s.", cell(s.Dependency), cell(s.Host))
		}
	}
	return append(bad, warn...)
}

// circuitFresh is how old a snapshot of a circuit may be that is still believed: processes write one every 30 s.
const circuitFresh = 90 * time.Second

type addCall func(kind, word, link, do, text string, args ...any)

func (c *Console) serviceCalls(f *facts, add addCall) {
	if f.Outbox.Err != nil {
		add("bad", "away", "", "", "The database is not there, or not as it should be.")
	}
	if f.Broker.Err != nil {
		add("bad", "away", "", "", "RabbitMQ does not answer.")
	}
	if !f.Outbox.Fresh() {
		return
	}
	o := f.Outbox.Value
	if o.Pending > 0 && o.Relays == 0 {
		add("bad", "no relay", "", "", "%s in the outbox, and no relay is running.", wait(o.Pending))
	} else if o.Oldest > outboxLate.Seconds() {
		add("bad", "late", "/outbox", "See what is held up", "The oldest message in the outbox has waited for %s.", seconds(o.Oldest))
	}
	if n := unableRelays(f.Relays.Value); n > 0 && f.Relays.Fresh() {
		add("warn", "relay", "/#services-h", "See which", "%s cannot publish, most often for want of the broker or of a right there.", counted(n, "relay"))
	}
	if o.Dead > 0 {
		add("bad", "not published", "/outbox", "See why", "%s could not be published and will not be tried again.", counted(o.Dead, "row"))
	}
	if o.Retry > 0 {
		add("warn", "retrying", "/outbox", "See why", "%s could not be published yet.", counted(o.Retry, "row"))
	}
}

// outboxLate is when a waiting row needs somebody: the relay takes milliseconds.
const outboxLate = 30 * time.Second

func wait(n int64) string {
	if n == 1 {
		return "1 message waits"
	}
	return number(n) + " messages wait"
}

func queueCalls(r *queueRow, f *facts, add addCall) {
	page := link("/queues", "queue", r.Name)
	switch {
	case r.Pause.Paused:
		add("warn", "paused", page, "See by whom", "%s is paused.", cell(r.Name))
	case r.Status.Kind == "bad" && r.Status.Word == "missing":
		add("bad", "missing", page, "", "%s is not on the broker: surefoot topology apply makes it.", cell(r.Name))
	case r.Status.Kind == "bad":
		add("bad", "no consumer", page, "Look at the queue", "%s in %s, and nobody consumes.", wait(int64(r.Ready)), cell(r.Name))
	}
	if r.LastHour > 0 {
		add("bad", "failing", link("/dead", "queue", r.Name), "See why", "%s died in %s within the last hour.", counted(r.LastHour, "message"), cell(r.Name))
	} else if r.Dead > 0 && f.Broker.Known() {
		add("warn", "dead letters", link("/dead", "queue", r.Name), "Look at them", "%s in %s.", wait(int64(r.Dead)), cell(r.DLQ()))
	}
}
