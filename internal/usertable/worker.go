package usertable

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// LongestWait is the longest one between two tries while the database is away.
const LongestWait = 15 * time.Second

const firstWait = 500 * time.Millisecond

// Drain returns a context that ends d after ctx, with [resilience.ErrShutdown], for a change in flight. Release frees it and waits for its goroutine.
func Drain(ctx context.Context, d time.Duration, log zerolog.Logger) (work context.Context, release func()) {
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer telemetry.FatalOnPanic(log)
		defer close(done)
		select {
		case <-ctx.Done():
		case <-work.Done():
			return
		}
		if pause.For(work, d) {
			cancel(resilience.ErrShutdown)
		}
	}()
	return work, func() { cancel(nil); <-done }
}

// Await checks rules until the database answers, and logs what the check warns of. Each error that passes is told. It is false when ctx ended before.
func Await(ctx context.Context, log zerolog.Logger, check func(context.Context) (warnings []string, err error), tell func(error)) (bool, error) {
	for delay := firstWait; ; delay = min(2*delay, LongestWait) {
		warnings, err := check(ctx)
		if err == nil {
			for _, warning := range warnings {
				log.Warn().Msg(message.Clip(warning, maxError))
			}
			return true, nil
		}
		if ctx.Err() != nil {
			return false, nil //nolint:nilerr // stopped, not failed
		}
		if !Passing(err) {
			return false, err
		}
		tell(err)
		if !pause.For(ctx, delay) {
			return false, nil
		}
	}
}

// Passing tells a database that is away or overloaded from rules that do not fit.
func Passing(err error) bool {
	class := resilience.Classify(err)
	return pg.IsUnavailable(err) || class != resilience.ClassUnknown && class.Retryable()
}

// Spread takes up to a tenth off an interval, so that replicas that started together drift apart.
func Spread(interval time.Duration) time.Duration {
	return interval - rand.N(interval/10+1) //nolint:gosec // spreads load
}

// LimitLocks bounds each wait for a lock in the transaction.
func LimitLocks(ctx context.Context, tx pgx.Tx, d time.Duration) error {
	// set_config takes a parameter, SET does not.
	if _, err := tx.Exec(ctx, `SELECT set_config('lock_timeout', $1, true)`, fmt.Sprintf("%dms", d.Milliseconds())); err != nil {
		return fmt.Errorf("limit lock waits: %w", err)
	}
	return nil
}
