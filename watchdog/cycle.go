package watchdog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/internal/usertable"
	"github.com/surefoot-mq/surefoot/resilience"
)

const (
	countLimit = 10000
	// logFailures bounds the lines of one batch, so that a fault that every row meets does not fill the disk.
	logFailures = 10
)

// Result is what a cycle did for one rule.
type Result struct {
	Rule string `json:"rule"`
	// Cancelled rows were changed, each with its event.
	Cancelled int `json:"cancelled"`
	// Failed rows were recorded and will be tried again.
	Failed int `json:"failed"`
	// More tells that the bound of the cycle was reached and overdue rows are left.
	More bool `json:"more"`
}

// Once runs one cycle over all rules and returns what was done for each, also when others failed. It stops
// between transactions when ctx ends; a transaction that is cut off is rolled back. With a schema of another version it
// does nothing but say so.
func (w *Watchdog) Once(ctx context.Context) ([]Result, error) {
	if err := pg.CheckVersion(ctx, w.options.Pool, w.options.Schema); err != nil {
		return nil, err
	}
	return w.cycle(ctx, ctx)
}

// cycle stops between transactions when stop ends and cuts transactions off when work ends.
func (w *Watchdog) cycle(stop, work context.Context) ([]Result, error) {
	began := time.Now()
	var results []Result
	var faults []error
	for _, rule := range w.options.Rules {
		if stop.Err() != nil {
			break
		}
		result, err := w.cycleRule(stop, work, rule)
		results = append(results, result)
		if err != nil {
			w.metrics.errors.WithLabelValues(rule.Name).Inc()
			faults = append(faults, err)
		}
	}
	if stop.Err() == nil {
		faults = append(faults, w.expireFailures(work), w.expireHolds(work))
	}
	w.metrics.seconds.Observe(time.Since(began).Seconds())
	err := errors.Join(faults...)
	if err == nil && stop.Err() == nil {
		w.metrics.lastSuccess.SetToCurrentTime()
	}
	return results, err
}

func (w *Watchdog) cycleRule(stop, work context.Context, rule Rule) (Result, error) {
	result := Result{Rule: rule.Name}
	// Compiled anew in each cycle: a column whose type was changed meanwhile must not break every claim.
	r, err := w.compile(work, rule)
	if err != nil {
		return result, err
	}
	err = w.drain(stop, work, r, &result)
	if err == nil {
		err = w.measure(work, r)
	}
	if err != nil {
		return result, fmt.Errorf("watchdog rule %q: %w", rule.Name, err)
	}
	return result, nil
}

// drain empties both lanes, batch by batch, up to the bound of a cycle.
func (w *Watchdog) drain(stop, work context.Context, r *compiled, result *Result) error {
	var start time.Time
	if err := w.options.Pool.QueryRow(work, `SELECT clock_timestamp()`).Scan(&start); err != nil {
		return fmt.Errorf("read the database's clock: %w", err)
	}
	left := w.options.MaxBatches
	for _, l := range []lane{laneFresh, laneAgain} {
		for full := true; full; left-- {
			if stopping(stop) {
				return nil
			}
			if left == 0 {
				result.More = true
				return nil
			}
			claimed, err := w.some(work, r, l, start, w.options.Batch, result)
			if _, cut := errors.AsType[*cutError](err); cut {
				claimed, err = w.singly(stop, work, r, l, start, result)
			}
			if err != nil {
				return err
			}
			full = claimed == w.options.Batch
		}
	}
	return nil
}

// some deals with up to size rows and returns how many there were.
func (w *Watchdog) some(work context.Context, r *compiled, l lane, start time.Time, size int, result *Result) (int, error) {
	out, err := w.batch(work, r, l, start, size)
	if cut, ok := errors.AsType[*cutError](err); ok && size == 1 {
		out, err = w.isolate(work, r, cut)
	}
	if err != nil {
		return 0, err
	}
	w.report(r, out)
	result.Cancelled += len(out.cancelled)
	result.Failed += len(out.failed)
	return out.claimed, nil
}

// singly deals with the rows of a batch one by one, because under one of them the session ended.
func (w *Watchdog) singly(stop, work context.Context, r *compiled, l lane, start time.Time, result *Result) (done int, err error) {
	for ; done < w.options.Batch && !stopping(stop); done++ {
		if n, err := w.some(work, r, l, start, 1, result); n == 0 || err != nil {
			return done, err
		}
	}
	return done, nil
}

func stopping(ctx context.Context) bool { return ctx.Err() != nil }

// report speaks of a batch once it is committed.
func (w *Watchdog) report(r *compiled, out outcome) {
	w.metrics.cancelled.WithLabelValues(r.Name).Add(float64(len(out.cancelled)))
	w.metrics.failures.WithLabelValues(r.Name).Add(float64(len(out.failed)))
	for _, row := range out.cancelled {
		w.options.Logger.Warn().Str(telemetry.FieldRule, r.Name).Str(telemetry.FieldKey, row.Key).
			Str(telemetry.FieldReason, r.Reason).Str(telemetry.FieldEventID, eventID(r.Name, row)).
			Str(telemetry.FieldType, r.EventType).Time("since", row.Since.UTC()).Msg("saga cancelled")
	}
	for n, f := range out.failed {
		if n == logFailures {
			w.options.Logger.Error().Str(telemetry.FieldRule, r.Name).Int("rows", len(out.failed)-n).
				Msg("watchdog error: more rows of this batch failed; see `surefoot watchdog ls`")
			break
		}
		w.options.Logger.Error().Str(telemetry.FieldRule, r.Name).Str(telemetry.FieldKey, clipKey(f.Key)).
			Int(telemetry.FieldAttempt, f.tries).Str(telemetry.FieldErrorClass, string(resilience.Classify(f.err))).
			Str("error", usertable.Bounded(f.err)).Time("next_try", f.nextTry.UTC()).Msg("watchdog error")
	}
}

// measure sets the gauges from the tables, so that they are right whichever replica did the work.
func (w *Watchdog) measure(ctx context.Context, r *compiled) error {
	var overdue, failing, held int64
	var oldest float64
	if err := w.options.Pool.QueryRow(ctx, r.count, r.Stuck, r.Limit, countLimit, r.Name).Scan(&overdue, &oldest); err != nil {
		return fmt.Errorf("count overdue rows: %w", err)
	}
	err := w.options.Pool.QueryRow(ctx, countFailingSQL.In(w.options.Schema), r.Name, countLimit).Scan(&failing)
	if err != nil {
		return fmt.Errorf("count failing rows: %w", err)
	}
	if err := w.options.Pool.QueryRow(ctx, countHeldSQL.In(w.options.Schema), r.Name, countLimit).Scan(&held); err != nil {
		return fmt.Errorf("count held rows: %w", err)
	}
	w.metrics.overdue.WithLabelValues(r.Name).Set(float64(overdue))
	w.metrics.oldest.WithLabelValues(r.Name).Set(max(oldest, 0))
	w.metrics.failing.WithLabelValues(r.Name).Set(float64(failing))
	w.metrics.held.WithLabelValues(r.Name).Set(float64(held))
	return nil
}
