package httpclient_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

// service is a server whose handler calls the next service.
func service(t *testing.T, handler httpserver.Handler) string {
	t.Helper()
	s, err := httpserver.New(httpserver.Options{Handler: handler, Logger: testkit.Logger(t)})
	require.NoError(t, err)
	return serve(t, s.ServeHTTP)
}

// One budget and one id go through two services; each hop has less time than the one before, and what fails at the end is told at the
// beginning by its code, with its Retry-After, and with nothing of the service behind.
func TestABudgetAndAnIDGoThroughTheHops(t *testing.T) {
	t.Parallel()
	type hop struct {
		id   string
		left time.Duration
	}
	hops := make(chan hop, 8)
	note := func(r *http.Request) {
		left, _ := resilience.Left(r.Context())
		hops <- hop{message.RequestIDFrom(r.Context()), left}
	}
	inventory := service(t, func(w http.ResponseWriter, r *http.Request) error {
		note(r)
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusServiceUnavailable)
		return nil
	})
	client, _ := newClient(t, resilience.Settings{Deadline: time.Minute, Timeout: 30 * time.Second}, httpclient.Options{})
	orders := service(t, func(_ http.ResponseWriter, r *http.Request) error {
		note(r)
		_, err := client.Do(request(r.Context(), t, http.MethodGet, inventory, "", "")) //nolint:bodyclose // an error
		return err
	})
	r := request(t.Context(), t, http.MethodGet, orders, "", "")
	r.Header.Set(resilience.HeaderTimeout, "3000")
	r.Header.Set(httpclient.HeaderRequestID, "req-7")
	began := time.Now()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	require.NoError(t, err)
	defer func() { require.NoError(t, resp.Body.Close()) }()
	require.Less(t, time.Since(began), 3*time.Second, "no wait for a Retry-After that the budget does not hold")
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	var problem struct {
		Code resilience.Code `json:"code"`
	}
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&problem))
	require.Equal(t, resilience.CodeDependencyUnavailable, problem.Code)
	require.Equal(t, "req-7", resp.Header.Get(httpclient.HeaderRequestID))
	after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	require.NoError(t, err)
	require.Equal(t, 7, after, "the wait that the dependency asked for is passed on")

	close(hops)
	last := 3 * time.Second
	n := 0
	for h := range hops {
		n++
		require.Equal(t, "req-7", h.id)
		require.Positive(t, h.left)
		require.LessOrEqual(t, h.left, last)
		last = h.left
	}
	require.Equal(t, 2, n, "one attempt at each hop")
}
