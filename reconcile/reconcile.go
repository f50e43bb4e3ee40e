package reconcile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/internal/usertable"
)

// shortestRest is between two cycles, however soon a suspect is due.
const shortestRest = time.Second

// nextDueSQL tells when the next suspect without an answer, or of a process that died, is due. One whose time has passed without being
// claimed is no suspect any more.
const nextDueSQL pg.SQL = `
SELECT extract(epoch FROM min(next_check) - clock_timestamp())::float8 FROM @schema@.reconcile_suspects
WHERE rule = $1 AND resolved_at IS NULL AND next_check > clock_timestamp()`

// Run checks the rules against the database, then runs a cycle of each at once and one each Interval, until ctx ends; then it returns
// nil. A database that is away is waited for, also at the start; a rule that does not fit its table ends Run with an error that wraps
// a [*FaultError] for each fault. Later errors of a cycle are logged, and the next cycle tries again.
//
// When ctx ends nothing more is asked, and what was claimed is given back; a change in flight may take DrainTimeout and is then rolled
// back.
func (r *Reconciler) Run(ctx context.Context) error {
	work, release := usertable.Drain(ctx, r.options.DrainTimeout, r.options.Logger)
	defer release()
	for _, rule := range r.options.Rules { // before anything can fail: whoever waits for the first run must see that there was none
		r.metrics.begin(rule, r.options.interval(rule))
	}
	tell := func(err error) { r.tell(ctx, "", err) }
	switch started, err := usertable.Await(ctx, r.options.Logger, r.Check, tell); {
	case err != nil:
		return fmt.Errorf("start reconcile: %w", err)
	case !started:
		return nil
	}
	var group errgroup.Group
	for _, rule := range r.options.Rules {
		group.Go(func() error {
			defer telemetry.FatalOnPanic(r.options.Logger)
			r.loop(ctx, work, rule)
			return nil
		})
	}
	return group.Wait()
}

func (r *Reconciler) loop(ctx, work context.Context, rule Rule) {
	for ctx.Err() == nil {
		result, err := r.cycle(ctx, work, rule)
		r.tell(ctx, rule.Name, err)
		if !pause.For(ctx, r.rest(work, rule, result, err)) {
			return
		}
	}
}

// rest is the wait before the next cycle: none when suspects were left, less than Interval when one is due before.
func (r *Reconciler) rest(ctx context.Context, rule Rule, result Result, err error) time.Duration {
	interval := r.options.interval(rule)
	if result.More && err == nil {
		return 0
	}
	wait := usertable.Spread(interval)
	var due *float64
	if err != nil {
		return min(wait, usertable.LongestWait)
	}
	if r.options.Pool.QueryRow(ctx, nextDueSQL.In(r.options.Schema), rule.Name).Scan(&due) == nil && due != nil {
		soon := time.Duration(*due*float64(time.Second)) + rand.N(shortestRest/10)
		wait = min(wait, max(soon, shortestRest))
	}
	return wait
}

// health is what the rules say of themselves.
type health struct {
	mu     sync.Mutex
	faults map[string]error
	ready  func(error)
}

func (h *health) tell(rule string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.faults == nil {
		h.faults = map[string]error{}
	}
	delete(h.faults, "") // the start is over
	delete(h.faults, rule)
	if err != nil {
		h.faults[rule] = err
	}
	var all []error
	for _, fault := range h.faults {
		all = append(all, fault)
	}
	h.ready(errors.Join(all...))
}

// tell reports a cycle's end to the log and to readiness. An error that came from stopping is none.
func (r *Reconciler) tell(ctx context.Context, rule string, err error) {
	if err != nil && ctx.Err() != nil {
		return
	}
	if err != nil {
		e := r.options.Logger.Error()
		if rule != "" {
			e.Str(telemetry.FieldRule, rule)
		}
		e.Str("error", usertable.Bounded(err)).Msg("reconcile error")
		err = errors.New(usertable.Bounded(err))
	}
	r.health.tell(rule, err)
}
