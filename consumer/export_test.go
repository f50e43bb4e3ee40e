package consumer

import "time"

// SetStep puts a test's own function in the place of the fault points.
func SetStep(o *Options, step func(name string) error) { o.step = step }

// SetBacklogInterval shortens the looks at the queue.
func SetBacklogInterval(c *Consumer, d time.Duration) { c.backlogInterval = d }

// SetMaxMessageBytes lowers the broker's limit.
func SetMaxMessageBytes(c *Consumer, n int) { c.mover.limit = n }
