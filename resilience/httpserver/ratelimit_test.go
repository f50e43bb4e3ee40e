package httpserver_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

func newLimiter(t testing.TB, o httpserver.Rate) *httpserver.Limiter {
	t.Helper()
	l, err := httpserver.NewLimiter(o)
	require.NoError(t, err)
	return l
}

func counting(calls *atomic.Int32) http.Handler {
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) })
}

// scenarios.md, rate-limit: a burst of 30 against a bucket of 5.
func TestABurstOverTheRateIsRefusedAndDoesNothing(t *testing.T) {
	t.Parallel()
	var calls, accepted, refused atomic.Int32
	limiter := newLimiter(t, httpserver.Rate{Requests: 5, Per: time.Hour, Burst: 5})
	server, _ := newServer(t, limiter.Wrap(counting(&calls)))
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			got, err := ask(t.Context(), server, http.MethodGet, "/", http.NoBody)
			if err != nil {
				return
			}
			if got.StatusCode == http.StatusOK {
				accepted.Add(1)
				return
			}
			if got.StatusCode == http.StatusTooManyRequests && got.Header.Get("Retry-After") == "720" {
				refused.Add(1)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 5, accepted.Load())
	require.EqualValues(t, 25, refused.Load(), "each with the time until the next token: an hour by five")
	require.EqualValues(t, 5, calls.Load())
	get(t, server, "/").problem(t, resilience.CodeRateLimited)
}

func TestEachRouteAndClientHasItsOwnBucket(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	mux := http.NewServeMux()
	byTenant := func(r *http.Request) string { return r.Header.Get("Tenant") }
	mux.Handle("GET /a", newLimiter(t, httpserver.Rate{Requests: 1, Per: time.Hour, Client: byTenant}).Wrap(counting(&calls)))
	mux.Handle("GET /b", newLimiter(t, httpserver.Rate{Requests: 1, Per: time.Hour, Client: byTenant}).Wrap(counting(&calls)))
	mux.Handle("GET /all", newLimiter(t, httpserver.Rate{Requests: 1, Per: time.Hour, Client: httpserver.Everyone}).Wrap(counting(&calls)))
	server, _ := newServer(t, mux)
	for _, c := range []struct {
		path, tenant string
		want         int
	}{
		{"/a", "1", 200},
		{"/a", "1", 429},
		{"/a", "2", 200},
		{"/b", "1", 200},
		{"/b", "1", 429},
		{"/all", "1", 200},
		{"/all", "2", 429},
	} {
		require.Equal(t, c.want, get(t, server, c.path, "Tenant", c.tenant).StatusCode, "%+v", c)
	}
	require.EqualValues(t, 4, calls.Load())
}

func TestTheServersLimiterGuardsAllRoutes(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	server, log := newServer(t, counting(&calls), func(o *httpserver.Options) { o.Limiter = newLimiter(t, httpserver.Rate{Requests: 1, Per: time.Hour}) })
	require.Equal(t, 200, get(t, server, "/a").StatusCode)
	require.Equal(t, 429, get(t, server, "/b", "X-Forwarded-For", "192.0.2.9").StatusCode, "a header makes nobody another client")
	require.EqualValues(t, 1, calls.Load())
	require.Equal(t, "warn", lineWith(t, log, "RATE_LIMITED")["level"])
}

// Whatever clients do, and however many they are, none gets more than burst + rate * time.
func TestNoClientGetsMoreThanItsRate(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := httpserver.Rate{
			Requests: rapid.IntRange(1, 50).Draw(t, "requests"), Burst: rapid.IntRange(1, 20).Draw(t, "burst"),
			Per: time.Duration(rapid.IntRange(1, 5000).Draw(t, "per ms")) * time.Millisecond, MaxClients: rapid.IntRange(1, 5).Draw(t, "max clients"),
		}
		l, err := httpserver.NewLimiter(o)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Unix(1000, 0)
		now, got := start, map[string][]time.Time{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "pause ms")) * time.Millisecond)
			client := strconv.Itoa(rapid.IntRange(0, 8).Draw(t, "client"))
			wait, ok := l.TakeAt(client, now)
			if !ok && (wait <= 0 || wait > o.Per) {
				t.Fatalf("refused, and told to wait for %s at a rate of %d in %s", wait, o.Requests, o.Per)
			}
			if ok {
				got[client] = append(got[client], now)
			}
		}
		if l.Clients() > o.MaxClients {
			t.Fatalf("%d clients are remembered, more than %d", l.Clients(), o.MaxClients)
		}
		for client, times := range got {
			checkRate(t, o, client, times)
		}
	})
}

// checkRate looks at every window between two accepted requests.
func checkRate(t *rapid.T, o httpserver.Rate, client string, times []time.Time) {
	for i := range times {
		for j := i; j < len(times); j++ {
			allowed := float64(o.Burst) + float64(o.Requests)*times[j].Sub(times[i]).Seconds()/o.Per.Seconds()
			if float64(j-i+1) > allowed+1e-6 {
				t.Fatalf("client %s got %d requests in %s, more than %d and %d in %s", client, j-i+1, times[j].Sub(times[i]), o.Burst, o.Requests, o.Per)
			}
		}
	}
}

// A client that keeps to its rate, or waits as long as it is told, is always served.
func TestAClientThatWaitsIsServed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l, err := httpserver.NewLimiter(httpserver.Rate{
			Requests: rapid.IntRange(1, 50).Draw(t, "requests"), Burst: rapid.IntRange(1, 20).Draw(t, "burst"),
			Per: time.Duration(rapid.IntRange(1, 60_000).Draw(t, "per ms")) * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		now := time.Unix(1000, 0)
		for range 100 {
			wait, ok := l.TakeAt("a", now)
			if ok {
				continue
			}
			now = now.Add(time.Duration(httpserver.WholeSeconds(wait)) * time.Second)
			if _, ok := l.TakeAt("a", now); !ok {
				t.Fatalf("refused after a wait of %s", wait)
			}
		}
	})
}

// A million clients cost no more memory than the limit says, and take nobody's bucket away.
func TestMemoryIsBoundedForAnyNumberOfClients(t *testing.T) {
	t.Parallel()
	const clients = 2000
	l := newLimiter(t, httpserver.Rate{Requests: 1, Per: time.Minute, Burst: 3, MaxClients: clients})
	now := time.Unix(1000, 0)
	for range 3 {
		_, ok := l.TakeAt("victim", now)
		require.True(t, ok)
	}
	before := heap()
	for i := range 200_000 {
		l.TakeAt(fmt.Sprintf("%s-%d", strings.Repeat("x", 1000), i), now)
	}
	require.Equal(t, clients, l.Clients())
	require.Less(t, heap()-before, int64(clients)*1000, "bytes")
	_, ok := l.TakeAt("victim", now)
	require.False(t, ok, "its bucket is still the empty one")
	now = now.Add(3 * time.Minute)
	for i := range clients {
		l.TakeAt(fmt.Sprint("later", i), now)
	}
	require.Equal(t, clients, l.Clients())
	_, ok = l.TakeAt("later1", now)
	require.True(t, ok)
	_, ok = l.TakeAt("later1", now)
	require.True(t, ok, "full buckets gave way: newcomers have their own again")
}

func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func TestARateThatIsWrongIsRefused(t *testing.T) {
	t.Parallel()
	_, err := httpserver.NewLimiter(httpserver.Rate{Per: -1, Burst: -1, MaxClients: -1})
	for _, fault := range []string{"Requests", "Per", "Burst", "MaxClients"} {
		require.ErrorContains(t, err, fault)
	}
}

func BenchmarkLimiter(b *testing.B) {
	l := newLimiter(b, httpserver.Rate{Requests: 1 << 30})
	r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/", http.NoBody)
	for b.Loop() {
		_ = l.Take(r)
	}
}
