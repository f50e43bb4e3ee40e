package idempotency_test

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
)

func TestKeysAreForgottenAfterTheirRetentionUnlessTheyArePending(t *testing.T) {
	t.Parallel()
	p, from := newPlace(t), newProvider()
	registry := prometheus.NewRegistry()
	measured := func(o *idempotency.Options) { o.Metrics, o.Retention = registry, time.Hour }
	s := p.store(t, measured)
	p.store(t, measured) // shares the metrics
	done := s.Handle(p.handler)
	for n := range 7 {
		require.Equal(t, 201, direct(t.Context(), done, strconv.Itoa(n)).status)
	}
	from.broken.Store(true)
	require.Equal(t, 202, direct(t.Context(), s.HandleSteps(payment(p, from, false)), "pending").status)
	_, err := p.Pool.Exec(t.Context(), `UPDATE `+p.Schema+`.idempotency SET expires_at = expires_at - interval '2 hours', created_at = created_at - interval '2 hours' WHERE key <> '6'`)
	require.NoError(t, err)
	require.Equal(t, "0", direct(t.Context(), done, "5").header.Get(idempotency.HeaderRetention), "remembered for longer than was promised")
	require.NoError(t, s.Clean(t.Context(), 2))
	require.ElementsMatch(t, []string{"6", "pending"}, keys(t, p))
	require.Equal(t, 6, int(gauge(t, registry, "surefoot_idempotency_purged_total")))
	require.Equal(t, 1, int(gauge(t, registry, "surefoot_idempotency_pending")))
	require.InDelta(t, 7200, gauge(t, registry, "surefoot_idempotency_pending_oldest_seconds"), 60)
	require.Greater(t, gauge(t, registry, "surefoot_idempotency_bytes"), 8192.)
	require.Equal(t, 201, direct(t.Context(), done, "0").status)
	require.Equal(t, 2, p.effects(t, "0"), "after that time it is a new request")
	require.Equal(t, 8, int(testutil.ToFloat64(counter(t, registry).WithLabelValues("done"))))
}

// counter takes the counter that the store has registered.
func counter(t *testing.T, registry *prometheus.Registry) *prometheus.CounterVec {
	t.Helper()
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "surefoot_idempotency_requests_total", Help: "Requests with an idempotency key, by result."}, []string{"result"})
	var there prometheus.AlreadyRegisteredError
	require.ErrorAs(t, registry.Register(vec), &there)
	return there.ExistingCollector.(*prometheus.CounterVec)
}

func gauge(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue() + family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	require.Fail(t, "no metric", name)
	return 0
}

func keys(t *testing.T, p place) []string {
	t.Helper()
	rows, err := p.Pool.Query(t.Context(), `SELECT key FROM `+p.Schema+`.idempotency`)
	require.NoError(t, err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return got
}

// A resolved request is remembered from its answer on, however long it took.
func TestAResolvedRequestIsRememberedFromThenOn(t *testing.T) {
	t.Parallel()
	p, from := newPlace(t), newProvider()
	from.broken.Store(true)
	s := p.store(t)
	h := s.HandleSteps(payment(p, from, true))
	require.Equal(t, 202, direct(t.Context(), h, "k").status)
	_, err := p.Pool.Exec(t.Context(), `UPDATE `+p.Schema+`.idempotency SET expires_at = expires_at - interval '1 year'`)
	require.NoError(t, err)
	from.broken.Store(false)
	require.Equal(t, 201, direct(t.Context(), h, "k").status)
	require.NoError(t, s.Clean(t.Context(), 10))
	require.Equal(t, []string{"k"}, keys(t, p))
}

func TestRunCleansAndStops(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := p.store(t)
	require.Equal(t, 201, direct(t.Context(), s.Handle(p.handler), "k").status)
	_, err := p.Pool.Exec(t.Context(), `UPDATE `+p.Schema+`.idempotency SET expires_at = now() - interval '1 s'`)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	testkit.Eventually(t, 10*time.Second, "the key to be forgotten", func() bool { return len(keys(t, p)) == 0 })
	cancel()
	require.NoError(t, <-ended)
	missing := p.store(t, func(o *idempotency.Options) { o.Schema = "nowhere" })
	require.ErrorContains(t, missing.Run(t.Context()), "migrate up")
}

// Without its table the store says what to do, in the log.
func TestAMissingTableIsExplained(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	missing := p.store(t, func(o *idempotency.Options) { o.Schema = "nowhere" })
	require.ErrorContains(t, missing.Try(httpRequest(t)), "run `surefoot migrate up`")
}

func httpRequest(t *testing.T) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)
	require.NoError(t, err)
	r.Header.Set("Tenant", "alpine")
	r.Header.Set(idempotency.HeaderKey, "k")
	return r
}

func TestACallerIsErased(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := p.store(t)
	server := serve(t, s.Handle(p.handler))
	for _, tenant := range []string{"alpine", "bazaar"} {
		require.Equal(t, 201, askAs(t.Context(), server.Client(), server.URL, tenant, "k-"+tenant, "").status)
	}
	require.NoError(t, pgx.BeginFunc(t.Context(), p.Pool, func(tx pgx.Tx) error {
		n, err := s.Erase(t.Context(), tx, "alpine")
		require.EqualValues(t, 1, n)
		return err
	}))
	require.Equal(t, []string{"k-bazaar"}, keys(t, p))
}
