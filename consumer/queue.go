package consumer

import (
	"cmp"
	"slices"
	"time"
)

// queue holds the jobs that were received and not started, in the order of delivery, and picks the next. For one
// goroutine.
type queue struct {
	lanes   bool
	waiting []*job
	busy    map[string]bool // lanes with a running job
	running int
	alone   bool // a suspect runs
}

func newQueue(o Ordering) *queue { return &queue{lanes: o == OrderLanes, busy: map[string]bool{}} }

func (q *queue) add(j *job) { q.waiting = append(q.waiting, j) }

// back puts a job that was held to its old place: before everything that was received later.
func (q *queue) back(j *job) {
	at, _ := slices.BinarySearchFunc(q.waiting, j, func(a, b *job) int {
		return cmp.Or(a.received.Compare(b.received), cmp.Compare(a.delivery.DeliveryTag, b.delivery.DeliveryTag))
	})
	q.waiting = slices.Insert(q.waiting, at, j)
}

// next picks the job to start now, nil when all must wait. Innocent ones go first. A suspect starts only when nothing
// else can or does run; those that were delivered least often go first, so that they are through when the one that
// kills gets its turn.
func (q *queue) next() *job {
	q.dropDead()
	if q.alone {
		return nil
	}
	innocent, suspects := q.startable()
	switch {
	case innocent != nil:
		return innocent
	case q.running > 0 || len(suspects) == 0:
		return nil
	default:
		return slices.MinFunc(suspects, func(a, b *job) int { return cmp.Compare(deliveryCount(a.delivery), deliveryCount(b.delivery)) })
	}
}

// startable finds the first innocent job whose lane is free, else all such suspects.
func (q *queue) startable() (innocent *job, suspects []*job) {
	var before map[string]bool // lanes with an earlier waiting job
	for _, j := range q.waiting {
		if lane := q.lane(j); lane != "" {
			if q.busy[lane] || before[lane] {
				continue
			}
			if before == nil {
				before = map[string]bool{}
			}
			before[lane] = true
		}
		if !j.suspect {
			return j, nil
		}
		suspects = append(suspects, j)
	}
	return nil, suspects
}

// probe picks the one job that finds out whether an absent dependency is back: that which was tried least recently, so
// that one message cannot stand for all.
func (q *queue) probe() *job {
	q.dropDead()
	var probe *job
	for _, j := range q.waiting {
		if q.running == 0 && q.first(j) && (probe == nil || j.tried.Before(probe.tried)) {
			probe = j
		}
	}
	return probe
}

// first says whether j is the first of its lane.
func (q *queue) first(j *job) bool {
	lane := q.lane(j)
	if lane == "" {
		return true
	}
	at := slices.IndexFunc(q.waiting, func(other *job) bool { return q.lane(other) == lane })
	return q.waiting[at] == j
}

func (q *queue) lane(j *job) string {
	if !q.lanes {
		return ""
	}
	return j.msg.Key
}

// start takes a job out.
func (q *queue) start(j *job) {
	q.waiting = slices.DeleteFunc(q.waiting, func(other *job) bool { return other == j })
	q.running++
	q.alone = q.alone || j.suspect
	if lane := q.lane(j); lane != "" {
		q.busy[lane] = true
	}
	j.tried = time.Now()
}

// ended notes the end of a running job.
func (q *queue) ended(j *job) {
	q.running--
	if j.suspect {
		q.alone = false
	}
	delete(q.busy, q.lane(j))
}

// dropDead forgets jobs whose subscription has ended: their messages come again.
func (q *queue) dropDead() {
	q.waiting = slices.DeleteFunc(q.waiting, (*job).over)
}

// oldest is when the job held longest was received; zero when none waits.
func (q *queue) oldest() time.Time {
	if len(q.waiting) == 0 {
		return time.Time{}
	}
	return q.waiting[0].received
}
