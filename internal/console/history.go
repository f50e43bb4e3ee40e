package console

import (
	"math"
	"sync"
	"time"
)

// What is remembered: an hour, in steps.
const (
	historyStep   = 10 * time.Second
	historyLength = 360
	maxHistories  = 64 // queues with samples of their own; all are in the sums
)

// sample is one step: rates a second, depths, ages in seconds. NaN: not known.
type sample struct {
	at                           time.Time
	enqueued, published, handled float64
	pending, outboxAge           float64
	ready, retrying, dead        float64
	queueAge, retryAge, deadAge  float64
	queues                       [][3]float64 // ready, retrying, dead of the first queues of the topology
}

// history are the samples of the last hour. Safe for concurrent use.
type history struct {
	mu      sync.Mutex
	samples []sample
	counted fact[tableCounts] // at the last sample
}

// add makes a sample of what is known, when it is time for one.
func (h *history) add(now time.Time, f *facts, rows []queueRow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.samples); n > 0 && now.Sub(h.samples[n-1].at) < historyStep {
		return
	}
	if len(h.samples) == 0 && !f.Outbox.Known() && !f.Broker.Known() {
		return // nothing is known yet
	}
	s := sample{at: now, pending: nan(), outboxAge: nan(), ready: nan(), retrying: nan(), dead: nan(), queueAge: nan(), retryAge: nan(), deadAge: nan()}
	if f.Outbox.Fresh() {
		s.pending, s.outboxAge = float64(f.Outbox.Value.Pending), f.Outbox.Value.Oldest
	}
	s.enqueued, s.published, s.handled = h.rates(f.Tables)
	for i, row := range rows {
		point := [3]float64{nan(), nan(), nan()}
		if f.Broker.Fresh() {
			point = [3]float64{float64(row.Ready), float64(row.Retrying), float64(row.Dead)}
			s.ready, s.retrying, s.dead = plus(s.ready, point[0]), plus(s.retrying, point[1]), plus(s.dead, point[2])
		}
		if i < maxHistories {
			s.queues = append(s.queues, point)
		}
	}
	if f.Broker.Fresh() {
		s.queueAge, s.retryAge = figureOf(oldestWaiting(rows), s.ready), figureOf(oldestTry(rows), s.retrying)
	}
	if oldest := oldestDead(rows); f.Groups.Fresh() {
		s.deadAge = 0
		if !oldest.IsZero() {
			s.deadAge = now.Sub(oldest).Seconds()
		}
	}
	if h.samples = append(h.samples, s); len(h.samples) > historyLength {
		h.samples = append(h.samples[:0:0], h.samples[1:]...)
	}
}

// rates are the differences of the server's counters, which begin anew when its statistics are reset.
func (h *history) rates(now fact[tableCounts]) (enqueued, left, handled float64) {
	before := h.counted
	if now.Known() {
		h.counted = now
	}
	passed := now.At.Sub(before.At).Seconds()
	if !now.Fresh() || !before.Known() || passed <= 0 || passed > 3*historyStep.Seconds() {
		return nan(), nan(), nan()
	}
	rate := func(before, now int64) float64 { return max(float64(now-before), 0) / passed }
	return rate(before.Value.Enqueued, now.Value.Enqueued), rate(before.Value.Left, now.Value.Left), rate(before.Value.Handled, now.Value.Handled)
}

// line are the samples of one figure over the last hour, by their age; NaN where nothing was known.
func (h *history) line(of func(*sample) float64) (points []plotPoint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.samples {
		points = append(points, plotPoint{h.samples[i].at, of(&h.samples[i])})
	}
	return points
}

// lately is the last sample of a figure that is known, of the last half minute; NaN when there is none.
func (h *history) lately(of func(*sample) float64) float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := len(h.samples) - 1; i >= max(0, len(h.samples)-3); i-- {
		if v := of(&h.samples[i]); !math.IsNaN(v) && time.Since(h.samples[i].at) < 30*time.Second {
			return v
		}
	}
	return nan()
}

// figureOf is an age as a figure: nothing that waits has none, and what is not known is no number.
func figureOf(a age, waiting float64) float64 {
	switch {
	case waiting == 0:
		return 0
	case a.Known():
		return a.Wait.Seconds()
	}
	return nan()
}

func nan() float64 { return math.NaN() }

// plus adds what is known to what may not be yet.
func plus(sum, more float64) float64 {
	if math.IsNaN(sum) {
		return more
	}
	return sum + more
}
