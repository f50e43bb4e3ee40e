package watchdog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/usertable"
)

// Run checks the rules against the database, then runs a cycle at once and one each Interval, until ctx ends;
// then it returns nil. A database that is away is waited for, also at the start; a rule that does not fit its
// table ends Run with an error that wraps a [*FaultError] for each fault. Later errors of a cycle are logged,
// and the next cycle tries again.
//
// When ctx ends no further transaction is begun; the one in flight may take DrainTimeout and is then rolled
// back.
func (w *Watchdog) Run(ctx context.Context) error {
	work, release := usertable.Drain(ctx, w.options.DrainTimeout, w.options.Logger)
	defer release()
	tell := func(err error) { w.tell(ctx, err) }
	if _, err := usertable.Await(ctx, w.options.Logger, w.Check, tell); err != nil {
		return fmt.Errorf("start watchdog: %w", err)
	}
	for ctx.Err() == nil {
		results, err := w.cycle(ctx, work)
		w.tell(ctx, err)
		if !pause.For(ctx, w.pause(results, err)) {
			break
		}
	}
	return nil
}

// tell reports a cycle's end to the log and to readiness. An error that came from stopping is none.
func (w *Watchdog) tell(ctx context.Context, err error) {
	if err != nil && ctx.Err() != nil {
		return
	}
	if err != nil {
		w.options.Logger.Error().Str("error", usertable.Bounded(err)).Msg("watchdog error")
		err = errors.New(usertable.Bounded(err))
	}
	w.options.Ready(err)
}

// pause is the wait before the next cycle: none when overdue rows were left, else Interval.
func (w *Watchdog) pause(results []Result, err error) time.Duration {
	for _, result := range results {
		if result.More && err == nil {
			return 0
		}
	}
	return usertable.Spread(w.options.Interval)
}
