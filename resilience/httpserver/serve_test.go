package httpserver_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

func TestARequestIDIsTakenOrMade(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 1)
	server, log := newServer(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- message.RequestIDFrom(r.Context()) }))
	got := get(t, server, "/", httpserver.HeaderRequestID, "from-the-client.1")
	require.Equal(t, "from-the-client.1", got.Header.Get(httpserver.HeaderRequestID))
	require.Equal(t, "from-the-client.1", <-seen)
	require.Equal(t, "debug", lineWith(t, log, "from-the-client.1")["level"])
	for _, bad := range []string{"", "a b", strings.Repeat("x", 129), `{"a":1}`, "ü"} {
		got := get(t, server, "/", httpserver.HeaderRequestID, bad)
		made := got.Header.Get(httpserver.HeaderRequestID)
		require.True(t, message.ValidRequestID(made), made)
		require.NotEqual(t, bad, made)
		require.Equal(t, made, <-seen)
	}
}

func TestAPanicIsAProblemAndALine(t *testing.T) {
	t.Parallel()
	server, log := newServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(errSecret) }))
	got := get(t, server, "/")
	require.Equal(t, 500, got.StatusCode)
	got.problem(t, resilience.CodeInternal)
	require.NotContains(t, got.body, "hunter2")
	line := lineWith(t, log, "panic in a handler")
	require.Contains(t, line["panic"], "hunter2")
	require.Contains(t, line["stack"], "TestAPanicIsAProblemAndALine")
	require.Equal(t, got.Header.Get(httpserver.HeaderRequestID), line["request_id"])
}

// A part of an answer must not be taken for the whole.
func TestAFailureInTheMiddleOfAnAnswerCutsIt(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(http.ResponseWriter, *http.Request){
		"panic": func(http.ResponseWriter, *http.Request) { panic("x") },
		"error": func(w http.ResponseWriter, r *http.Request) { httpserver.Error(w, r, errSecret) },
	} {
		server, log := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"orders":[`)
			_ = http.NewResponseController(w).Flush()
			fail(w, r)
		}))
		response, err := server.Client().Get(server.URL)
		require.NoError(t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, response.Body.Close())
		require.Error(t, err, name)
		require.Len(t, body, len(`{"orders":[`))
		require.Equal(t, "error", lineWith(t, log, `"message":"request"`)["level"], "%s: though the status was 200", name)
	}
}

func TestWhatARouterDoesNotKnowIsAProblem(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /known", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "own text", http.StatusNotFound) })
	server, _ := newServer(t, mux)
	got := get(t, server, "/unknown")
	require.Equal(t, 404, got.StatusCode)
	got.problem(t, resilience.CodeNoRoute)
	got = send(t, server, http.MethodPost, "/known", http.NoBody)
	require.Equal(t, 405, got.StatusCode)
	require.Equal(t, "GET, HEAD", got.Header.Get("Allow"))
	got.problem(t, resilience.CodeMethodNotAllowed)
	require.Equal(t, "own text\n", get(t, server, "/known").body, "what a handler says stays")
}

// chunked hides the length of a body.
type chunked struct{ io.Reader }

func TestABodyOverTheLimitIsRefused(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	server, _ := newServer(t, httpserver.Handler(func(w http.ResponseWriter, r *http.Request) error {
		calls.Add(1)
		_, err := io.Copy(w, r.Body)
		return err
	}), func(o *httpserver.Options) { o.MaxBody = 10 })
	got := send(t, server, http.MethodPost, "/", strings.NewReader("0123456789"))
	require.Equal(t, "0123456789", got.body)
	got = send(t, server, http.MethodPost, "/", strings.NewReader("0123456789X"))
	require.Equal(t, 413, got.StatusCode)
	got.problem(t, resilience.CodeRequestTooLarge)
	require.EqualValues(t, 1, calls.Load(), "its length said enough")
	read, _ := newServer(t, httpserver.Handler(func(_ http.ResponseWriter, r *http.Request) error {
		_, err := io.ReadAll(r.Body)
		return err
	}), func(o *httpserver.Options) { o.MaxBody = 10 })
	got = send(t, read, http.MethodPost, "/", chunked{strings.NewReader("0123456789X")})
	require.Equal(t, 413, got.StatusCode)
	got.problem(t, resilience.CodeRequestTooLarge)
}

func TestTooManyRequestsInHandAreShed(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func(http.Handler) *httptest.Server{
		"server": func(h http.Handler) *httptest.Server {
			s, _ := newServer(t, h, func(o *httpserver.Options) { o.MaxConcurrent = 2 })
			return s
		},
		"route": func(h http.Handler) *httptest.Server { s, _ := newServer(t, httpserver.Shed(2, h)); return s },
	} {
		inside, leave := make(chan struct{}), make(chan struct{})
		s := server(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/panic" {
				panic("slots are given back all the same")
			}
			inside <- struct{}{}
			<-leave
		}))
		for range 3 {
			require.Equal(t, 500, get(t, s, "/panic").StatusCode, name)
		}
		done := make(chan int)
		for range 2 {
			go func() {
				got, err := ask(t.Context(), s, http.MethodGet, "/", http.NoBody)
				if err != nil {
					got.Response = new(http.Response)
				}
				done <- got.StatusCode
			}()
			<-inside
		}
		got := get(t, s, "/")
		require.Equal(t, 503, got.StatusCode, name)
		require.Equal(t, "1", got.Header.Get("Retry-After"))
		got.problem(t, resilience.CodeOverloaded)
		close(leave)
		require.Equal(t, 200, <-done)
		require.Equal(t, 200, <-done)
		go func() { <-inside }()
		require.Equal(t, 200, get(t, s, "/").StatusCode, "%s: slots are free again", name)
	}
	require.Panics(t, func() { httpserver.Shed(0, http.NewServeMux()) })
}

func TestTheSmallerTimeIsTheDeadline(t *testing.T) {
	t.Parallel()
	left := make(chan time.Duration, 1)
	server, _ := newServer(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		d, limited := resilience.Left(r.Context())
		if !limited {
			d = -1
		}
		left <- d
	}), func(o *httpserver.Options) { o.Timeout = time.Minute })
	for header, most := range map[string]time.Duration{"": time.Minute, "5000": 5 * time.Second, "3600000": time.Minute, "junk": time.Minute} {
		require.Equal(t, 200, get(t, server, "/", resilience.HeaderTimeout, header).StatusCode)
		d := <-left
		require.LessOrEqual(t, d, most, header)
		require.Greater(t, d, most-3*time.Second, header)
	}
}

func TestARequestWithoutTimeDoesNothing(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	server, _ := newServer(t, counting(&calls))
	got := get(t, server, "/", resilience.HeaderTimeout, "0")
	require.Equal(t, 504, got.StatusCode)
	require.Contains(t, got.problem(t, resilience.CodeDeadlineExceeded)["detail"], "nothing was done")
	require.Zero(t, calls.Load())
}

func TestTimeThatRunsOutInAHandlerIsADeadlineExceeded(t *testing.T) {
	t.Parallel()
	server, log := newServer(t, httpserver.Handler(func(_ http.ResponseWriter, r *http.Request) error {
		<-r.Context().Done()
		return r.Context().Err()
	}), func(o *httpserver.Options) { o.Timeout = 20 * time.Millisecond })
	got := get(t, server, "/")
	require.Equal(t, 504, got.StatusCode)
	got.problem(t, resilience.CodeDeadlineExceeded)
	require.Equal(t, "warn", lineWith(t, log, "DEADLINE_EXCEEDED")["level"])
}

func TestMetricsOfRequests(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	mux := http.NewServeMux()
	mux.Handle("GET /orders/{id}", failing(&httpserver.Problem{Code: "OUT_OF_STOCK", Status: 409}))
	metrics := func(o *httpserver.Options) { o.Metrics = registry }
	server, _ := newServer(t, mux, metrics)
	newServer(t, mux, metrics) // shares them
	for _, path := range []string{"/orders/1", "/orders/2", "/nothing/1", "/nothing/2"} {
		get(t, server, path)
	}
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP surefoot_http_requests_total Requests answered, by route and status.
# TYPE surefoot_http_requests_total counter
surefoot_http_requests_total{route="GET /orders/{id}",status="409"} 2
surefoot_http_requests_total{route="none",status="404"} 2
# HELP surefoot_http_problems_total Requests answered with a problem, by its code.
# TYPE surefoot_http_problems_total counter
surefoot_http_problems_total{code="NO_ROUTE"} 2
surefoot_http_problems_total{code="OUT_OF_STOCK"} 2
# HELP surefoot_http_in_flight Requests in hand.
# TYPE surefoot_http_in_flight gauge
surefoot_http_in_flight 0
`), "surefoot_http_requests_total", "surefoot_http_problems_total", "surefoot_http_in_flight"))
}

// dial opens a connection that the test writes to byte by byte.
func dial(t *testing.T, address, request string) *bufio.Reader {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, request)
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	return bufio.NewReader(conn)
}

func TestSlowClientsAreCut(t *testing.T) {
	t.Parallel()
	r := start(t, httpserver.Options{
		SlowClient: 100 * time.Millisecond, Timeout: 100 * time.Millisecond, MaxHeader: 1,
		Handler: httpserver.Handler(func(_ http.ResponseWriter, r *http.Request) error {
			_, err := io.ReadAll(r.Body)
			return err
		}),
	})
	_, err := dial(t, r.address, "GET / HTTP/1.1\r\nHost: a\r\n").ReadByte()
	require.ErrorIs(t, err, io.EOF, "a header that does not end")
	status, err := dial(t, r.address, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab").ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 408 Request Timeout\r\n", status, "a body that does not end")
	status, err = dial(t, r.address, "GET / HTTP/1.1\r\nHost: a\r\nBig: "+strings.Repeat("x", 8<<10)+"\r\n\r\n").ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 431 Request Header Fields Too Large\r\n", status)
	r.stop(t)
}

func TestABodyThatBreaksOffIsTheClientsFault(t *testing.T) {
	t.Parallel()
	failed := make(chan error, 1)
	r := start(t, httpserver.Options{Handler: httpserver.Handler(func(_ http.ResponseWriter, r *http.Request) error {
		_, err := io.ReadAll(r.Body)
		failed <- err
		return err
	})})
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.address)
	require.NoError(t, err)
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab")
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	var p *httpserver.Problem
	require.ErrorAs(t, <-failed, &p)
	require.Equal(t, resilience.CodeInvalidRequest, p.Code)
	r.stop(t)
}

// running is a server in Run.
type running struct {
	address string
	cancel  context.CancelFunc
	ended   chan error
}

func start(t *testing.T, o httpserver.Options) *running {
	t.Helper()
	var err error
	o.Listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s, err := httpserver.New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{address: o.Listener.Addr().String(), cancel: cancel, ended: make(chan error, 1)}
	t.Cleanup(cancel)
	go func() { r.ended <- s.Run(ctx) }()
	return r
}

func (r *running) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	require.NoError(t, <-r.ended)
}

func TestAStopLetsRequestsFinish(t *testing.T) {
	t.Parallel()
	inside, leave := make(chan struct{}), make(chan struct{})
	r := start(t, httpserver.Options{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(inside)
		<-leave
		_, _ = io.WriteString(w, "done")
	})})
	answered := make(chan string, 1)
	lines := dial(t, r.address, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	go func() {
		text, _ := io.ReadAll(lines)
		answered <- string(text)
	}()
	<-inside
	r.cancel()
	require.Eventually(t, func() bool {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.address)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, 10*time.Second, 5*time.Millisecond, "no more connections are taken")
	close(leave)
	require.Contains(t, <-answered, "done")
	require.NoError(t, <-r.ended)
}

func TestWhatOutlastsTheDrainIsCancelledByTheShutdown(t *testing.T) {
	t.Parallel()
	inside, cause := make(chan struct{}), make(chan error, 1)
	r := start(t, httpserver.Options{Drain: 10 * time.Millisecond, Handler: httpserver.Handler(func(_ http.ResponseWriter, r *http.Request) error {
		close(inside)
		<-r.Context().Done()
		cause <- resilience.Ended(r.Context())
		return resilience.Ended(r.Context())
	})})
	lines := dial(t, r.address, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	<-inside
	r.stop(t)
	require.ErrorIs(t, <-cause, resilience.ErrShutdown)
	text, err := io.ReadAll(lines)
	require.NoError(t, err)
	require.Contains(t, string(text), "HTTP/1.1 503 ")
	require.Contains(t, string(text), resilience.CodeOverloaded)
}

func TestRunSaysWhyItCannotListen(t *testing.T) {
	t.Parallel()
	s, err := httpserver.New(httpserver.Options{Handler: http.NewServeMux(), Listen: "nowhere:1:2"})
	require.NoError(t, err)
	require.ErrorContains(t, s.Run(t.Context()), "listen for http on nowhere:1:2")
}

func TestOptionsThatAreWrongAreRefusedTogether(t *testing.T) {
	t.Parallel()
	_, err := httpserver.New(httpserver.Options{Timeout: -1, MaxConcurrent: -1, MaxBody: -1, MaxHeader: -1, SlowClient: -1, Drain: -1})
	for _, fault := range []string{"Handler", "Timeout", "MaxConcurrent", "MaxBody", "MaxHeader", "SlowClient", "Drain"} {
		require.ErrorContains(t, err, fault)
	}
}

// The ratio of the two is what the server costs a request, without the network.
func BenchmarkServer(b *testing.B) {
	bare := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux := http.NewServeMux()
	mux.Handle("GET /orders/{id}", bare)
	limiter := newLimiter(b, httpserver.Rate{Requests: 1 << 30})
	s, err := httpserver.New(httpserver.Options{Handler: mux, Limiter: limiter, Metrics: prometheus.NewRegistry()})
	require.NoError(b, err)
	for _, arm := range []struct {
		name    string
		handler http.Handler
	}{{"bare", mux}, {"whole", s}} {
		b.Run(arm.name, func(b *testing.B) {
			b.ReportAllocs()
			r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/orders/1", http.NoBody)
			for b.Loop() {
				arm.handler.ServeHTTP(httptest.NewRecorder(), r)
			}
		})
	}
	server := httptest.NewServer(s)
	defer server.Close()
	plain := httptest.NewServer(mux)
	defer plain.Close()
	for _, arm := range []struct {
		name   string
		server *httptest.Server
	}{{"bare-tcp", plain}, {"whole-tcp", server}} {
		b.Run(arm.name, func(b *testing.B) {
			for b.Loop() {
				response, err := arm.server.Client().Get(arm.server.URL + "/orders/1")
				if err != nil {
					b.Fatal(err)
				}
				_ = response.Body.Close()
			}
		})
	}
}

// A server that has no room for requests must still be seen.
func TestProbesAreAnsweredPastAllLimits(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	busy, goOn := make(chan struct{}), make(chan struct{})
	server, _ := newServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(busy); <-goOn }), func(o *httpserver.Options) {
		o.MaxConcurrent, o.Metrics = 1, registry
		o.Probes = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "probe "+r.URL.Path) })
	})
	ended := make(chan error, 1)
	go func() {
		_, err := ask(t.Context(), server, http.MethodGet, "/work", http.NoBody)
		ended <- err
	}()
	<-busy
	for _, path := range []string{"/livez", "/readyz", "/metrics"} {
		require.Equal(t, "probe "+path, get(t, server, path).body)
	}
	require.Equal(t, 503, get(t, server, "/more").StatusCode)
	close(goOn)
	require.NoError(t, <-ended)
	require.Equal(t, 2, testutil.CollectAndCount(registry, "surefoot_http_requests_total"), "/work and /more")
}
