package resilience_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
)

func TestBudgetOnlyShrinks(t *testing.T) {
	t.Parallel()
	testkit.Bubble(t, func(ctx context.Context, t *rapid.T) {
		limits := rapid.SliceOfN(rapid.IntRange(0, 5000), 1, 6).Draw(t, "limits")
		shrink(ctx, t, time.Hour, limits)
	})
}

// shrink nests budgets and requires that each has no more than least, what is left around it.
func shrink(ctx context.Context, t *rapid.T, least time.Duration, limits []int) {
	if len(limits) == 0 {
		return
	}
	limit := time.Duration(limits[0]) * time.Millisecond
	ctx, cancel := resilience.WithBudget(ctx, limit)
	defer cancel()
	least = min(least, limit)
	left, limited := resilience.Left(ctx)
	require.True(t, limited)
	require.Equal(t, least, left)
	spent := time.Duration(rapid.IntRange(0, 500).Draw(t, "spent")) * time.Millisecond
	time.Sleep(spent)
	shrink(ctx, t, max(least-spent, 0), limits[1:])
}

func TestThreeEndsOfAContextAreTold(t *testing.T) {
	t.Parallel()
	errWhy := errors.New("user closed the page")
	for name, tt := range map[string]struct {
		end   func(ctx context.Context) context.Context
		want  error
		not   []error
		also  error
		class resilience.Class
	}{
		"deadline": {
			end: func(ctx context.Context) context.Context {
				ctx, cancel := resilience.WithBudget(ctx, time.Second)
				defer time.AfterFunc(2*time.Second, cancel)
				<-ctx.Done()
				return ctx
			},
			want: resilience.ErrDeadline, also: context.DeadlineExceeded, class: resilience.ClassTimeout,
		},
		"deadline of another library": {
			end: func(ctx context.Context) context.Context {
				ctx, cancel := context.WithTimeout(ctx, time.Second)
				defer time.AfterFunc(2*time.Second, cancel)
				<-ctx.Done()
				return ctx
			},
			want: resilience.ErrDeadline, also: context.DeadlineExceeded, class: resilience.ClassTimeout,
		},
		"caller": {
			end: func(ctx context.Context) context.Context {
				ctx, cancel := context.WithCancel(ctx)
				cancel()
				return ctx
			},
			want: resilience.ErrCancelled, also: context.Canceled, class: resilience.ClassCancelled,
		},
		"caller with a cause": {
			end: func(ctx context.Context) context.Context {
				ctx, cancel := context.WithCancelCause(ctx)
				cancel(errWhy)
				return ctx
			},
			want: resilience.ErrCancelled, also: errWhy, class: resilience.ClassCancelled,
		},
		"shutdown around a budget": {
			end: func(ctx context.Context) context.Context {
				ctx, stop := context.WithCancelCause(ctx)
				ctx, cancel := resilience.WithBudget(ctx, time.Second)
				defer cancel()
				stop(resilience.ErrShutdown)
				return ctx
			},
			want: resilience.ErrShutdown, also: resilience.ErrShutdown, class: resilience.ClassShutdown,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				require.NoError(t, resilience.Ended(t.Context()))
				ended := resilience.Ended(tt.end(t.Context()))
				require.ErrorIs(t, ended, tt.want)
				require.ErrorIs(t, ended, tt.also)
				require.Equal(t, tt.class, resilience.Classify(ended))
				for _, other := range []error{resilience.ErrDeadline, resilience.ErrCancelled, resilience.ErrShutdown, resilience.ErrTimeout} {
					require.Equal(t, errors.Is(tt.want, other), errors.Is(ended, other), other)
				}
				time.Sleep(2 * time.Second)
			})
		})
	}
}

func TestBudgetRemembersItsLastAttempts(t *testing.T) {
	t.Parallel()
	ctx, cancel := resilience.WithBudget(t.Context(), time.Minute)
	defer cancel()
	inner, cancelInner := resilience.WithBudget(ctx, time.Second)
	defer cancelInner()
	for n := range 40 {
		resilience.BudgetOf(inner).Record(resilience.Attempt{Number: n})
	}
	kept, forgotten := resilience.BudgetOf(ctx).Attempts()
	require.Len(t, kept, 32)
	require.Equal(t, 8, forgotten)
	require.Equal(t, 8, kept[0].Number)
	require.Equal(t, 39, kept[31].Number)

	none := resilience.BudgetOf(t.Context())
	require.Nil(t, none)
	none.Record(resilience.Attempt{})
	kept, forgotten = none.Attempts()
	require.Empty(t, kept)
	require.Zero(t, forgotten)
}

func TestAttemptIsReadable(t *testing.T) {
	t.Parallel()
	a := resilience.Attempt{Dependency: "inventory", Number: 2, Class: resilience.ClassTimeout, Took: 400 * time.Millisecond, Left: 310 * time.Millisecond}
	require.Equal(t, "inventory #2 timeout after 400ms, 310ms left", a.String())
	require.Equal(t, "inventory #1 done after 0s", resilience.Attempt{Dependency: "inventory", Number: 1, Left: -1}.String())
}

func TestBudgetOverHTTP(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		header string
		own    time.Duration
		want   time.Duration // -1: no limit
	}{
		"caller's is smaller":  {"1500", 3 * time.Second, 1500 * time.Millisecond},
		"server's is smaller":  {"5000", 3 * time.Second, 3 * time.Second},
		"missing":              {"", 3 * time.Second, 3 * time.Second},
		"no limit anywhere":    {"", 0, -1},
		"server without limit": {"700", 0, 700 * time.Millisecond},
		"no time left":         {"0", 3 * time.Second, 0},
		"no number":            {"soon", 3 * time.Second, 3 * time.Second},
		"negative":             {"-5", 3 * time.Second, 3 * time.Second},
		"fraction":             {"1.5", 3 * time.Second, 3 * time.Second},
		"beyond all bounds":    {"99999999999999999999999999", 3 * time.Second, 3 * time.Second},
		"overflow of ns":       {"999999999999999999", 0, 24 * time.Hour},
		"spaces":               {" 100", 3 * time.Second, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)
				if tt.header != "" {
					r.Header.Set(resilience.HeaderTimeout, tt.header)
				}
				ctx, cancel := resilience.BudgetFromRequest(r, tt.own)
				defer cancel()
				require.NotNil(t, resilience.BudgetOf(ctx))
				left, limited := resilience.Left(ctx)
				require.Equal(t, tt.want >= 0, limited)
				require.Equal(t, max(tt.want, 0), left)
				if tt.want == 0 {
					require.ErrorIs(t, resilience.Ended(ctx), resilience.ErrDeadline)
				}
			})
		})
	}
}

func TestBudgetIsSentRoundedDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := resilience.WithBudget(t.Context(), 2*time.Second-time.Microsecond)
		defer cancel()
		h := http.Header{}
		resilience.SetTimeoutHeader(ctx, h)
		require.Equal(t, "1999", h.Get(resilience.HeaderTimeout))
		time.Sleep(3 * time.Second)
		resilience.SetTimeoutHeader(ctx, h)
		require.Equal(t, "0", h.Get(resilience.HeaderTimeout))
		resilience.SetTimeoutHeader(t.Context(), h)
		require.Empty(t, h)
	})
}

func TestNestedLimitsAreChecked(t *testing.T) {
	t.Parallel()
	require.Empty(t, resilience.CheckNested(
		resilience.Limit{Name: "gateway", Value: 5 * time.Second}, resilience.Limit{Name: "orders", Value: 3 * time.Second},
		resilience.Limit{Name: "none"}, resilience.Limit{Name: "inventory", Value: 2 * time.Second},
	))
	require.Equal(t, []string{"inventory (3s) is not smaller than orders (3s) around it: it never acts; lower it, or raise the outer one"},
		resilience.CheckNested(resilience.Limit{Name: "orders", Value: 3 * time.Second}, resilience.Limit{Name: "inventory", Value: 3 * time.Second}))
}

func FuzzTimeoutHeader(f *testing.F) {
	for _, seed := range []string{"", "0", "1500", "-1", "1e3", "99999999999999999999", "0x10", "1_000", "\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		limit, ok := resilience.TimeoutFrom(http.Header{resilience.HeaderTimeout: {text}})
		if limit < 0 || limit > 24*time.Hour {
			t.Fatalf("%q is %s", text, limit)
		}
		if _, err := strconv.ParseUint(text, 10, 63); ok && err != nil {
			t.Fatalf("%q is no number", text)
		}
	})
}
