package idempotency_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
)

// The commit arrives, its answer does not, and the database is away for a while: what became of the request is not known, and
// that is what the client is told. With the same key it learns the answer later.
func TestACommitWithoutAnAnswerIsPendingAndThenFound(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	network, pool := through(t, p)
	server := serve(t, p.store(t, func(o *idempotency.Options) { o.Pool = pool }).Handle(
		func(ctx context.Context, tx pgx.Tx, _ *http.Request) (idempotency.Answer, error) {
			a, err := p.apply(ctx, tx)
			if k, _ := idempotency.KeyFrom(ctx); k.Key == "k" {
				network.HalfOpenAnswers(t)
			}
			return a, err
		}))
	require.Equal(t, 201, ask(t.Context(), server, "before", "").status, "its connection has prepared the statements")
	got := make(chan answer)
	go func() { got <- ask(t.Context(), server, "k", "") }()
	testkit.Eventually(t, 10*time.Second, "the commit", func() bool { return p.effects(t, "k") == 1 })
	network.Cut()
	pending := <-got
	pending.isProblem(t, 409, resilience.CodeIdempotencyPending)
	require.Equal(t, "1", pending.header.Get("Retry-After"))
	network.Heal(t)
	again := ask(t.Context(), server, "k", "")
	require.Equal(t, 201, again.status, again.body)
	require.True(t, again.replayed())
	require.Equal(t, 1, p.effects(t, "k"))
}

// When the database comes back at once, the request finds out by itself.
func TestACommitWithoutAnAnswerIsLookedUp(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	network, pool := through(t, p)
	server := serve(t, p.store(t, func(o *idempotency.Options) { o.Pool = pool }).Handle(
		func(ctx context.Context, tx pgx.Tx, _ *http.Request) (idempotency.Answer, error) {
			a, err := p.apply(ctx, tx)
			if k, _ := idempotency.KeyFrom(ctx); k.Key == "k" {
				network.HalfOpenAnswers(t)
			}
			return a, err
		}))
	require.Equal(t, 201, ask(t.Context(), server, "before", "").status, "its connection has prepared the statements")
	got := make(chan answer)
	go func() { got <- ask(t.Context(), server, "k", "") }()
	testkit.Eventually(t, 10*time.Second, "the commit", func() bool { return p.effects(t, "k") == 1 })
	network.Heal(t) // closes the connection
	a := <-got
	require.Equal(t, 201, a.status, a.body)
	require.True(t, a.replayed())
	require.Equal(t, 1, p.effects(t, "k"))
}

// The connection is lost before the commit, in the handler or after it: the server rolls back, and the handler runs again.
func TestALostTransactionRunsAgain(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	network, pool := through(t, p)
	cut := map[string]bool{"before": true, "after": true}
	server := serve(t, p.store(t, func(o *idempotency.Options) { o.Pool = pool }).Handle(
		func(ctx context.Context, tx pgx.Tx, _ *http.Request) (idempotency.Answer, error) {
			k, _ := idempotency.KeyFrom(ctx)
			lose := func(when string) { //nolint:contextcheck // the network has the test's
				if k.Key == when && cut[when] {
					cut[when] = false
					network.Cut()
					network.Heal(t)
				}
			}
			lose("before")
			a, err := p.apply(ctx, tx)
			lose("after")
			return a, err
		}))
	for _, key := range []string{"before", "after"} {
		a := ask(t.Context(), server, key, "")
		require.Equal(t, 201, a.status, a.body)
		require.False(t, a.replayed())
		require.False(t, cut[key])
		require.Equal(t, 1, p.effects(t, key))
	}
}

func TestADatabaseAwayIsADependencyAway(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	network, pool := through(t, p)
	server := serve(t, p.store(t, func(o *idempotency.Options) { o.Pool = pool }).Handle(p.handler))
	network.Cut()
	ask(t.Context(), server, "k", "").isProblem(t, 503, resilience.CodeDependencyUnavailable)
	network.Heal(t)
	require.Equal(t, 201, ask(t.Context(), server, "k", "").status)
}

// The commit is there, and the client's network breaks before the answer: it tries again with its key and gets that answer.
func TestAClientThatLostItsAnswerGetsItAgain(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	var network *testkit.FaultyNetwork
	first := true
	server := serve(t, p.store(t).Handle(func(ctx context.Context, tx pgx.Tx, _ *http.Request) (idempotency.Answer, error) {
		a, err := p.apply(ctx, tx)
		if first {
			first = false
			network.HalfOpenAnswers(t)
		}
		return a, err
	}))
	network = testkit.Proxy(t, server.URL)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport}
	lost := make(chan answer)
	go func() { lost <- askAs(t.Context(), client, network.Through(t, server.URL), "alpine", "k", "") }()
	testkit.Eventually(t, 10*time.Second, "the commit", func() bool { return p.effects(t, "k") == 1 })
	network.Cut()
	require.Zero(t, (<-lost).status, "no answer came")
	network.Heal(t)
	again := askAs(t.Context(), client, network.Through(t, server.URL), "alpine", "k", "")
	require.Equal(t, 201, again.status, again.body)
	require.True(t, again.replayed())
	require.Equal(t, 1, p.effects(t, "k"))
}
