package reconcile_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/reconcile"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// client calls under a policy that gives up soon.
func client(t *testing.T) *httpclient.Client {
	t.Helper()
	orders, err := policy.New(policy.Options{Name: "orders", Logger: testkit.Logger(t), Settings: resilience.Settings{
		Timeout: 200 * time.Millisecond, Retry: resilience.Retry{Attempts: 2, Base: time.Millisecond}, Breaker: resilience.Breaker{Failures: 1000},
	}})
	require.NoError(t, err)
	c, err := httpclient.New(httpclient.Options{Policy: orders})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func httpRule(b bench, o reconcile.HTTPOptions) reconcile.Rule {
	b.t.Helper()
	o.Client = client(b.t)
	authority, err := reconcile.NewHTTP(o)
	require.NoError(b.t, err)
	rule := b.rule()
	rule.Authority = authority
	return rule
}

func TestAnotherServiceIsAsked(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 3, "")
	b.exec(`UPDATE @.reservations SET tenant = 'a&b=c' WHERE id = 1; UPDATE @.reservations SET order_id = '2/x?y' WHERE id = 2`)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("s3cret\n"), 0o600))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodGet || r.Header.Get("Authorization") != "Bearer s3cret" || r.Header.Get("X-Request-Timeout-Ms") == "":
			w.WriteHeader(http.StatusUnauthorized)
			return
		case r.URL.Path == "/v1/orders/o3":
			w.Header().Set("Content-Type", "application/problem+json; charset=utf-8")
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"title": "no such order", "code": "NOT_FOUND"}`)
			return
		}
		state := map[string]string{"/v1/orders/o1?t=a%26b%3Dc": "CANCELLED", "/v1/orders/2%2Fx%3Fy?t=a": "PENDING"}[r.URL.RequestURI()]
		fmt.Fprintf(w, `{"data": {"status": %q}, "tenant": %q}`, state, r.Header.Get("X-Tenant-Id"))
	}))
	defer server.Close()
	r := b.reconciler(httpRule(b, reconcile.HTTPOptions{
		URL: server.URL + "/v1/orders/{orderId}?t={tenant}", Headers: map[string]string{"X-Tenant-Id": "{tenant}"}, BearerFile: token, Field: "data.status",
	}))
	require.Equal(t, reconcile.Result{Rule: "reservations", Checked: 3, Mismatches: 2, Kept: 1}, b.once(r))
	require.Equal(t, []int64{1, 3}, one[[]int64](b, `SELECT array_agg(id ORDER BY id) FROM @.reservations WHERE status = 'RELEASED'`))
}

// Whatever is not the answer of the service itself leaves the suspect as it is.
// problem is a 404 in JSON.
func problem(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, body)
	}
}

// Services have words of their own for what they do not know.
func TestTheWordForWhatIsNotThere(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 1, "")
	server := httptest.NewServer(problem(`{"error": {"type": "unknown_order"}}`))
	t.Cleanup(server.Close)
	at := reconcile.HTTPOptions{URL: server.URL + "/v1/orders/{orderId}"}
	require.Equal(t, 1, b.once(b.reconciler(httpRule(b, at))).Unanswered)
	b.due()
	at.NotFound = "error.type=unknown_order"
	require.Equal(t, 1, b.once(b.reconciler(httpRule(b, at))).Mismatches)
}

func TestWhatIsNoAnswerOverHTTP(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 1, "")
	release := make(chan struct{})
	defer close(release)
	for name, answer := range map[string]http.HandlerFunc{
		"404 of a wrong path": http.NotFound,
		"404 of a proxy": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `<html>`)
		},
		"404 of a gateway":      problem(`{"message": "no Route matched with those values"}`),
		"404 of another path":   problem(`{"code": "NO_ROUTE", "status": 404}`),
		"404 of another kind":   problem(`{"code": ["NOT_FOUND"]}`),
		"404 that is no object": problem(`"NOT_FOUND"`),
		"503":                   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"500":                   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"410":                   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) },
		"no answer": func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		},
		"cut":          func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"a page":       func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `<html>CANCELLED</html>`) },
		"another form": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"state": "CANCELLED"}`) },
		"a list":       func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"status": ["CANCELLED"]}`) },
		"null":         func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"status": null}`) },
		"a redirect":   func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/x", http.StatusFound) },
		"too much": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"status": "CANCELLED", "x": %q}`, make([]byte, 2<<20))
		},
		"no word of ours": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"status": "cancelled"}`) },
	} {
		server := httptest.NewUnstartedServer(answer)
		server.Config.ErrorLog = nil
		server.Start()
		r := b.reconciler(httpRule(b, reconcile.HTTPOptions{URL: server.URL + "/v1/orders/{orderId}"}))
		require.Equal(t, reconcile.Result{Rule: "reservations", Checked: 1, Unanswered: 1}, b.once(r), name)
		require.Empty(t, b.events(), name)
		server.CloseClientConnections()
		server.Close()
		b.due()
	}
}

// A service that comes back is asked again and believed.
func TestAServiceThatComesBack(t *testing.T) {
	b := newBench(t)
	b.reserve(1, 4, "")
	var away atomic.Bool
	away.Store(true)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, `{"status": "CANCELLED"}`)
	}))
	defer server.Close()
	r := b.reconciler(httpRule(b, reconcile.HTTPOptions{URL: server.URL + "/{key}"}))
	require.Equal(t, 4, b.once(r).Unanswered)
	away.Store(false)
	b.due()
	require.Equal(t, 4, b.once(r).Mismatches)
	b.balanced()
}

// A key says nothing but which thing is asked about.
func TestAKeyLeadsNowhereElse(t *testing.T) {
	b := newBench(t)
	var paths counter
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths.count(r.URL.EscapedPath())
		fmt.Fprint(w, `{"status": "CANCELLED"}`)
	}))
	defer server.Close()
	for i, key := range []string{"..", ".", "", "../../admin", "a/../b", `a\..\b`, "/", "x//y"} {
		b.exec(`INSERT INTO @.reservations (id, order_id, since) VALUES ($1, $2, now() - interval '1 h')`, i, key)
	}
	b.exec(`INSERT INTO @.reservations (id, order_id, since) VALUES (99, 'a/b#c%2e', now() - interval '1 h')`)
	r := b.reconciler(httpRule(b, reconcile.HTTPOptions{URL: server.URL + "/v1/orders/{orderId}", Headers: map[string]string{"X-Order": "{orderId}"}}))
	require.Equal(t, reconcile.Result{Rule: "reservations", Checked: 9, Mismatches: 1, Unanswered: 8}, b.once(r))
	require.Equal(t, map[string]int{"/v1/orders/a%2Fb%23c%252e": 1}, paths.asked)
	for _, url := range []string{"", "orders/{key}", "ftp://orders/{key}", "http://{key}/x", "http://orders{key}/x", "{key}://orders/x", "http://ann:pw@orders/{key}", "http://orders/{key}#x"} {
		_, err := reconcile.NewHTTP(reconcile.HTTPOptions{Client: client(t), URL: url})
		require.ErrorContains(t, err, "the URL of the HTTP authority", url)
		require.NotContains(t, err.Error(), "ann:pw")
	}
}
