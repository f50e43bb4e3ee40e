package topology

import (
	"strings"
	"time"
)

// DLQSuffix makes the name of a dead-letter queue out of that of its work queue.
const DLQSuffix = ".dlq"

// Suffixes of other derived names.
const (
	retrySuffix = ".retry"
	dlxSuffix   = ".dlx"
)

// Tier is one step of the retry ladder: a queue whose messages return to the work queue after Delay.
type Tier struct {
	Queue string        `json:"queue"`
	Delay time.Duration `json:"delay"`
}

// Path is a work queue with the queues that its messages may be moved to.
type Path struct {
	Queue       string
	DeadLetters string
	Retry       []Tier
}

// DLQ is the name of the queue's dead-letter queue.
func (q Queue) DLQ() string { return q.Name + DLQSuffix }

// Tiers are the queue's retry queues, shortest delay first. With one delay it is q.retry, with several q.retry.<delay>.
func (q Queue) Tiers() []Tier {
	delays := q.withDefaults("").Retry
	tiers := make([]Tier, len(delays))
	for i, delay := range delays {
		tiers[i] = Tier{Queue: q.Name + retrySuffix, Delay: delay}
		if len(delays) > 1 {
			tiers[i].Queue += "." + shortDuration(delay)
		}
	}
	return tiers
}

// Path of the queue.
func (q Queue) Path() Path { return Path{Queue: q.Name, DeadLetters: q.DLQ(), Retry: q.Tiers()} }

// shortDuration is 30s, 5m, 1h30m, 300ms.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
