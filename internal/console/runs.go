package console

import (
	"context"
	"sync"

	"github.com/google/uuid"
)

// driven are the redrives that this process drives. They last longer than the requests that begin them.
type driven struct {
	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // of Run, which outlives every request
	working sync.WaitGroup
	live    map[uuid.UUID]bool
}

func (d *driven) open(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ctx = ctx
}

// close waits for them to stop, which they do when Run's context ends.
func (d *driven) close() { d.working.Wait() }
