package console

import (
	"slices"
	"sync"
	"time"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/topology"
)

const (
	// maxEntries of one queue are remembered; when there are more, the older half of them is thinned out, so that they reach ever further
	// back, ever less finely.
	maxEntries = 512
	// entriesFresh is how old the broker's statistics may be that are still believed to tell where the head of a queue is.
	entriesFresh = 30 * time.Second
)

// bound says how an age is meant.
type bound string

const (
	about   bound = "about"
	atLeast bound = "at least" // the oldest was there before anybody counted
	atMost  bound = "at most"  // the queue was seen empty then
)

// age is how long the oldest message that waits in a queue has waited. The zero value is one that is not known, or that of nothing.
type age struct {
	Wait  time.Duration
	Bound bound
}

// Known says that it is.
func (a age) Known() bool { return a.Bound != "" }

// String is empty when the age is not known.
func (a age) String() string {
	if !a.Known() {
		return ""
	}
	return string(a.Bound) + " " + span(a.Wait)
}

// entry is how many messages had ever come into a queue at one time, by the broker's counters.
type entry struct {
	at time.Time
	in int64
}

// passage is what was seen of one queue. RabbitMQ does not tell how old the head of a quorum queue is, and a look at it would count as a
// delivery. But queues keep their order: when n messages wait, the oldest of them came when the counter of what came in stood n lower.
type passage struct {
	entries []entry // never fewer in than before
	counter int64   // the broker's, last time
	ready   int64
	waits   bool      // unless it was empty when it was last counted exactly
	empty   time.Time // when it was last counted and nothing waited
}

// see takes the broker's statistics: counter never falls but when it begins anew, in is what ever came, ready what waits.
func (p *passage) see(at time.Time, counter, in, ready int64) {
	if counter < p.counter { // the node that counted has gone: what is known was counted otherwise
		p.entries = nil
	}
	if ready == 0 && p.waits { // it is older than the count
		return
	}
	p.counter, p.ready = counter, ready
	if n := len(p.entries); n > 0 {
		in = max(in, p.entries[n-1].in) // its parts are not of one instant
	}
	if ready == 0 {
		p.entries = p.entries[:0] // all that came before has left
	}
	p.entries = append(p.entries, entry{at, in})
	if len(p.entries) > maxEntries {
		kept, half := p.entries[:0], len(p.entries)/2
		for i, e := range p.entries {
			if i >= half || i%2 == 0 {
				kept = append(kept, e)
			}
		}
		p.entries = kept
	}
}

// oldest is the age of the head of a queue in which something waits.
func (p *passage) oldest(now time.Time) (a age) {
	if n := len(p.entries); n > 0 && p.ready > 0 && now.Sub(p.entries[n-1].at) < entriesFresh {
		head := p.entries[n-1].in - p.ready // had come before it
		i, _ := slices.BinarySearchFunc(p.entries, head, func(e entry, head int64) int {
			if e.in > head {
				return 1
			}
			return -1
		})
		switch {
		case i == 0:
			a = age{now.Sub(p.entries[0].at), atLeast}
		case i < n:
			before, after := p.entries[i-1], p.entries[i]
			share := float64(head-before.in) / float64(after.in-before.in)
			a = age{now.Sub(before.at.Add(time.Duration(share * float64(after.at.Sub(before.at))))), about}
		}
	}
	if !p.empty.IsZero() && (!a.Known() || a.Bound == atLeast || now.Sub(p.empty) < a.Wait) {
		a = age{now.Sub(p.empty), atMost}
	}
	return a
}

// ages are those of the topology's work queues and retry queues. The zero value is ready; safe for concurrent use.
type ages struct {
	mu       sync.Mutex
	passages map[string]*passage
}

func (a *ages) of(queue string) *passage {
	if a.passages == nil {
		a.passages = map[string]*passage{}
	}
	p := a.passages[queue]
	if p == nil {
		p = &passage{waits: true}
		a.passages[queue] = p
	}
	return p
}

// flowed takes statistics. What leaves a work queue is acknowledged, and counted so; of what comes into it, the broker does not count what
// a retry queue hands back. From a retry queue nothing is acknowledged, and all that comes is counted.
func (a *ages) flowed(at time.Time, queues []topology.Queue, flows map[string]rabbit.Flow) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, q := range queues {
		if f, known := flows[q.Name]; known {
			a.of(q.Name).see(at, f.Stats.Acked, f.Stats.Acked+f.Unacknowledged+f.Ready, f.Ready)
		}
		for _, tier := range q.Tiers() {
			if f, known := flows[tier.Queue]; known {
				a.of(tier.Queue).see(at, f.Stats.Published, f.Stats.Published, f.Ready)
			}
		}
	}
}

// counted takes exact depths.
func (a *ages) counted(at time.Time, depths map[string]depth) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, d := range depths {
		p := a.of(name)
		if p.waits = d.Ready > 0; !p.waits && !d.Missing {
			p.empty = at
		}
	}
}

// oldest is the age of the head of a queue, in which ready messages wait.
func (a *ages) oldest(queue string, ready int, now time.Time) age {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ready == 0 {
		return age{}
	}
	return a.of(queue).oldest(now)
}

// eldest is the age of the oldest in several queues, in each of which something waits.
func eldest(of []age) age {
	least, most, open := time.Duration(0), time.Duration(0), false
	for _, a := range of {
		open = open || !a.Known() || a.Bound == atLeast
		most = max(most, a.Wait)
		if a.Bound != atMost {
			least = max(least, a.Wait)
		}
	}
	switch {
	case most == 0, open && least == 0:
		return age{}
	case open:
		return age{least, atLeast}
	case most > least:
		return age{most, atMost}
	}
	return age{least, about}
}
