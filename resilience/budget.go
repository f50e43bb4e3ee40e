package resilience

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// MinAttempt is the least time that must be left for an attempt to start: one with less would only burden the dependency.
const MinAttempt = 25 * time.Millisecond

// maxAttempts bounds the record of a budget; the oldest attempts give way.
const maxAttempts = 32

// The ways in which a context ends, and an attempt. A shutdown is [ErrShutdown].
var (
	// ErrDeadline is the end of the operation's budget. errors.Is finds context.DeadlineExceeded in it.
	ErrDeadline error = &endError{"deadline of the operation exceeded", context.DeadlineExceeded}
	// ErrTimeout is the end of the time that a dependency gets, for an attempt or a whole call, while the operation has some left:
	// the dependency is slow, and its outcome unknown. errors.Is finds context.DeadlineExceeded in it.
	ErrTimeout error = &endError{"dependency timed out", context.DeadlineExceeded}
	// ErrCancelled is the caller's wish that the work ends. errors.Is finds context.Canceled in it.
	ErrCancelled error = &endError{"cancelled by the caller", context.Canceled}
)

// endError is an end of a context with a name of its own.
type endError struct {
	text string
	is   error
}

func (e *endError) Error() string { return e.text }
func (e *endError) Unwrap() error { return e.is }

// Attempt is one try of a call, as a [Budget] remembers it.
type Attempt struct {
	// Dependency that was called.
	Dependency string `json:"dependency"`
	// Number of the try within its call, from 1.
	Number int `json:"number"`
	// Class of its error; ClassNone: it succeeded.
	Class Class `json:"class"`
	// Start of the try, and how long it Took.
	Start time.Time     `json:"start"`
	Took  time.Duration `json:"took_ns"`
	// Left is what the operation had left when the try started; negative: it had no limit.
	Left time.Duration `json:"left_ns"`
}

// String is for logs: "inventory #2 timeout after 400ms, 310ms left".
func (a Attempt) String() string {
	class := a.Class
	if class == ClassNone {
		class = "done"
	}
	text := fmt.Sprintf("%s #%d %s after %s", a.Dependency, a.Number, class, a.Took.Round(time.Millisecond))
	if a.Left >= 0 {
		text += fmt.Sprintf(", %s left", a.Left.Round(time.Millisecond))
	}
	return text
}

// Budget is the time of one operation and what became of it. It travels in the context ([WithBudget]), over HTTP
// ([SetTimeoutHeader], [BudgetFromRequest]), and in messages as the expiry of the whole job. It is safe for concurrent use.
type Budget struct {
	mu       sync.Mutex
	attempts []Attempt // a ring once it is full, whose oldest is at forgot
	forgot   int
}

type budgetKey struct{}

// WithBudget gives an operation at most limit from now. A deadline that ctx has already stays when it is earlier, so what is
// inside never has more time than what is around it. Limits of one operation share one record of attempts.
//
// The context ends with [ErrDeadline], with the caller's cancellation, or with a shutdown: [Ended] tells which. The clock is
// the process's monotonic one. The function must be called when the operation is over.
func WithBudget(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if BudgetOf(ctx) == nil {
		ctx = context.WithValue(ctx, budgetKey{}, new(Budget))
	}
	return context.WithTimeoutCause(ctx, limit, ErrDeadline)
}

// BudgetOf returns the budget that ctx carries, nil when it carries none. All methods accept nil.
func BudgetOf(ctx context.Context) *Budget {
	b, _ := ctx.Value(budgetKey{}).(*Budget)
	return b
}

// Left returns how much time ctx has left, never below 0; false when it has no limit.
func Left(ctx context.Context) (time.Duration, bool) {
	deadline, limited := ctx.Deadline()
	if !limited {
		return 0, false
	}
	return max(time.Until(deadline), 0), true
}

// Ended tells why ctx has ended: [ErrDeadline], [ErrTimeout], [ErrCancelled] or [ErrShutdown], or an error that wraps
// one of them together with the cause that was given. It is nil while ctx has not ended.
func Ended(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	for _, known := range []error{ErrShutdown, ErrDeadline, ErrTimeout, ErrCancelled} {
		if errors.Is(cause, known) {
			return cause
		}
	}
	end := ErrCancelled
	if errors.Is(err, context.DeadlineExceeded) {
		end = ErrDeadline
	}
	if errors.Is(end, cause) {
		return end
	}
	return fmt.Errorf("%w: %w", end, cause)
}

// Record adds an attempt. The last 32 are kept.
func (b *Budget) Record(a Attempt) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.attempts) < maxAttempts {
		b.attempts = append(b.attempts, a)
		return
	}
	b.attempts[b.forgot%maxAttempts] = a
	b.forgot++
}

// Attempts returns what was recorded, oldest first, and how many older ones were forgotten.
func (b *Budget) Attempts() (kept []Attempt, forgotten int) {
	if b == nil {
		return nil, 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	oldest := b.forgot % maxAttempts
	return append(append(kept, b.attempts[oldest:]...), b.attempts[:oldest]...), b.forgot
}

// Limit is a time limit with a name.
type Limit struct {
	Name  string
	Value time.Duration
}

// CheckNested compares limits, the outermost first, and returns a warning for each that is not smaller than the one around
// it: when the outer one ends first, the inner one never acts, and what it should have saved is lost. Limits of 0 are left out.
func CheckNested(limits ...Limit) (warnings []string) {
	var outer Limit
	for _, inner := range limits {
		if inner.Value <= 0 {
			continue
		}
		if outer.Value > 0 && inner.Value >= outer.Value {
			warnings = append(warnings, fmt.Sprintf("%s (%s) is not smaller than %s (%s) around it: it never acts; lower it, or raise the outer one",
				inner.Name, inner.Value, outer.Name, outer.Value))
		}
		outer = inner
	}
	return warnings
}
