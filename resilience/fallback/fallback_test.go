package fallback_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/fallback"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func newCache(t *testing.T, o fallback.CacheOptions) *fallback.Cache[string] {
	t.Helper()
	c, err := fallback.NewCache[string](o)
	require.NoError(t, err)
	return c
}

// get asks a source that answers with value, or fails.
func get(t *testing.T, c *fallback.Cache[string], key, value string, err error) (fallback.Answer[string], error) {
	t.Helper()
	return c.Get(t.Context(), key, func(context.Context) (string, error) { return value, err })
}

var errAway = &resilience.StatusError{Status: 503}

func TestAStaleAnswerSaysHowOldItIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, fallback.CacheOptions{MaxAge: time.Minute})
		fresh, err := get(t, c, "k", "v1", nil)
		require.NoError(t, err)
		require.Equal(t, fallback.Answer[string]{Value: "v1"}, fresh)
		h := http.Header{}
		fresh.SetAge(h)
		require.Empty(t, h)

		time.Sleep(59*time.Second + 900*time.Millisecond)
		stale, err := get(t, c, "k", "", errAway)
		require.NoError(t, err)
		require.Equal(t, fallback.Answer[string]{Value: "v1", Stale: true, Age: 59*time.Second + 900*time.Millisecond}, stale)
		stale.SetAge(h)
		require.Equal(t, "59", h.Get("Age"))

		time.Sleep(time.Second)
		_, err = get(t, c, "k", "", errAway)
		require.ErrorIs(t, err, errAway, "too old is worse than nothing")
	})
}

func TestAnswersOfTheSourceAreNotReplaced(t *testing.T) {
	t.Parallel()
	c := newCache(t, fallback.CacheOptions{Empty: true})
	_, err := get(t, c, "k", "v1", nil)
	require.NoError(t, err)
	for _, answer := range []error{&resilience.StatusError{Status: 404}, resilience.Permanent(errors.New("x")), context.Canceled, resilience.ErrShutdown} {
		_, err := get(t, c, "k", "", answer)
		require.ErrorIs(t, err, answer)
	}
	for _, failure := range []error{errAway, context.DeadlineExceeded, resilience.Unavailable(errors.New("x")), errors.New("x")} {
		got, err := get(t, c, "k", "", failure)
		require.NoError(t, err)
		require.True(t, got.Stale)
		got, err = get(t, c, "unknown", "", failure)
		require.NoError(t, err)
		require.Equal(t, fallback.Answer[string]{Partial: true}, got)
	}
}

func TestTheCacheIsBounded(t *testing.T) {
	t.Parallel()
	c := newCache(t, fallback.CacheOptions{Entries: 3})
	for i := range 3 {
		_, err := get(t, c, strconv.Itoa(i), "v", nil)
		require.NoError(t, err)
	}
	_, err := get(t, c, "0", "", errAway) // used again
	require.NoError(t, err)
	_, err = get(t, c, "3", "v", nil)
	require.NoError(t, err)
	for key, kept := range map[string]bool{"0": true, "1": false, "2": true, "3": true} {
		_, err := get(t, c, key, "", errAway)
		require.Equal(t, kept, err == nil, key)
	}
	_, err = fallback.NewCache[string](fallback.CacheOptions{Entries: -1})
	require.Error(t, err)
}

// The fields and values are those that clients know.
func TestAPaymentWithoutAnAnswerIsPending(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, err := policy.New(policy.Options{Name: "payments", Settings: resilience.Settings{Timeout: 300 * time.Millisecond, Retry: resilience.Retry{Attempts: 1}}})
		require.NoError(t, err)
		err = p.Do(t.Context(), policy.Call{Idempotent: true}, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		pending, ok := fallback.PendingPayment(err, "payments", "order-1")
		require.True(t, ok)
		text, err := json.Marshal(pending)
		require.NoError(t, err)
		require.JSONEq(t, `{"paymentStatus":"PendingConfirmation","paymentConfirmed":false,"isFallback":true,"source":"payments","reason":"primary-timeout",
			"requiresStatusCheck":true,"retryAdvice":"retry-with-same-idempotency-key","idempotencyKey":"order-1","transactionId":null,
			"message":"The payment is not confirmed yet. Ask for its status, or send the same request with the same idempotency key; you will not be charged twice."}`, string(text))
	})
}

func TestWhatIsKnownIsNotPending(t *testing.T) {
	t.Parallel()
	p, err := policy.New(policy.Options{Name: "payments", Settings: resilience.Settings{
		Retry: resilience.Retry{Attempts: 1}, Breaker: resilience.Breaker{Failures: 1, Open: time.Hour},
	}})
	require.NoError(t, err)
	call := func(err error) error {
		return p.Do(t.Context(), policy.Call{}, func(context.Context) error { return err })
	}
	for _, tt := range []struct {
		err    error
		reason string // empty: the outcome is known
	}{
		{nil, ""},
		{call(&resilience.StatusError{Status: 402}), ""},
		{resilience.Permanent(errors.New("declined")), ""},
		{errors.New("encode request"), ""},
		{fmt.Errorf("charge: %w", context.DeadlineExceeded), fallback.ReasonTimeout},
		{call(errAway), fallback.ReasonUnavailable},
		{call(nil), fallback.ReasonCircuitOpen},
	} {
		got, ok := fallback.PendingPayment(tt.err, "payments", "k")
		require.Equal(t, tt.reason != "", ok, tt.err)
		require.Equal(t, tt.reason, got.Reason)
	}
}

// A catalog that is away is answered from what it said last.
func ExampleCache() {
	cache, err := fallback.NewCache[[]string](fallback.CacheOptions{MaxAge: 10 * time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	ask := func(items []string, err error) {
		answer, err := cache.Get(context.Background(), "books", func(context.Context) ([]string, error) { return items, err })
		fmt.Println(answer.Value, answer.Stale, err)
	}
	ask([]string{"Go"}, nil)
	ask(nil, &resilience.StatusError{Status: http.StatusServiceUnavailable})
	// Output:
	// [Go] false <nil>
	// [Go] true <nil>
}
