package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// cleanups undo what was opened, last in, first out.
type cleanups struct{ steps []cleanup }

type cleanup struct {
	name string
	undo func(context.Context) error
}

// add puts a step before all those that are there.
func (c *cleanups) add(name string, undo func(context.Context) error) {
	c.steps = append(c.steps, cleanup{name, undo})
}

// last puts a step behind all those that are there.
func (c *cleanups) last(name string, undo func(context.Context) error) {
	c.steps = slices.Insert(c.steps, 0, cleanup{name, undo})
}

// run takes every step, also after one has failed. A step that hangs is left behind when it has used its share
// of the time until ctx ends, so that the next ones still get theirs: the process is about to exit.
func (c *cleanups) run(ctx context.Context) error {
	var failed []error
	for i, step := range slices.Backward(c.steps) {
		if err := step.run(ctx, i+1); err != nil {
			failed = append(failed, fmt.Errorf("close %s: %w", step.name, err))
		}
	}
	c.steps = nil
	return errors.Join(failed...)
}

// run takes a step in its share of the time, when it and others are left.
func (s cleanup) run(ctx context.Context, left int) error {
	if deadline, ok := ctx.Deadline(); ok {
		share, cancel := context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
		defer cancel()
		ctx = share
	}
	done := make(chan error, 1)
	go func() { done <- s.undo(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
