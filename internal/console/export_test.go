package console

import (
	"math"
	"time"
)

// MaxStreams is the most open pages that are told of news.
const MaxStreams = maxStreams

// Remember makes a console remember an hour that it has not seen: for pictures.
func (c *Console) Remember() {
	h := c.history
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	var past []sample
	for i := range historyLength - 1 {
		x := float64(i)
		wave := 42 + 9*math.Sin(x/21) + 4*math.Sin(x/3.1)
		s := sample{
			at: now.Add(time.Duration(i-historyLength) * historyStep), enqueued: wave, published: wave + 2*math.Sin(x/2), handled: 0.97*wave + 3*math.Cos(x/4),
			pending: 2, outboxAge: 0.05 + 0.04*math.Abs(math.Sin(x/5)), ready: math.Round(6 + 3*math.Sin(x/7)),
		}
		if i > 190 && i < 225 { // a pause of the handlers
			s.handled, s.ready = nan(), 6+(x-190)*22
			s.handled = 3
		} else if i >= 225 && i < 262 {
			s.ready, s.handled = max(6, 776-(x-225)*21), wave+19
		}
		s.dead, s.retrying = 0, math.Round(2+2*math.Sin(x/9))
		if i > 300 {
			s.dead, s.deadAge = math.Min(44, math.Round((x-300)*0.9)), (x-300)*10
		}
		s.queues = [][3]float64{{s.ready, s.retrying, s.dead}, {1, 0, 0}}
		past = append(past, s)
	}
	h.samples = append(past, h.samples...)
}
