package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
)

const (
	beginPoll = 2 * time.Millisecond
	endPoll   = 5 * time.Millisecond
	grace     = 2 * time.Minute  // for a process to come to its end after the window
	patience  = 15 * time.Second // for the first message, also when the window is shorter
)

// work says what a process does that is observed.
type work struct {
	queue  string // where the messages come
	rows   int    // that are to come
	window time.Duration
	// settled says whether nothing is left of them at their origin; it is asked once all have come. Nil: the process prints its
	// outcome when that is so, and at the end of the window.
	settled func(ctx context.Context) (bool, error)
}

// observation is what was seen of a process. All arms are timed by the same eye: their starts, which are not compared, end with the
// first message that the queue shows.
type observation struct {
	began, ended time.Time
	// first are the messages that were there at began; they are not counted in the rate. last were there at ended.
	first, last int
	complete    bool    // all have come and are settled
	used        reading // of the services, from before the start
}

func (o observation) seconds() float64 { return o.ended.Sub(o.began).Seconds() }
func (o observation) rows() int        { return o.last - o.first }

// rate is in rows per second.
func (o observation) rate() float64 {
	if o.seconds() <= 0 {
		return 0
	}
	return float64(o.rows()) / o.seconds()
}

// observe watches a process that has just been started. The caller read the services' CPU before.
func (s *stage) observe(ctx context.Context, p *process, w work, before reading) (o observation, err error) {
	o.began = time.Now()
	if err := s.awaitFirst(ctx, p, w, &o); err != nil {
		return o, err
	}
	if w.settled == nil {
		err = awaitOutcome(ctx, p, w)
	} else {
		o.complete, err = s.awaitSettled(ctx, p, w, o.began)
	}
	o.ended, o.used = time.Now(), s.meter.read().since(before)
	if err != nil {
		return o, err
	}
	if o.last, err = s.depth(ctx, w.queue); w.settled == nil {
		o.complete = o.last >= w.rows
	}
	return o, err
}

// awaitFirst sets began to when the first messages are seen; when none come in a whole window, and patience, to the beginning of that.
func (s *stage) awaitFirst(ctx context.Context, p *process, w work, o *observation) error {
	deadline := o.began.Add(max(w.window, patience))
	for {
		n, err := s.depth(ctx, w.queue)
		if err != nil {
			return err
		}
		now := time.Now()
		if n > 0 {
			o.began, o.first = now, n
			return nil
		}
		if now.After(deadline) || over(p.told) {
			return nil
		}
		if over(p.ended) {
			return endedEarly(p)
		}
		if !pause.For(ctx, beginPoll) {
			return ctx.Err()
		}
	}
}

func over(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func endedEarly(p *process) error {
	return errors.Join(fmt.Errorf("%s ended before its work was done", p.name), p.err)
}

func awaitOutcome(ctx context.Context, p *process, w work) error {
	limit := time.NewTimer(w.window + grace)
	defer limit.Stop()
	select {
	case <-p.told:
		return nil
	case <-limit.C:
		return fmt.Errorf("%s has not come to an end %s after its window", p.name, grace)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitSettled returns whether everything was settled within the window.
func (s *stage) awaitSettled(ctx context.Context, p *process, w work, began time.Time) (bool, error) {
	arrived := false
	for time.Since(began) < w.window {
		if over(p.ended) {
			return false, endedEarly(p)
		}
		if !arrived {
			n, err := s.depth(ctx, w.queue)
			if err != nil {
				return false, err
			}
			arrived = n >= w.rows
		}
		if arrived {
			if done, err := w.settled(ctx); done || err != nil {
				return done, err
			}
		}
		if !pause.For(ctx, endPoll) {
			return false, ctx.Err()
		}
	}
	return false, nil
}
