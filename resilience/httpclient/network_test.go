package httpclient_test

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// inventory reserves once per key, and may break its network in between.
type inventory struct {
	mu       sync.Mutex
	reserved map[string]int
	requests int
	before   func(n int) // the answer, after the effect
}

func (i *inventory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	i.requests++
	n := i.requests
	i.reserved[r.Header.Get(httpclient.HeaderKey)] = 1
	i.mu.Unlock()
	if i.before != nil {
		i.before(n)
	}
	w.WriteHeader(http.StatusCreated)
}

// The first answer is lost with its connection: the second attempt, with the same key, finds the reservation that the first made.
func TestALostAnswerMakesOneReservation(t *testing.T) {
	t.Parallel()
	stock := &inventory{reserved: map[string]int{}}
	upstream := serve(t, stock.ServeHTTP)
	network := testkit.Proxy(t, upstream)
	stock.before = func(n int) {
		if n == 1 {
			network.Reset(t)
			time.AfterFunc(50*time.Millisecond, func() { network.Heal(t) })
		}
	}
	client, _ := newClient(t, resilience.Settings{
		Timeout: 2 * time.Second, Retry: resilience.Retry{Attempts: 10, Base: 20 * time.Millisecond}, Breaker: resilience.Breaker{Failures: 100},
	}, httpclient.Options{})
	ctx, cancel := resilience.WithBudget(t.Context(), 20*time.Second)
	defer cancel()
	err := send(client, request(ctx, t, http.MethodPost, network.Through(t, upstream), "{}", "order-1"))
	require.NoError(t, err)
	require.Len(t, stock.reserved, 1, "one reservation")
	kept, _ := resilience.BudgetOf(ctx).Attempts()
	require.GreaterOrEqual(t, len(kept), 2, "with its attempts recorded")
	require.Equal(t, resilience.ClassTransient, kept[0].Class)
	require.Equal(t, resilience.ClassNone, kept[len(kept)-1].Class)
}

// A peer that is dead and closes nothing holds a place for the timeout only; then the circuit refuses at once, and a probe closes it.
func TestADeadPeerIsLeftOutAndComesBack(t *testing.T) {
	t.Parallel()
	upstream := serve(t, func(http.ResponseWriter, *http.Request) {})
	network := testkit.Proxy(t, upstream)
	url := network.Through(t, upstream)
	client, p := newClient(t, resilience.Settings{
		Timeout: 300 * time.Millisecond, Deadline: 10 * time.Second, Retry: resilience.Retry{Attempts: 1},
		Breaker: resilience.Breaker{Failures: 6, Open: 500 * time.Millisecond}, Bulkhead: resilience.Bulkhead{Active: 2},
	}, httpclient.Options{})
	network.HalfOpen(t)
	began := time.Now()
	var callers sync.WaitGroup
	errs := make(chan error, 6)
	for range 6 {
		callers.Go(func() {
			err := send(client, request(t.Context(), t, http.MethodGet, url, "", ""))
			errs <- err
		})
	}
	callers.Wait()
	require.GreaterOrEqual(t, time.Since(began), 900*time.Millisecond)
	for range 6 {
		e := failureOf(t, <-errs)
		require.ErrorIs(t, e, resilience.ErrTimeout)
		require.Equal(t, resilience.CodeDependencyUnavailable, e.Code())
		require.Equal(t, policy.EffectUnknown, e.Effect)
	}
	active, queued := p.Places()
	require.Zero(t, active+queued, "no place is lost")
	require.Equal(t, policy.Open, p.State())

	err := send(client, request(t.Context(), t, http.MethodGet, url, "", ""))
	e := failureOf(t, err)
	require.False(t, e.Called())
	require.Positive(t, e.RetryAfter())
	require.Equal(t, resilience.ClassUnavailable, resilience.Classify(err))

	network.Heal(t)
	testkit.Eventually(t, 10*time.Second, "a probe to close the circuit", func() bool {
		err := send(client, request(t.Context(), t, http.MethodGet, url, "", ""))
		return err == nil
	})
	require.Equal(t, policy.Closed, p.State())
}

func TestARefusedConnectionHadNoEffect(t *testing.T) {
	t.Parallel()
	upstream := serve(t, func(http.ResponseWriter, *http.Request) {})
	network := testkit.Proxy(t, upstream)
	url := network.Through(t, upstream)
	network.Cut()
	client, _ := newClient(t, quick, httpclient.Options{})
	err := send(client, request(t.Context(), t, http.MethodPost, url, "{}", "k"))
	e := failureOf(t, err)
	require.Equal(t, policy.EffectNone, e.Effect)
	require.Equal(t, resilience.CodeDependencyUnavailable, e.Code())
	require.Len(t, e.Attempts, 3)
}

// The server is told what it has, gives up by then, and the client's own limit never comes after it.
func TestTheServerIsToldHowMuchTimeItHas(t *testing.T) {
	t.Parallel()
	gaveUp := make(chan error, 1)
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		ctx, cancel := resilience.BudgetFromRequest(r, time.Minute)
		defer cancel()
		left, _ := resilience.Left(ctx) //nolint:contextcheck // it is the request's
		if left > 400*time.Millisecond {
			gaveUp <- resilience.ErrCancelled
			return
		}
		<-ctx.Done()
		gaveUp <- resilience.Ended(ctx) //nolint:contextcheck // it is the request's
		<-r.Context().Done()            // no answer: the client has given up too
	})
	client, _ := newClient(t, resilience.Settings{Retry: resilience.Retry{Attempts: 1}}, httpclient.Options{})
	ctx, cancel := resilience.WithBudget(t.Context(), 400*time.Millisecond)
	defer cancel()
	err := send(client, request(ctx, t, http.MethodGet, url, "", ""))
	require.Equal(t, resilience.CodeDeadlineExceeded, failureOf(t, err).Code())
	require.Error(t, <-gaveUp, "with its own error, whichever came first: the time, or the client's leaving")
}

// What net/http sends again by itself, on a kept connection that breaks, would be an attempt that nobody decided on nor recorded.
func TestTheTransportMakesNoAttemptsOfItsOwn(t *testing.T) {
	t.Parallel()
	var got seen
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if got.add(r) == 1 {
			return // leaves a connection to be used again
		}
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_ = conn.Close()
		}
	})
	client, _ := newClient(t, resilience.Settings{Retry: resilience.Retry{Attempts: 1}}, httpclient.Options{})
	require.NoError(t, send(client, request(t.Context(), t, http.MethodPost, url, "{}", "a")))
	e := failureOf(t, send(client, request(t.Context(), t, http.MethodPost, url, "{}", "b")))
	require.Len(t, e.Attempts, 1)
	require.Len(t, got.all(), 2)
}
