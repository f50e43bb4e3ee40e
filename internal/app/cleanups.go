package app

import (
	"context"
	"errors"
	"fmt"
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

// run takes every step, also after one has failed, and gives up waiting for a step when ctx ends: the
// process is about to exit, and a step that hangs must not keep the next ones from being tried.
func (c *cleanups) run(ctx context.Context) error {
	var failed []error
	for i := len(c.steps) - 1; i >= 0; i-- {
		done := make(chan error, 1)
		go func() { done <- c.steps[i].undo(ctx) }()
		select {
		case err := <-done:
			if err != nil {
				failed = append(failed, fmt.Errorf("close %s: %w", c.steps[i].name, err))
			}
		case <-ctx.Done():
			failed = append(failed, fmt.Errorf("close %s: %w", c.steps[i].name, context.Cause(ctx)))
		}
	}
	c.steps = nil
	return errors.Join(failed...)
}
