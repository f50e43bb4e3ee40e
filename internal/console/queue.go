package console

import (
	"time"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/topology"
)

// status is a judgement: its word stands beside its sign, and colour only repeats them.
type status struct {
	Kind string // ok, warn, bad, none
	Word string
}

// queueRow is all that is known of one work queue and those that belong to it.
type queueRow struct {
	topology.Queue
	Status status
	// Counted says that the figures of the broker are known.
	Counted               bool
	Ready, Retrying, Dead int
	Consumers             int
	// Measured says that those of its statistics are.
	Measured  bool
	Unacked   int
	Again     float64 // messages a second into the retry queues
	In, Out   float64 // messages a second
	Pause     consumer.QueueState
	Oldest    age       // of what is ready
	OldestTry age       // of what waits to be tried again
	OldestDie time.Time // of its dead letters, by the index
	LastHour  int       // dead in the last hour, by the index
}

// rows join what is known, by queue.
func (c *Console) rows(f *facts) []queueRow {
	rows := make([]queueRow, len(c.queues))
	for i, q := range c.queues {
		rows[i] = c.row(q, f)
	}
	return rows
}

func (c *Console) row(q topology.Queue, f *facts) queueRow {
	r := queueRow{Queue: q, Counted: f.Broker.Known(), Measured: f.Flows.Known(), Pause: f.Queues.Value[q.Name]}
	depths, flows := f.Broker.Value.Depths, f.Flows.Value
	r.Ready, r.Consumers, r.Dead = depths[q.Name].Ready, depths[q.Name].Consumers, depths[q.DLQ()].Ready
	now, tries := time.Now(), []age(nil)
	r.Oldest = c.ages.oldest(q.Name, r.Ready, now)
	for _, tier := range q.Tiers() {
		if n := depths[tier.Queue].Ready; n > 0 {
			r.Retrying += n
			tries = append(tries, c.ages.oldest(tier.Queue, n, now))
		}
		r.Again += flows[tier.Queue].Stats.Publish.PerSecond
	}
	r.OldestTry = eldest(tries)
	flow := flows[q.Name]
	r.Unacked, r.In, r.Out = int(flow.Unacknowledged), flow.Stats.Publish.PerSecond, flow.Stats.Ack.PerSecond
	for _, g := range f.Groups.Value.Groups {
		if g.Queue == q.Name {
			r.LastHour += g.LastHour
			if r.OldestDie.IsZero() || g.FirstDead.Before(r.OldestDie) {
				r.OldestDie = g.FirstDead
			}
		}
	}
	r.Status = r.judge(depths[q.Name].Missing)
	return r
}

func (r *queueRow) judge(missing bool) status {
	switch {
	case r.Pause.Paused:
		return status{"warn", "paused"}
	case !r.Counted:
		return status{"none", "unknown"}
	case missing:
		return status{"bad", "missing"}
	case r.Consumers > 0:
		return status{"ok", "working"}
	case r.Ready > 0:
		return status{"bad", "no consumer"}
	}
	return status{"none", "no consumer"}
}

// oldestWaiting is the age of the oldest message that waits in a work queue.
func oldestWaiting(rows []queueRow) age {
	var of []age
	for i := range rows {
		if rows[i].Ready > 0 {
			of = append(of, rows[i].Oldest)
		}
	}
	return eldest(of)
}

// oldestTry is the age of the oldest message that waits to be tried again, since its last try.
func oldestTry(rows []queueRow) age {
	var of []age
	for i := range rows {
		if rows[i].Retrying > 0 {
			of = append(of, rows[i].OldestTry)
		}
	}
	return eldest(of)
}

// oldestDead is when the oldest dead letter died; zero when there is none.
func oldestDead(rows []queueRow) (oldest time.Time) {
	for _, r := range rows {
		if !r.OldestDie.IsZero() && (oldest.IsZero() || r.OldestDie.Before(oldest)) {
			oldest = r.OldestDie
		}
	}
	return oldest
}

func runStatus(s deadletter.RunState) status {
	switch s {
	case deadletter.RunDone:
		return status{"ok", "done"}
	case deadletter.RunStopped:
		return status{"bad", "stopped"}
	case deadletter.RunPaused:
		return status{"warn", "paused"}
	case deadletter.RunRunning:
		return status{"busy", "running"}
	case deadletter.RunPlanned, deadletter.RunCancelled:
	}
	return status{"none", string(s)}
}
