package endpoint_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer/endpoint"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/internal/tlsfiles"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// limits let a test fail often without opening the circuit.
var limits = resilience.Settings{Timeout: 10 * time.Second, Breaker: resilience.Breaker{Failures: 1000}}

func newEndpoint(t *testing.T, s resilience.Settings, o endpoint.Options) *endpoint.Endpoint {
	t.Helper()
	guard, err := policy.New(policy.Options{Name: "mail", Settings: s, Logger: testkit.Logger(t)})
	require.NoError(t, err)
	o.Policy, o.Queue = guard, "orders.mail"
	e, err := endpoint.New(o)
	require.NoError(t, err)
	t.Cleanup(e.Close)
	return e
}

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestBodyAndMetadataReachTheEndpoint(t *testing.T) {
	t.Parallel()
	var got *http.Request
	var body []byte
	e := newEndpoint(t, limits, endpoint.Options{URL: serve(t, func(_ http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
	}) + "/messages?x=1"})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	events, err := e.Handle(ctx, message.Message{
		ID: "m1", Type: "order.created", Key: "42", Attempts: 2, Payload: []byte("{ \x00bytes"), ContentType: "application/json; charset=utf-8", Source: "shop",
		OccurredAt: time.Unix(0, 0), CorrelationID: "c1", RequestID: "r1", TraceParent: parent, TraceState: "a=b",
	})
	require.NoError(t, err)
	require.Empty(t, events)
	require.Equal(t, "{ \x00bytes", string(body))
	require.Equal(t, []string{http.MethodPost, "/messages?x=1"}, []string{got.Method, got.RequestURI})
	for name, want := range map[string]string{
		"Surefoot-Message-Id": "m1", "Surefoot-Message-Type": "order.created", "Surefoot-Key": "42", "Surefoot-Attempt": "3", "Surefoot-Queue": "orders.mail",
		"Surefoot-Source": "shop", "Surefoot-Occurred-At": "1970-01-01T00:00:00Z", "Surefoot-Correlation-Id": "c1", "Idempotency-Key": "m1",
		"X-Request-Id": "r1", "Traceparent": parent, "Tracestate": "a=b", "Content-Type": "application/json; charset=utf-8",
	} {
		require.Equal(t, want, got.Header.Get(name), name)
	}
	left, err := strconv.Atoi(got.Header.Get("Surefoot-Deadline-Ms"))
	require.NoError(t, err)
	require.InDelta(t, 4500, left, 500)
}

// Of unknown length it would be sent in chunks, which not every server takes.
func TestAnEmptyBodyIsSentAsOne(t *testing.T) {
	t.Parallel()
	var got *http.Request
	e := newEndpoint(t, limits, endpoint.Options{URL: serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r })})
	_, err := e.Handle(t.Context(), message.Message{ID: "m1", Type: "order.created"})
	require.NoError(t, err)
	require.Equal(t, "0", got.Header.Get("Content-Length"))
	require.Empty(t, got.TransferEncoding)
}

func TestHostileMetadataIsEscapedAndBounded(t *testing.T) {
	t.Parallel()
	var got http.Header
	e := newEndpoint(t, limits, endpoint.Options{URL: serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header })})
	evil := "50%\r\nX-Evil: 1\x00\xff é"
	_, err := e.Handle(t.Context(), message.Message{
		ID: evil, Type: evil, Key: strings.Repeat("k\n", 10_000), ContentType: "text/html\r\nX-Evil: 1", RequestID: evil, TraceParent: evil, TraceState: evil, Source: evil,
	})
	require.NoError(t, err)
	require.Empty(t, got.Get("X-Evil"))
	decoded, err := url.PathUnescape(got.Get("Surefoot-Message-Id"))
	require.NoError(t, err)
	require.Equal(t, evil, decoded, "two ids never look alike: the endpoint tells messages by them")
	require.Equal(t, "50%25%0D%0AX-Evil:%201%00%FF%20%C3%A9", got.Get("Surefoot-Message-Type"))
	require.Len(t, got.Get("Surefoot-Key"), 128+127*3)
	require.Equal(t, "application/octet-stream", got.Get("Content-Type"))
	require.Empty(t, got.Get("Traceparent"))
	require.Empty(t, got.Get("Tracestate"))
	require.Regexp(t, `^[0-9a-f-]{36}$`, got.Get("X-Request-Id"), "a new one")
}

func FuzzEscape(f *testing.F) {
	f.Add("50%\r\n\x00é")
	f.Fuzz(func(t *testing.T, text string) {
		decoded, err := url.PathUnescape(endpoint.Escape(text))
		if err != nil || decoded != text[:min(len(text), 255)] {
			t.Fatalf("%q became %q", text, decoded)
		}
	})
}

func TestWhatAStatusMeansForTheMessage(t *testing.T) {
	t.Parallel()
	type want struct {
		class resilience.Class
		after time.Duration
	}
	for status, want := range map[string]want{
		"200": {}, "202": {}, "204": {}, "409": {},
		"409 IDEMPOTENCY_PENDING": {class: resilience.ClassTransient},
		"408":                     {class: resilience.ClassTransient}, "429 7": {resilience.ClassTransient, 7 * time.Second},
		"503": {class: resilience.ClassTransient}, "503 3600": {resilience.ClassTransient, time.Hour}, "503 soon": {resilience.ClassTransient, time.Second},
		"500": {class: resilience.ClassUnknown}, "502": {class: resilience.ClassTransient}, "501": {class: resilience.ClassUnknown},
		"400": {class: resilience.ClassPermanent}, "401": {class: resilience.ClassPermanent}, "404": {class: resilience.ClassPermanent}, "422": {class: resilience.ClassPermanent},
		"301": {class: resilience.ClassPermanent}, "307": {class: resilience.ClassPermanent},
	} {
		var calls atomic.Int32
		e := newEndpoint(t, limits, endpoint.Options{URL: serve(t, func(w http.ResponseWriter, _ *http.Request) {
			calls.Add(1)
			code, more, _ := strings.Cut(status, " ")
			n, _ := strconv.Atoi(code)
			w.Header().Set("Location", "/elsewhere")
			if n != http.StatusConflict && more != "" {
				w.Header().Set("Retry-After", more)
			}
			w.WriteHeader(n)
			_, _ = io.WriteString(w, `{"code":"`+more+`","text":"`+"why\x7f[31m"+`"}`)
		})})
		_, err := e.Handle(t.Context(), message.Message{ID: "m1", Type: "t"})
		require.Equal(t, want.class, resilience.Classify(err), status)
		require.Equal(t, int32(1), calls.Load(), "the queue tries again, nobody else")
		if err == nil {
			continue
		}
		after, _ := resilience.DelayOf(err)
		require.Equal(t, want.after, after, status)
		var failed *endpoint.Error
		require.ErrorAs(t, err, &failed)
		require.Equal(t, "http "+status[:3], failed.FailureType())
		require.NotContains(t, err.Error(), "why", "what an endpoint writes is not for logs")
		require.Contains(t, failed.FailureStack(), `why\x7f[31m`)
	}
}

func TestTheAnswerInTheRecordIsBounded(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, limits, endpoint.Options{URL: serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, strings.Repeat("\x00", 1<<20))
	})})
	_, err := e.Handle(t.Context(), message.Message{ID: "m1", Type: "t"})
	var failed *endpoint.Error
	require.ErrorAs(t, err, &failed)
	require.LessOrEqual(t, len(failed.FailureStack()), message.MaxErrorStack)
	require.NotContains(t, failed.FailureStack(), "\x00")
}

func TestASecond5xxIsTheLast(t *testing.T) {
	t.Parallel()
	at := func(status int) *endpoint.Error {
		e := newEndpoint(t, limits, endpoint.Options{URL: serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })})
		_, err := e.Handle(t.Context(), message.Message{ID: "m1", Type: "t"})
		var failed *endpoint.Error
		require.ErrorAs(t, err, &failed)
		return failed
	}
	earlier := []message.Attempt{{Type: "http 503"}, {Type: "syscall.Errno"}, {Type: "http 429"}}
	require.False(t, at(500).GiveUp(earlier))
	require.True(t, at(502).GiveUp(append(earlier, message.Attempt{Type: "http 500"})))
	require.False(t, at(503).GiveUp(append(earlier, message.Attempt{Type: "http 500"})))
}

func TestEventsInTheAnswer(t *testing.T) {
	t.Parallel()
	const events = `{"events":[{"type":"mail.sent","payload":{"to": 1}}]}`
	for name, tt := range map[string]struct {
		status int
		body   string
		ignore bool
		events int
		wrong  string
	}{
		"of a success":   {200, events, false, 1, ""},
		"of a duplicate": {409, events, false, 1, ""},
		"not asked for":  {200, events, true, 0, ""},
		"of an error":    {503, events, false, 0, "503"},
		"broken":         {200, events[:20], false, 0, "broken or unfinished JSON; no event was emitted"},
		"too many bytes": {200, strings.Repeat(" ", 1<<20) + events, false, 0, "over 1048576 bytes"},
	} {
		e := newEndpoint(t, limits, endpoint.Options{IgnoreAnswer: tt.ignore, URL: serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, tt.body)
		})})
		got, err := e.Handle(t.Context(), message.Message{ID: "m1", Type: "t"})
		require.Len(t, got, tt.events, name)
		if tt.wrong == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, tt.wrong, name)
		require.Equal(t, tt.status < 300, resilience.Classify(err) == resilience.ClassPermanent, name)
	}
}

func TestSecretsAreReadAnewForEachMessage(t *testing.T) {
	t.Parallel()
	var got http.Header
	var body []byte
	bearer, key := file(t, "token-1\n"), file(t, "key-1")
	e := newEndpoint(t, limits, endpoint.Options{BearerFile: bearer, SigningKeyFile: key, URL: serve(t, func(_ http.ResponseWriter, r *http.Request) {
		got = r.Header
		body, _ = io.ReadAll(r.Body)
	})})
	for _, n := range []string{"1", "2"} {
		require.NoError(t, os.WriteFile(bearer, []byte("token-"+n), 0o600))
		require.NoError(t, os.WriteFile(key, []byte("key-"+n), 0o600))
		_, err := e.Handle(t.Context(), message.Message{ID: "m 1", Type: "order.created", Payload: []byte("body")})
		require.NoError(t, err)
		require.Equal(t, "Bearer token-"+n, got.Get("Authorization"))
		seconds, signature, found := strings.Cut(strings.TrimPrefix(got.Get("Surefoot-Signature"), "t="), ",v1=")
		require.True(t, found)
		at, err := strconv.ParseInt(seconds, 10, 64)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), time.Unix(at, 0), time.Minute)
		mac := hmac.New(sha256.New, []byte("key-"+n))
		_, _ = io.WriteString(mac, seconds+"\nm%201\norder.created\n\n"+string(body))
		require.Equal(t, hex.EncodeToString(mac.Sum(nil)), signature)
	}
	require.NoError(t, os.WriteFile(bearer, []byte("sec\x00ret"), 0o600))
	_, err := e.Handle(t.Context(), message.Message{ID: "m1", Type: "t"})
	require.Equal(t, resilience.ClassUnavailable, resilience.Classify(err), "no fault of the message")
	require.NotContains(t, err.Error(), "sec")
	require.NoError(t, os.Remove(key))
	_, err = e.Handle(t.Context(), message.Message{ID: "m1", Type: "t"})
	require.Equal(t, resilience.ClassUnavailable, resilience.Classify(err))
}

func TestTLSTrustsTheGivenAuthority(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	ca := file(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	_, err := newEndpoint(t, limits, endpoint.Options{URL: server.URL, CAFile: ca}).Handle(t.Context(), message.Message{ID: "m1", Type: "t"})
	require.NoError(t, err)
	_, err = newEndpoint(t, limits, endpoint.Options{URL: server.URL}).Handle(t.Context(), message.Message{ID: "m1", Type: "t"})
	require.ErrorContains(t, err, "certificate")
}

func TestFilesForTLSAreReadForEachConnection(t *testing.T) {
	t.Parallel()
	authority, other := testkit.NewAuthority(t), testkit.NewAuthority(t)
	own, client := authority.Issue(t, testkit.Certificate{}), authority.Issue(t, testkit.Certificate{Name: "surefoot"})
	config, err := tlsfiles.Files{CA: authority.File, Cert: own.Cert, Key: own.Key}.Server(nil)
	require.NoError(t, err)
	var name atomic.Pointer[string]
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		name.Store(&r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	server.TLS = config
	server.StartTLS()
	t.Cleanup(server.Close)
	trusted := file(t, "")
	trust := func(a *testkit.Authority) {
		text, err := os.ReadFile(a.File)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(trusted, text, 0o600))
	}
	trust(authority)
	e := newEndpoint(t, limits, endpoint.Options{URL: server.URL, CAFile: trusted, CertFile: client.Cert, KeyFile: client.Key})
	handle := func() error {
		_, err := e.Handle(t.Context(), message.Message{ID: "m1", Type: "t"})
		e.Close() // the next message needs another connection
		return err
	}
	require.NoError(t, handle())
	require.Equal(t, "surefoot", *name.Load())
	authority.IssueInto(t, client, testkit.Certificate{Name: "renewed"})
	require.NoError(t, handle())
	require.Equal(t, "renewed", *name.Load())
	trust(other)
	require.ErrorContains(t, handle(), "is signed by none of the authorities in "+trusted)
	require.NoError(t, os.Remove(trusted))
	require.Equal(t, resilience.ClassUnavailable, resilience.Classify(handle()), "no fault of the message")
	trust(authority)
	require.NoError(t, handle())
}

func TestAnOpenCircuitAndFullPlacesAreNoFaultOfTheMessage(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(leave) })
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		entered <- struct{}{}
		<-leave
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	t.Cleanup(release)
	e := newEndpoint(t, resilience.Settings{
		Timeout: 10 * time.Second, Bulkhead: resilience.Bulkhead{Active: 1, Queue: -1}, Breaker: resilience.Breaker{Failures: 1, Open: time.Hour},
	}, endpoint.Options{URL: url})
	first := make(chan error, 1)
	go func() {
		_, err := e.Handle(t.Context(), message.Message{ID: "m1", Type: "t"})
		first <- err
	}()
	<-entered
	_, err := e.Handle(t.Context(), message.Message{ID: "m2", Type: "t"})
	require.Equal(t, resilience.ClassUnavailable, resilience.Classify(err), "no place: %v", err)
	release()
	require.Equal(t, resilience.ClassTransient, resilience.Classify(<-first))
	_, err = e.Handle(t.Context(), message.Message{ID: "m2", Type: "t"})
	require.Equal(t, resilience.ClassUnavailable, resilience.Classify(err), "open: %v", err)
	after, _ := resilience.DelayOf(err)
	require.Greater(t, after, 50*time.Minute)
}

func TestASlowEndpointIsATimeout(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	e := newEndpoint(t, resilience.Settings{Timeout: 100 * time.Millisecond}, endpoint.Options{URL: serve(t, func(http.ResponseWriter, *http.Request) { <-over })})
	_, err := e.Handle(t.Context(), message.Message{ID: "m1", Type: "t"})
	close(over)
	require.Equal(t, resilience.ClassTimeout, resilience.Classify(err))
}

func TestWhatIsMissingIsFoundAtTheStart(t *testing.T) {
	t.Parallel()
	guard, err := policy.New(policy.Options{Name: "mail"})
	require.NoError(t, err)
	for want, o := range map[string]endpoint.Options{
		"URL and Policy":           {Policy: guard},
		"read bearer token":        {Policy: guard, URL: "http://a/", BearerFile: "/nowhere"},
		"read signing key":         {Policy: guard, URL: "http://a/", SigningKeyFile: "/nowhere"},
		"must hold one line":       {Policy: guard, URL: "http://a/", SigningKeyFile: file(t, "a\nb")},
		"ca_file cannot be read":   {Policy: guard, URL: "http://a/", CAFile: "/nowhere"},
		"holds no certificate":     {Policy: guard, URL: "http://a/", CAFile: file(t, "no")},
		"cert_file cannot be read": {Policy: guard, URL: "http://a/", CertFile: "/nowhere", KeyFile: "/nowhere"},
		"the URL is none":          {Policy: guard, URL: "http://a\x00/"},
	} {
		_, err := endpoint.New(o)
		require.ErrorContains(t, err, want)
	}
}
