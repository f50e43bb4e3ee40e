package idempotency_test

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
)

// provider is another service: it knows what was asked of it by key, and counts charges apart from checks.
type provider struct {
	mu              sync.Mutex
	charged         map[string]bool
	charges, checks atomic.Int32
	broken          atomic.Bool // it charges, and does not answer
}

func (p *provider) charge(key string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.charges.Add(1)
	p.charged[key] = true
	if p.broken.Load() {
		return errBroken
	}
	return nil
}

func (p *provider) check(key string) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checks.Add(1)
	if p.broken.Load() {
		return false, errBroken
	}
	return p.charged[key], nil
}

// payment is a request that charges: STARTED, the charge, PAID.
func payment(p place, from *provider, check bool) idempotency.Steps {
	paid := func(ctx context.Context, tx pgx.Tx) (idempotency.Answer, error) { return p.apply(ctx, tx) }
	steps := idempotency.Steps{
		Start: func(context.Context, pgx.Tx, *http.Request) (idempotency.Answer, error) {
			a := idempotency.JSON(http.StatusAccepted, map[string]string{"paymentStatus": "PendingConfirmation"})
			a.Pending = true
			return a, nil
		},
		Ask: func(ctx context.Context, _ *http.Request) (idempotency.Finish, error) {
			k, _ := idempotency.KeyFrom(ctx)
			return paid, from.charge(k.Key)
		},
	}
	if check {
		steps.Check = func(ctx context.Context, _ *http.Request) (idempotency.Finish, error) {
			k, _ := idempotency.KeyFrom(ctx)
			charged, err := from.check(k.Key)
			if err == nil && !charged {
				return func(context.Context, pgx.Tx) (idempotency.Answer, error) { return idempotency.Answer{Status: 402}, nil }, nil
			}
			return paid, err
		}
	}
	return steps
}

func newProvider() *provider { return &provider{charged: map[string]bool{}} }

func TestAnOutcomeThatIsKnownIsAnswered(t *testing.T) {
	t.Parallel()
	p, from := newPlace(t), newProvider()
	s := p.store(t).HandleSteps(payment(p, from, false))
	require.Equal(t, 201, direct(t.Context(), s, "k").status)
	again := direct(t.Context(), s, "k")
	require.Equal(t, 201, again.status)
	require.True(t, again.replayed())
	require.EqualValues(t, 1, from.charges.Load())
	require.Equal(t, 1, p.effects(t, "k"))
}

// An outcome that is not known is an honest answer, not an error, and nothing is charged again for it.
func TestAnUnknownOutcomeStaysPendingUntilItIsResolved(t *testing.T) {
	t.Parallel()
	p, from := newPlace(t), newProvider()
	from.broken.Store(true)
	store := p.store(t)
	server := serve(t, store.HandleSteps(payment(p, from, false)))
	for n := range 3 {
		a := ask(t.Context(), server, "k", "")
		require.Equal(t, 202, a.status, a.body)
		require.JSONEq(t, `{"paymentStatus":"PendingConfirmation"}`, a.body)
		require.Equal(t, n > 0, a.replayed())
	}
	ask(t.Context(), server, "k", "another").isProblem(t, 422, resilience.CodeIdempotencyKeyReused)
	require.EqualValues(t, 1, from.charges.Load())

	resolve := func(key string) (resolved bool) {
		require.NoError(t, pgx.BeginFunc(t.Context(), p.Pool, func(tx pgx.Tx) (err error) {
			resolved, err = store.Resolve(t.Context(), tx, idempotency.Key{Caller: "alpine", Key: key}, idempotency.JSON(201, "paid"))
			return err
		}))
		return resolved
	}
	require.True(t, resolve("k"))
	require.False(t, resolve("k"), "only what is pending")
	require.False(t, resolve("never seen"))
	a := ask(t.Context(), server, "k", "")
	require.Equal(t, 201, a.status)
	require.Equal(t, "\"paid\"\n", a.body)
	require.EqualValues(t, 1, from.charges.Load())
	require.ErrorContains(t, pgx.BeginFunc(t.Context(), p.Pool, func(tx pgx.Tx) error {
		_, err := store.Resolve(t.Context(), tx, idempotency.Key{Caller: "alpine", Key: "k"}, idempotency.Answer{Status: 1})
		return err
	}), "status 1")
}

// A client that asks again has the authority asked, which never charges.
func TestAPendingRequestIsCheckedWhenItComesAgain(t *testing.T) {
	t.Parallel()
	p, from := newPlace(t), newProvider()
	from.broken.Store(true)
	s := p.store(t).HandleSteps(payment(p, from, true))
	require.Equal(t, 202, direct(t.Context(), s, "k").status)
	require.Equal(t, 202, direct(t.Context(), s, "k").status, "the authority does not answer either")
	from.broken.Store(false)
	a := direct(t.Context(), s, "k")
	require.Equal(t, 201, a.status, a.body)
	require.True(t, direct(t.Context(), s, "k").replayed())
	require.EqualValues(t, 1, from.charges.Load())
	require.EqualValues(t, 2, from.checks.Load())
	require.Equal(t, 1, p.effects(t, "k"))
}

// The process dies between the call and what follows from it: the request is pending, the charge is found, not repeated.
func TestACrashBetweenTheTransactionsIsPending(t *testing.T) {
	t.Parallel()
	p, from := newPlace(t), newProvider()
	steps := payment(p, from, true)
	charge := steps.Ask
	steps.Ask = func(ctx context.Context, r *http.Request) (idempotency.Finish, error) {
		_, _ = charge(ctx, r)
		panic("killed")
	}
	server := serve(t, p.store(t).HandleSteps(steps))
	ask(t.Context(), server, "k", "").isProblem(t, 500, resilience.CodeInternal)
	require.Zero(t, p.effects(t, "k"))
	require.Equal(t, 201, ask(t.Context(), server, "k", "").status)
	require.EqualValues(t, 1, from.charges.Load())
	require.Equal(t, 1, p.effects(t, "k"))
}

// Several processes learn the outcome at once, and one writes it down.
func TestAnOutcomeIsWrittenOnce(t *testing.T) {
	t.Parallel()
	p, from := newPlace(t), newProvider()
	from.broken.Store(true)
	require.Equal(t, 202, direct(t.Context(), p.store(t).HandleSteps(payment(p, from, true)), "k").status)
	from.broken.Store(false)
	var all, learned sync.WaitGroup
	learned.Add(4)
	answers := make(chan answer, 4)
	for range 4 {
		steps := payment(p, from, true)
		check := steps.Check
		steps.Check = func(ctx context.Context, r *http.Request) (idempotency.Finish, error) {
			finish, err := check(ctx, r)
			learned.Done()
			learned.Wait()
			return finish, err
		}
		s := p.store(t).HandleSteps(steps)
		all.Go(func() { answers <- direct(t.Context(), s, "k") })
	}
	all.Wait()
	first := <-answers
	for range 3 {
		other := <-answers
		require.Equal(t, 201, other.status)
		require.Equal(t, first.body, other.body)
	}
	require.Equal(t, 1, p.effects(t, "k"))
	require.EqualValues(t, 1, from.charges.Load())
}

// What certainly had no effect leaves the key free, with what was written about it.
func TestAnAnswerThatIsForgottenLeavesTheKeyFree(t *testing.T) {
	t.Parallel()
	p, from := newPlace(t), newProvider()
	steps := payment(p, from, false)
	charge, open := steps.Ask, true
	steps.Ask = func(ctx context.Context, r *http.Request) (idempotency.Finish, error) {
		if open { // its circuit: it was not asked
			return func(ctx context.Context, tx pgx.Tx) (idempotency.Answer, error) {
				_, err := p.apply(ctx, tx)
				return idempotency.Answer{Status: 503, Header: http.Header{"Retry-After": {"7"}}, Forget: true}, err
			}, nil
		}
		return charge(ctx, r)
	}
	s := p.store(t).HandleSteps(steps)
	a := direct(t.Context(), s, "k")
	require.Equal(t, 503, a.status)
	require.Equal(t, "7", a.header.Get("Retry-After"))
	require.Empty(t, a.header.Get(idempotency.HeaderRetention))
	require.Equal(t, 1, p.effects(t, "k"), "what it wrote is there")
	open = false
	require.Equal(t, 201, direct(t.Context(), s, "k").status)
	require.EqualValues(t, 1, from.charges.Load())
}

// Whoever waited for such an answer has its own run.
func TestAnAnswerThatIsForgottenIsNobodyElses(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	inside, leave := make(chan struct{}), make(chan struct{})
	var runs atomic.Int32
	s := p.store(t).Handle(func(ctx context.Context, tx pgx.Tx, _ *http.Request) (idempotency.Answer, error) {
		if runs.Add(1) == 1 {
			close(inside)
			<-leave
			return idempotency.Answer{Status: 503, Forget: true}, nil
		}
		return p.apply(ctx, tx)
	})
	answers := make(chan answer, 2)
	go func() { answers <- direct(t.Context(), s, "k") }()
	<-inside
	waits := waiter{Context: t.Context(), asked: make(chan struct{})}
	go func() { answers <- direct(waits, s, "k") }()
	<-waits.asked
	close(leave)
	require.ElementsMatch(t, []int{503, 201}, []int{(<-answers).status, (<-answers).status})
	require.Equal(t, 1, p.effects(t, "k"))
}

// waiter is a context that tells when somebody waits for its end.
type waiter struct {
	context.Context //nolint:containedctx // it is one
	asked           chan struct{}
}

func (w waiter) Done() <-chan struct{} {
	select {
	case <-w.asked:
	default:
		close(w.asked)
	}
	return w.Context.Done()
}

// When what follows cannot be written, the outcome stays pending for whoever asks next.
func TestAFinishThatFailsStaysPending(t *testing.T) {
	t.Parallel()
	p, from := newPlace(t), newProvider()
	steps := payment(p, from, true)
	steps.Ask = func(ctx context.Context, _ *http.Request) (idempotency.Finish, error) {
		k, _ := idempotency.KeyFrom(ctx)
		return func(context.Context, pgx.Tx) (idempotency.Answer, error) {
			return idempotency.Answer{}, &httpserver.Problem{Code: "X"}
		}, from.charge(k.Key)
	}
	s := p.store(t).HandleSteps(steps)
	require.Equal(t, 202, direct(t.Context(), s, "k").status)
	require.Equal(t, 201, direct(t.Context(), s, "k").status)
	steps.Ask = func(context.Context, *http.Request) (idempotency.Finish, error) { return nil, nil } //nolint:nilnil // that is the fault
	require.Equal(t, 202, direct(t.Context(), p.store(t).HandleSteps(steps), "nothing").status)
}

// Steps may need something from elsewhere first, which a request that is remembered does not.
func TestPreparedStepsAreAskedOnce(t *testing.T) {
	t.Parallel()
	p, from := newPlace(t), newProvider()
	from.broken.Store(true)
	steps := payment(p, from, true)
	start, prepared := steps.Start, 0
	steps.Start, steps.Prepare = nil, func(context.Context, *http.Request) (idempotency.Handler, error) {
		if prepared++; prepared > 1 {
			return nil, resilience.Unavailable(errBroken)
		}
		return start, nil
	}
	s := p.store(t).HandleSteps(steps)
	require.Equal(t, 202, direct(t.Context(), s, "k").status)
	from.broken.Store(false)
	require.Equal(t, 201, direct(t.Context(), s, "k").status, "it is checked, and not prepared again")
	require.Equal(t, 1, prepared)
	require.EqualValues(t, 1, from.charges.Load())
	require.Equal(t, 503, direct(t.Context(), s, "another").status)
}
