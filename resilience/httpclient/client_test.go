package httpclient_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// quick are limits for tests with a real network.
var quick = resilience.Settings{Timeout: 5 * time.Second, Retry: resilience.Retry{Base: time.Millisecond}}

func newClient(t *testing.T, s resilience.Settings, o httpclient.Options) (*httpclient.Client, *policy.Policy) {
	t.Helper()
	p, err := policy.New(policy.Options{Name: "inventory", Settings: s, Logger: testkit.Logger(t)})
	require.NoError(t, err)
	o.Policy = p
	c, err := httpclient.New(o)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c, p
}

func request(ctx context.Context, t *testing.T, method, url, body, key string) *http.Request {
	t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, url, reader)
	require.NoError(t, err)
	if key != "" {
		r.Header.Set(httpclient.HeaderKey, key)
	}
	return r
}

// send is for what is expected to fail.
func send(c *httpclient.Client, r *http.Request) error {
	resp, err := c.Do(r)
	if err == nil {
		_ = resp.Body.Close()
	}
	return err
}

// seen is what a server has received.
type seen struct {
	mu       sync.Mutex
	requests []*http.Request
	bodies   []string
}

func (s *seen) add(r *http.Request) (n int) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests, s.bodies = append(s.requests, r), append(s.bodies, string(body))
	return len(s.requests)
}

func (s *seen) all() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

func (s *seen) texts() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bodies)
}

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.URL
}

func failureOf(t *testing.T, err error) *policy.Error {
	t.Helper()
	e, ok := errors.AsType[*policy.Error](err)
	require.True(t, ok, "%v", err)
	return e
}

func TestEachAttemptSendsTheSame(t *testing.T) {
	t.Parallel()
	var got seen
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if got.add(r) < 3 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(`{"reserved":7}`))
	})
	client, _ := newClient(t, quick, httpclient.Options{})
	ctx, cancel := resilience.WithBudget(message.WithRequestID(t.Context(), "req-1"), 4*time.Second)
	defer cancel()
	r := request(ctx, t, http.MethodPost, url+"/v1/reservations?token=secret", `{"order":1}`, "order-1")
	r.Header.Set("Tenant", "t1")
	var out struct{ Reserved int }
	require.NoError(t, client.JSON(r, &out))
	require.Equal(t, 7, out.Reserved)

	require.Equal(t, []string{`{"order":1}`, `{"order":1}`, `{"order":1}`}, got.texts())
	last := int64(4001)
	for _, one := range got.all() {
		require.Equal(t, "order-1", one.Header.Get(httpclient.HeaderKey))
		require.Equal(t, "req-1", one.Header.Get(httpclient.HeaderRequestID))
		require.Equal(t, "t1", one.Header.Get("Tenant"))
		require.EqualValues(t, 11, one.ContentLength)
		left, err := strconv.ParseInt(one.Header.Get(resilience.HeaderTimeout), 10, 64)
		require.NoError(t, err)
		require.Less(t, left, last+1, "what is left shrinks from attempt to attempt")
		last = left
	}
	kept, _ := resilience.BudgetOf(ctx).Attempts()
	require.Len(t, kept, 3, "attempts are recorded")
	require.Empty(t, r.Header.Get(httpclient.HeaderRequestID), "the caller's request is not changed")
}

func TestWhatMayBeSentAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		method, key string
		describe    func(*http.Request, *policy.Call)
		want        int
	}{
		"get":               {http.MethodGet, "", nil, 3},
		"put":               {http.MethodPut, "", nil, 3},
		"delete":            {http.MethodDelete, "", nil, 3},
		"post":              {http.MethodPost, "", nil, 1},
		"patch":             {http.MethodPatch, "", nil, 1},
		"post with a key":   {http.MethodPost, "k", nil, 3},
		"post that reads":   {http.MethodPost, "", func(_ *http.Request, c *policy.Call) { c.Idempotent = true }, 3},
		"get with an alarm": {http.MethodGet, "", func(_ *http.Request, c *policy.Call) { c.Idempotent = false }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got seen
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				got.add(r)
				w.WriteHeader(http.StatusBadGateway)
			})
			client, _ := newClient(t, quick, httpclient.Options{Describe: tt.describe})
			// A body that can be read only once is kept.
			r := request(t.Context(), t, tt.method, url, "", tt.key)
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader([]byte("once"))), 4
			err := send(client, r)
			e := failureOf(t, err)
			require.Len(t, e.Attempts, tt.want)
			require.Len(t, got.all(), tt.want)
			require.Equal(t, "once", got.texts()[tt.want-1])
			require.Equal(t, resilience.CodeDependencyError, e.Code())
			require.Equal(t, policy.EffectUnknown, e.Effect, "a gateway does not know either")
			require.NotEmpty(t, got.all()[0].Header.Get(httpclient.HeaderRequestID), "an id is made where none is")
			require.Equal(t, got.all()[0].Header.Get(httpclient.HeaderRequestID), got.all()[tt.want-1].Header.Get(httpclient.HeaderRequestID))
		})
	}
}

func TestAnAnswerIsAnErrorWithItsBody(t *testing.T) {
	t.Parallel()
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write([]byte(`{"code":"OUT_OF_STOCK"}` + strings.Repeat(" ", 1<<20)))
	})
	client, p := newClient(t, resilience.Settings{Breaker: resilience.Breaker{Failures: 1}}, httpclient.Options{})
	err := send(client, request(t.Context(), t, http.MethodPost, url+"/v1/reservations?token=secret", "{}", "k"))
	answer, ok := errors.AsType[*httpclient.ResponseError](err)
	require.True(t, ok)
	require.Equal(t, http.StatusConflict, answer.Status)
	require.Len(t, answer.Body, 64<<10, "bounded")
	require.Contains(t, string(answer.Body), "OUT_OF_STOCK")
	require.EqualError(t, err, "call inventory: POST "+url+"/v1/reservations: http status 409 Conflict", "without query and body")
	require.Equal(t, policy.EffectAnswered, failureOf(t, err).Effect)
	require.Equal(t, policy.Closed, p.State())
}

// An earlier try with the same key may still be under way: that is asked again, and if it stays so the outcome is unknown.
func TestAPendingKeyIsAskedAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		pending int
		effect  policy.Effect
	}{
		"until it is known":   {pending: 1},
		"as often as allowed": {pending: 3, effect: policy.EffectUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got seen
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if got.add(r) <= tt.pending {
					w.Header().Set("Retry-After", "1")
					w.WriteHeader(http.StatusConflict)
					_, _ = w.Write([]byte(`{"code":"IDEMPOTENCY_PENDING"}`))
				}
			})
			client, _ := newClient(t, resilience.Settings{Retry: resilience.Retry{Attempts: 3}}, httpclient.Options{})
			err := send(client, request(t.Context(), t, http.MethodPost, url, "{}", "k"))
			require.Len(t, got.all(), min(tt.pending+1, 3))
			if tt.effect == "" {
				require.NoError(t, err)
				return
			}
			_, pending := errors.AsType[*httpclient.PendingError](err)
			require.True(t, pending)
			require.Equal(t, tt.effect, failureOf(t, err).Effect)
		})
	}
}

func TestAnAnswerOverTheLimitIsToldAsWhatItIs(t *testing.T) {
	t.Parallel()
	var got seen
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got.add(r)
		_, _ = io.Copy(w, endless{}) // until the client closes
	})
	client, p := newClient(t, quick, httpclient.Options{MaxBody: 1000})
	err := send(client, request(t.Context(), t, http.MethodPost, url, "{}", "k"))
	_, ok := errors.AsType[*httpclient.TooLargeError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, policy.EffectUnknown, failureOf(t, err).Effect, "it said yes to something")
	require.Len(t, got.all(), 1)
	require.Equal(t, policy.Closed, p.State())
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

func TestABodyThatCannotBeKeptIsRefused(t *testing.T) {
	t.Parallel()
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, n)
	})
	client, _ := newClient(t, quick, httpclient.Options{MaxBody: 1000})
	endlessRequest := func(key string) *http.Request {
		r := request(t.Context(), t, http.MethodPost, url, "", key)
		r.Body = io.NopCloser(io.LimitReader(endless{}, 2000))
		return r
	}
	require.ErrorContains(t, send(client, endlessRequest("k")), "set GetBody, so that it can be sent again")
	resp, err := client.Do(endlessRequest(""))
	require.NoError(t, err, "what is sent once needs not be kept")
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, errors.Join(err, resp.Body.Close()))
	require.Equal(t, "2000", string(body))
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var got seen
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got.add(r)
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	client, _ := newClient(t, quick, httpclient.Options{})
	resp, err := client.Do(request(t.Context(), t, http.MethodPost, url, "{}", "k"))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusTemporaryRedirect, resp.StatusCode)
	require.Len(t, got.all(), 1)
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := httpclient.New(httpclient.Options{})
	require.EqualError(t, err, "httpclient: Policy is nil; make one with policy.New")
	p, err := policy.New(policy.Options{Name: "inventory"})
	require.NoError(t, err)
	_, err = httpclient.New(httpclient.Options{Policy: p, MaxBody: -1})
	require.ErrorContains(t, err, "MaxBody is -1")
}
