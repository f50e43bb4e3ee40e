package watchdog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/internal/usertable"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

const (
	firstWait   = 500 * time.Millisecond
	longestWait = 15 * time.Second
)

// Run checks the rules against the database, then runs a cycle at once and one each Interval, until ctx ends;
// then it returns nil. A database that is away is waited for, also at the start; a rule that does not fit its
// table ends Run with an error that wraps a [*FaultError] for each fault. Later errors of a cycle are logged,
// and the next cycle tries again.
//
// When ctx ends no further transaction is begun; the one in flight may take DrainTimeout and is then rolled
// back.
func (w *Watchdog) Run(ctx context.Context) error {
	work, release := w.drainContext(ctx)
	defer release()
	if err := w.start(ctx); err != nil {
		return err
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

// drainContext returns a context that ends DrainTimeout after ctx. Release frees it and waits for its goroutine.
func (w *Watchdog) drainContext(ctx context.Context) (work context.Context, release func()) {
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer telemetry.FatalOnPanic(w.options.Logger)
		defer close(done)
		select {
		case <-ctx.Done():
		case <-work.Done():
			return
		}
		if pause.For(work, w.options.DrainTimeout) {
			cancel(resilience.ErrShutdown)
		}
	}()
	return work, func() { cancel(nil); <-done }
}

// start waits for the database and checks the rules. It returns nil also when ctx ended.
func (w *Watchdog) start(ctx context.Context) error {
	for delay := firstWait; ; delay = min(2*delay, longestWait) {
		warnings, err := w.Check(ctx)
		if err == nil {
			for _, warning := range warnings {
				w.options.Logger.Warn().Msg(message.Clip(warning, maxError))
			}
			return nil
		}
		if stopping(ctx) {
			return nil
		}
		if !passing(err) {
			return fmt.Errorf("start watchdog: %w", err)
		}
		w.tell(ctx, err)
		if !pause.For(ctx, delay) {
			return nil
		}
	}
}

// passing tells a database that is away or overloaded from rules that do not fit.
func passing(err error) bool {
	class := resilience.Classify(err)
	return pg.IsUnavailable(err) || class != resilience.ClassUnknown && class.Retryable()
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

// pause is the wait before the next cycle: none when overdue rows were left, else Interval, spread by a tenth
// so that replicas that started together drift apart.
func (w *Watchdog) pause(results []Result, err error) time.Duration {
	for _, result := range results {
		if result.More && err == nil {
			return 0
		}
	}
	return w.options.Interval - rand.N(w.options.Interval/10+1)
}
