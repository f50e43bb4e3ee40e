package consumer

import (
	"fmt"
	"sync"
	"time"
)

// lateGrace is how long after its deadline a handler may still return before it is told of; half of Timeout where that is less.
const lateGrace = 5 * time.Second

// late counts the handlers that ignore the end of their context. They hold their places, and a suspect among them all of
// them. Safe for concurrent use.
type late struct {
	mu sync.Mutex
	n  int
}

// watchLate speaks when the attempt that begins now is not over soon after its deadline. Call over at its end.
func (c *Consumer) watchLate(jobs ...*job) (over func()) {
	timer := time.AfterFunc(c.opts.Timeout+min(c.opts.Timeout/2, lateGrace), func() {
		c.lateBy(1)
		c.log.Error().EmbedObject(jobs[0]).Int("messages", len(jobs)).Stringer("deadline", c.opts.Timeout).
			Msg("handler ignores its deadline and holds its place")
	})
	return func() {
		if timer.Stop() {
			return
		}
		c.lateBy(-1)
		c.log.Info().EmbedObject(jobs[0]).Msg("handler has ended after its deadline")
	}
}

func (c *Consumer) lateBy(change int) {
	c.late.mu.Lock()
	defer c.late.mu.Unlock()
	if c.late.n += change; c.late.n <= 0 {
		c.health.set(partLate, nil)
		return
	}
	c.health.set(partLate, fmt.Errorf("%d handlers run past their deadline of %s and hold their places; they must return when their context ends",
		c.late.n, c.opts.Timeout))
}
