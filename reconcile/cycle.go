package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/usertable"
	"github.com/surefoot-mq/surefoot/resilience"
)

// Result is what a run, a cycle of one rule, did.
type Result struct {
	Rule string `json:"rule"`
	// Run is its id. It never changes, and is in the log lines and events that came of it.
	Run string `json:"run"`
	// Checked suspects were asked about.
	Checked int `json:"checked"`
	// Mismatches are those that were wrong and were mended, each with its event.
	Mismatches int `json:"mismatches"`
	// Kept are those that were right.
	Kept int `json:"kept"`
	// Unanswered are those that nothing is known of; they will be asked about again.
	Unanswered int `json:"unanswered"`
	// Lost are those that somebody else changed, or claimed, before their answer came.
	Lost int `json:"lost"`
	// Failed are those that were wrong and could not be changed; they will be tried again.
	Failed int `json:"failed"`
	// More tells that the bound of the cycle was reached and due suspects are left.
	More bool `json:"more"`
}

// Once runs one cycle over all rules, or over those that are named, and returns what was done for each, also when others failed. It
// asks nothing more when ctx ends, and gives back what it had claimed. With a schema of another version it does nothing but say so.
func (r *Reconciler) Once(ctx context.Context, rules ...string) ([]Result, error) {
	if err := pg.CheckVersion(ctx, r.options.Pool, r.options.Schema); err != nil {
		return nil, err
	}
	work, release := usertable.Drain(ctx, r.options.DrainTimeout, r.options.Logger)
	defer release()
	var results []Result
	var faults []error
	for _, rule := range r.options.Rules {
		if len(rules) > 0 && !slices.Contains(rules, rule.Name) {
			continue
		}
		if ctx.Err() != nil {
			faults = append(faults, context.Cause(ctx))
			break
		}
		result, err := r.cycle(ctx, work, rule)
		results, faults = append(results, result), append(faults, err)
	}
	return results, errors.Join(faults...)
}

// cycle stops asking when stop ends and cuts changes off when work ends.
func (r *Reconciler) cycle(stop, work context.Context, rule Rule) (Result, error) {
	began := time.Now()
	result := Result{Rule: rule.Name}
	run, start, err := r.beginRun(work, rule)
	if err == nil {
		result.Run = run.String()
		err = r.drain(stop, work, rule, run, start, &result)
		err = errors.Join(err, r.endRun(work, run, result, err))
	}
	if err == nil {
		err = errors.Join(r.clean(work), r.measure(work, rule))
	}
	r.metrics.seconds.WithLabelValues(rule.Name).Observe(time.Since(began).Seconds())
	if err != nil {
		r.metrics.errors.WithLabelValues(rule.Name).Inc()
		return result, fmt.Errorf("reconcile rule %q: %w", rule.Name, err)
	}
	return result, nil
}

// drain asks about what is due, batch by batch, up to the bound of a cycle. It ends early when a whole batch has no answer: then the
// authority is away, and the others are spared.
func (r *Reconciler) drain(stop, work context.Context, rule Rule, run uuid.UUID, start time.Time, result *Result) error {
	// Compiled anew in each cycle: a column whose type was changed meanwhile must not break every change.
	c, err := r.compile(work, rule)
	if err != nil {
		return err
	}
	for n := 0; stop.Err() == nil; n++ {
		if n == r.options.MaxBatches {
			result.More = true
			return nil
		}
		leaseEnd := time.Now().Add(r.options.lease())
		taken, found, err := r.claim(work, c, run, start)
		if err != nil {
			return err
		}
		b := &batch{r: r, c: c, run: run, result: result, leaseEnd: leaseEnd}
		before := *result
		if err := b.work(stop, work, taken); err != nil {
			return err
		}
		checked := result.Checked - before.Checked
		if found < r.options.Batch || checked > 0 && checked == result.Unanswered-before.Unanswered {
			return nil
		}
	}
	return nil
}

// batch is what was claimed at once.
type batch struct {
	r        *Reconciler
	c        *compiled
	run      uuid.UUID
	leaseEnd time.Time

	mu     sync.Mutex
	result *Result
	lines  int // of suspects without an answer and of failures
	left   []claimed
}

// work asks about each suspect, some at a time, and gives back those that it did not come to.
func (b *batch) work(stop, work context.Context, taken []claimed) error {
	group, ctx := errgroup.WithContext(work)
	group.SetLimit(b.r.options.Concurrency)
	for _, s := range taken {
		group.Go(func() error { return b.one(stop, ctx, s) })
	}
	err := group.Wait()
	b.tellRest()
	return errors.Join(err, b.r.release(work, b.c, b.run, b.left))
}

// one asks about a suspect and does what follows. An error means that the database is at fault.
func (b *batch) one(stop, work context.Context, s claimed) error {
	if stopping(stop) || stopping(work) || time.Until(b.leaseEnd) < b.r.options.AskTimeout {
		b.leave(s)
		return nil
	}
	answer, err := b.ask(stop, s.Suspect)
	_, acts := b.c.Answers[answer]
	switch {
	case err != nil && stopping(stop): // cut off by us
		b.leave(s)
		return nil
	case err != nil:
		return b.missed(work, s, "", resultUnanswered, err)
	case slices.Contains(b.c.Keep, answer):
		return b.counted(b.r.keep(work, b.c, b.run, s, answer), resultKept)
	case !acts:
		return b.missed(work, s, answer, resultUnanswered, errors.New("the rule names no such answer; add it to answers or to keep"))
	}
	return b.mended(work, s, answer, b.r.mend(work, b.c, b.run, s, answer))
}

func stopping(ctx context.Context) bool { return ctx.Err() != nil }

// ask is one question within its time. A panic is no answer.
func (b *batch) ask(stop context.Context, s Suspect) (answer string, err error) {
	ctx, cancel := context.WithTimeoutCause(stop, b.r.options.AskTimeout, resilience.ErrTimeout)
	defer cancel()
	defer func() {
		if cause := recover(); cause != nil {
			answer, err = "", fmt.Errorf("panic in the authority: %.200v", cause)
		}
	}()
	answer, err = b.c.Authority.Ask(ctx, s)
	if err == nil {
		if fault := usertable.TextFault(answer, maxText); fault != "" {
			return "", errors.New("the answer " + fault)
		}
	}
	return answer, err
}

// mended deals with the end of a change.
func (b *batch) mended(work context.Context, s claimed, answer string, err error) error {
	switch {
	case err == nil:
		b.report(s, answer)
		b.r.metrics.mismatches.WithLabelValues(b.c.Name, answer).Inc()
		return b.counted(nil, resultMended)
	case errors.Is(err, errLost):
		return b.counted(err, "")
	case errors.Is(err, errChanged):
		return errors.Join(b.counted(errLost, ""), b.r.drop(work, b.c, b.run, s))
	case work.Err() != nil || pg.IsUnavailable(err):
		return err // it says nothing about the row, and the commit may have succeeded: the lease ends, and the row is looked at again
	}
	return b.missed(work, s, answer, resultFailed, err)
}

// missed records a suspect that stays.
func (b *batch) missed(work context.Context, s claimed, answer, what string, cause error) error {
	next, err := b.r.miss(work, b.c, b.run, s, answer, cause)
	if err == nil {
		b.complain(s, answer, what, cause, next)
	}
	return b.counted(err, what)
}

// counted counts what became of a suspect. A claim that was lost is counted as such, and no error.
func (b *batch) counted(err error, what string) error {
	if errors.Is(err, errLost) {
		err, what = nil, resultLost
	}
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.result.Checked++
	*b.result.figure(what)++
	b.r.metrics.checks.WithLabelValues(b.c.Name, what).Inc()
	return nil
}

func (b *batch) leave(s claimed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = append(b.left, s)
}

// What became of a suspect, in metrics.
const (
	resultMended     = "mismatch"
	resultKept       = "kept"
	resultUnanswered = "unanswered"
	resultLost       = "lost"
	resultFailed     = "failed"
)

func (r *Result) figure(what string) *int {
	switch what {
	case resultMended:
		return &r.Mismatches
	case resultKept:
		return &r.Kept
	case resultUnanswered:
		return &r.Unanswered
	case resultLost:
		return &r.Lost
	}
	return &r.Failed
}
