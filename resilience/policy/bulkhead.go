package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	failsafe "github.com/failsafe-go/failsafe-go/bulkhead"

	"github.com/surefoot-mq/surefoot/resilience"
)

// Reasons for which the bulkhead refuses a call. errors.Is finds failsafe-go's ErrFull in each.
var (
	errFull   = refusal("all places are taken and the queue is full")
	errShare  = refusal("the tenant's share of places and queue is used up")
	errWaited = refusal("no place came free in time")
)

func refusal(text string) error { return fmt.Errorf("%s: %w", text, failsafe.ErrFull) }

// bulkhead gives out places. Nobody who may run waits: places are handed on when they come free, first to priority calls, then
// to the tenants in turn, each no more than its share.
type bulkhead struct {
	limits  resilience.Bulkhead
	share   int                      // of the queue, per tenant
	observe func(active, queued int) // called under mu

	mu      sync.Mutex
	active  int
	queued  int
	first   []*waiter          // priority calls, in their order
	tenants map[string]*tenant // those that have a call here
	turns   []*tenant          // those that wait, next one first
}

type tenant struct {
	name    string
	active  int
	waiting []*waiter
}

// waiter is a call that waits for its place.
type waiter struct {
	tenant   *tenant
	granted  chan struct{}
	priority bool
}

func newBulkhead(limits resilience.Bulkhead, observe func(active, queued int)) *bulkhead {
	queue := max(limits.Queue, 0)
	return &bulkhead{
		limits: limits, observe: observe, tenants: map[string]*tenant{},
		share: (queue*limits.PerTenant + limits.Active - 1) / limits.Active,
	}
}

// enter takes a place, waiting until one is free, ctx ends, or less than an attempt's time would be left until the deadline. Priority calls also
// get reserved places, and are not held to a tenant's share. The place is given back by leave, with the tenant returned.
func (b *bulkhead) enter(ctx context.Context, deadline time.Time, name string, priority bool) (*tenant, error) {
	b.mu.Lock()
	t := b.tenant(name)
	if b.fits(t, priority) {
		b.grant(t)
		b.mu.Unlock()
		return t, nil
	}
	w, err := b.enqueue(t, priority)
	b.forget(t)
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := b.wait(ctx, deadline, w); err != nil {
		return nil, err
	}
	return t, nil
}

func (b *bulkhead) wait(ctx context.Context, deadline time.Time, w *waiter) error {
	patience := time.NewTimer(time.Until(deadline) - resilience.MinAttempt)
	defer patience.Stop()
	var err error
	select {
	case <-w.granted:
		return nil
	case <-patience.C:
		err = errWaited
	case <-ctx.Done():
		err = resilience.Ended(ctx)
		if errors.Is(err, resilience.ErrDeadline) {
			err = errWaited
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-w.granted: // meanwhile: the place is handed on
		b.free(w.tenant)
	default:
		b.dequeue(w)
	}
	return err
}

func (b *bulkhead) tenant(name string) *tenant {
	t := b.tenants[name]
	if t == nil {
		t = &tenant{name: name}
		b.tenants[name] = t
	}
	return t
}

// forget drops a tenant that has nothing here, so that names from outside take no memory.
func (b *bulkhead) forget(t *tenant) {
	if t.active == 0 && len(t.waiting) == 0 && !slices.ContainsFunc(b.first, func(w *waiter) bool { return w.tenant == t }) {
		delete(b.tenants, t.name)
	}
}

func (b *bulkhead) fits(t *tenant, priority bool) bool {
	if priority {
		return b.active < b.limits.Active
	}
	return b.active < b.limits.Active-b.limits.Reserve && t.active < b.limits.PerTenant
}

func (b *bulkhead) grant(t *tenant) {
	b.active++
	t.active++
	b.observe(b.active, b.queued)
}

func (b *bulkhead) enqueue(t *tenant, priority bool) (*waiter, error) {
	w := &waiter{tenant: t, granted: make(chan struct{}), priority: priority}
	switch {
	case b.queued >= b.limits.Queue:
		return nil, errFull
	case priority:
		b.first = append(b.first, w)
	case len(t.waiting) >= b.share:
		return nil, errShare
	default:
		if len(t.waiting) == 0 {
			b.turns = append(b.turns, t)
		}
		t.waiting = append(t.waiting, w)
	}
	b.queued++
	b.observe(b.active, b.queued)
	return w, nil
}

// dequeue takes out a call that waits no more.
func (b *bulkhead) dequeue(w *waiter) {
	same := func(other *waiter) bool { return other == w }
	if w.priority {
		b.first = slices.DeleteFunc(b.first, same)
	} else {
		w.tenant.waiting = slices.DeleteFunc(w.tenant.waiting, same)
		b.satisfied(w.tenant)
	}
	b.queued--
	b.forget(w.tenant)
	b.observe(b.active, b.queued)
}

// satisfied takes a tenant that waits no more out of the turns.
func (b *bulkhead) satisfied(t *tenant) {
	if len(t.waiting) == 0 {
		b.turns = slices.DeleteFunc(b.turns, func(other *tenant) bool { return other == t })
	}
}

func (b *bulkhead) leave(t *tenant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free(t)
}

// free gives a place back and hands on what is free.
func (b *bulkhead) free(t *tenant) {
	b.active--
	t.active--
	for w := b.next(); w != nil; w = b.next() {
		b.queued--
		b.active++
		w.tenant.active++
		close(w.granted)
	}
	b.forget(t)
	b.observe(b.active, b.queued)
}

// next takes out the call whose turn it is, nil when nobody may run.
func (b *bulkhead) next() *waiter {
	if len(b.first) > 0 && b.fits(b.first[0].tenant, true) {
		w := b.first[0]
		b.first = b.first[1:]
		return w
	}
	at := slices.IndexFunc(b.turns, func(t *tenant) bool { return b.fits(t, false) })
	if at < 0 {
		return nil
	}
	t := b.turns[at]
	w := t.waiting[0]
	t.waiting = t.waiting[1:]
	b.turns = slices.Delete(b.turns, at, at+1)
	if len(t.waiting) > 0 {
		b.turns = append(b.turns, t) // behind the others
	}
	return w
}

// look returns how many calls run and wait.
func (b *bulkhead) look() (active, queued int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.active, b.queued
}
