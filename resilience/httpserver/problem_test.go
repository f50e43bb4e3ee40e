package httpserver_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

func TestEveryFailureIsAProblemWithACode(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		status int
		code   resilience.Code
		retry  string
	}{
		{errSecret, 500, resilience.CodeInternal, ""},
		{fmt.Errorf("charge: %w: %w", errSecret, circuitbreaker.ErrOpen), 503, resilience.CodeDependencyUnavailable, "1"},
		{resilience.RetryAfter(errSecret, 2001*time.Millisecond), 503, resilience.CodeDependencyUnavailable, "3"},
		{&resilience.StatusError{Status: 429, After: 7 * time.Second, Err: errSecret}, 503, resilience.CodeDependencyUnavailable, "7"},
		{&resilience.StatusError{Status: 404, Err: errSecret}, 502, resilience.CodeDependencyError, ""},
		{&httpserver.Problem{Code: resilience.CodeDependencyOverloaded, RetryAfter: 1, Err: errSecret}, 503, resilience.CodeDependencyOverloaded, "1"},
		{fmt.Errorf("order: %w", &httpserver.Problem{Code: "OUT_OF_STOCK", Status: 409, Err: errSecret}), 409, "OUT_OF_STOCK", ""},
		{&httpserver.Problem{Code: resilience.CodeIdempotencyKeyReused}, 422, resilience.CodeIdempotencyKeyReused, ""},
		{&httpserver.Problem{Code: resilience.CodeIdempotencyPending}, 409, resilience.CodeIdempotencyPending, "1"},
		{&httpserver.Problem{Code: "TEAPOT", Status: 99}, 500, "TEAPOT", ""},
	} {
		server, log := newServer(t, failing(c.err))
		got := get(t, server, "/")
		require.Equal(t, c.status, got.StatusCode)
		members := got.problem(t, c.code)
		require.Equal(t, http.StatusText(c.status), members["title"])
		require.Equal(t, c.retry, got.Header.Get("Retry-After"), "%v", c.err)
		require.Equal(t, "no-store", got.Header.Get("Cache-Control"))
		require.NotContains(t, got.body, "hunter2")
		require.NotContains(t, got.body, "10.0.0.7")
		if c.code == resilience.CodeInternal {
			line := lineWith(t, log, "hunter2")
			require.Equal(t, "error", line["level"])
			require.Equal(t, got.Header.Get(httpserver.HeaderRequestID), line["request_id"])
		}
	}
}

func TestAProblemHasMembersOfItsOwn(t *testing.T) {
	t.Parallel()
	server, _ := newServer(t, failing(&httpserver.Problem{
		Code: "OUT_OF_STOCK", Status: 409, Detail: "There is no tea.", Members: map[string]any{"sku": "tea", "code": "forged", "status": 200},
	}))
	members := get(t, server, "/").problem(t, "OUT_OF_STOCK")
	require.Equal(t, "tea", members["sku"])
	require.Equal(t, "There is no tea.", members["detail"])
	broken, _ := newServer(t, failing(&httpserver.Problem{Code: "X", Status: 400, Members: map[string]any{"f": func() {}}}))
	get(t, broken, "/").problem(t, "X")
}

// What a handler had prepared describes the answer that it did not send.
func TestAProblemTakesThePlaceOfWhatWasPrepared(t *testing.T) {
	t.Parallel()
	server, _ := newServer(t, httpserver.Handler(func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Length", "3")
		w.Header().Set("Etag", "x")
		return errSecret
	}))
	got := get(t, server, "/")
	got.problem(t, resilience.CodeInternal)
	require.Empty(t, got.Header.Get("Etag"))
}

// Problems are sent without a server of ours too.
func TestErrorWorksByItself(t *testing.T) {
	t.Parallel()
	recorder := httptest.NewRecorder()
	httpserver.Error(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody), context.DeadlineExceeded)
	require.Equal(t, 503, recorder.Code)
	require.NotContains(t, recorder.Body.String(), "requestId")
	recorder = httptest.NewRecorder()
	httpserver.Error(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody), nil)
	require.Equal(t, 500, recorder.Code)
	require.Nil(t, httpserver.ProblemOf(t.Context(), nil))
}

func TestAProblemIsAnError(t *testing.T) {
	t.Parallel()
	p := &httpserver.Problem{Code: "X", Err: errSecret}
	require.EqualError(t, p, "X: password=hunter2 at 10.0.0.7")
	require.ErrorIs(t, p, errSecret)
	require.EqualError(t, &httpserver.Problem{Code: "X", Detail: "why"}, "X: why")
	require.EqualError(t, &httpserver.Problem{Code: "X"}, "X")
}
