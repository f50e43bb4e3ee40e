package resilience_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/failsafe-go/failsafe-go/timeout"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var errPlain = errors.New("x")

// awsError carries a status the way other libraries do.
type awsError struct{ error }

func (awsError) HTTPStatusCode() int { return http.StatusTooManyRequests }

func TestClassify(t *testing.T) {
	t.Parallel()
	state := func(code string) error { return fmt.Errorf("insert order: %w", &pgconn.PgError{Code: code}) }
	status := func(code int) error { return fmt.Errorf("charge: %w", &resilience.StatusError{Status: code}) }
	broker := func(code int) error { return fmt.Errorf("publish: %w", &amqp.Error{Code: code}) }
	call := func(number syscall.Errno) error {
		return &url.Error{Op: "Get", URL: "http://x", Err: &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", number)}}
	}
	for name, tt := range map[string]struct {
		err  error
		want resilience.Class
	}{
		"nil":     {nil, resilience.ClassNone},
		"unknown": {errPlain, resilience.ClassUnknown},

		"permanent":                  {fmt.Errorf("decode: %w", resilience.Permanent(errPlain)), resilience.ClassPermanent},
		"permanent over its cause":   {resilience.Permanent(call(syscall.ECONNREFUSED)), resilience.ClassPermanent},
		"retry after":                {resilience.RetryAfter(errPlain, time.Second), resilience.ClassTransient},
		"retry after over its cause": {resilience.RetryAfter(status(404), time.Second), resilience.ClassTransient},
		"unavailable":                {resilience.Unavailable(errPlain), resilience.ClassUnavailable},
		"outermost mark":             {resilience.RetryAfter(resilience.Permanent(errPlain), 0), resilience.ClassTransient},
		"outermost mark, other way":  {resilience.Permanent(resilience.RetryAfter(errPlain, 0)), resilience.ClassPermanent},
		"mark among others":          {errors.Join(errPlain, resilience.Permanent(errPlain)), resilience.ClassPermanent},

		"cancelled": {fmt.Errorf("query: %w", context.Canceled), resilience.ClassCancelled},
		"deadline":  {fmt.Errorf("query: %w", context.DeadlineExceeded), resilience.ClassTimeout},
		"shutdown":  {fmt.Errorf("query: %w", resilience.ErrShutdown), resilience.ClassShutdown},

		"circuit open":  {circuitbreaker.ErrOpen, resilience.ClassUnavailable},
		"bulkhead full": {bulkhead.ErrFull, resilience.ClassTransient},
		"rate limit":    {ratelimiter.ErrExceeded, resilience.ClassTransient},
		"policy's time": {timeout.ErrExceeded, resilience.ClassTimeout},

		"408": {status(408), resilience.ClassTransient}, "425": {status(425), resilience.ClassTransient},
		"429": {status(429), resilience.ClassTransient}, "502": {status(502), resilience.ClassTransient},
		"503": {status(503), resilience.ClassTransient}, "504": {status(504), resilience.ClassTransient},
		"400": {status(400), resilience.ClassPermanent}, "402": {status(402), resilience.ClassPermanent},
		"404": {status(404), resilience.ClassPermanent}, "422": {status(422), resilience.ClassPermanent},
		"500": {status(500), resilience.ClassUnknown}, "501": {status(501), resilience.ClassUnknown},
		"302":               {status(302), resilience.ClassUnknown},
		"another library's": {fmt.Errorf("put: %w", awsError{errPlain}), resilience.ClassTransient},

		"deadlock": {state("40P01"), resilience.ClassDatabaseRetry}, "serialisation": {state("40001"), resilience.ClassDatabaseRetry},
		"lock": {state("55P03"), resilience.ClassTransient}, "completion unknown": {state("40003"), resilience.ClassTransient},
		"statement timeout": {state("57014"), resilience.ClassTimeout},
		"admin shutdown":    {state("57P01"), resilience.ClassUnavailable}, "crash": {state("57P02"), resilience.ClassUnavailable},
		"starting": {state("57P03"), resilience.ClassUnavailable}, "read only": {state("25006"), resilience.ClassUnavailable},
		"connection failure": {state("08006"), resilience.ClassUnavailable}, "too many": {state("53300"), resilience.ClassUnavailable},
		"disk full": {state("53100"), resilience.ClassUnavailable}, "out of memory": {state("53200"), resilience.ClassTransient},
		"unique": {state("23505"), resilience.ClassUnknown}, "foreign key": {state("23503"), resilience.ClassUnknown},
		"no such table": {state("42P01"), resilience.ClassUnknown}, "bad text": {state("22021"), resilience.ClassUnknown},

		"too large": {broker(311), resilience.ClassPermanent}, "precondition": {broker(406), resilience.ClassPermanent},
		"syntax": {broker(502), resilience.ClassPermanent}, "not allowed": {broker(530), resilience.ClassPermanent},
		"no route": {broker(312), resilience.ClassTransient}, "not found": {broker(404), resilience.ClassTransient},
		"locked": {broker(405), resilience.ClassTransient}, "forced": {broker(320), resilience.ClassUnavailable},
		"closed": {amqp.ErrClosed, resilience.ClassUnavailable}, "internal": {broker(541), resilience.ClassUnavailable},
		"refused by broker": {broker(403), resilience.ClassUnknown},

		"refused": {call(syscall.ECONNREFUSED), resilience.ClassTransient}, "reset": {call(syscall.ECONNRESET), resilience.ClassTransient},
		"broken pipe": {call(syscall.EPIPE), resilience.ClassTransient}, "no route to host": {call(syscall.EHOSTUNREACH), resilience.ClassTransient},
		"timed out": {call(syscall.ETIMEDOUT), resilience.ClassTimeout}, "cut short": {io.ErrUnexpectedEOF, resilience.ClassTransient},
		"kept-alive connection":   {&url.Error{Op: "Post", URL: "http://x", Err: io.EOF}, resilience.ClassTransient},
		"end of something":        {io.EOF, resilience.ClassUnknown},
		"dns try again":           {&net.DNSError{IsTemporary: true}, resilience.ClassTransient},
		"dns timeout":             {&net.DNSError{IsTimeout: true}, resilience.ClassTransient},
		"no such host":            {&net.DNSError{IsNotFound: true}, resilience.ClassUnknown},
		"certificate not trusted": {&url.Error{Op: "Get", URL: "https://x", Err: x509.UnknownAuthorityError{}}, resilience.ClassUnknown},
	} {
		require.Equal(t, tt.want, resilience.Classify(tt.err), name)
	}
}

func TestWhatAClassMeans(t *testing.T) {
	t.Parallel()
	for class, want := range map[resilience.Class]struct{ retryable, counts bool }{
		resilience.ClassNone:          {false, false},
		resilience.ClassUnknown:       {true, true},
		resilience.ClassTransient:     {true, true},
		resilience.ClassDatabaseRetry: {true, true},
		resilience.ClassTimeout:       {true, true},
		resilience.ClassUnavailable:   {true, false},
		resilience.ClassPermanent:     {false, true},
		resilience.ClassCancelled:     {false, false},
		resilience.ClassShutdown:      {true, false},
		"of a classifier":             {true, true},
	} {
		require.Equal(t, want.retryable, class.Retryable(), string(class))
		require.Equal(t, want.counts, class.Counts(), string(class))
	}
}

func TestMarksKeepTheError(t *testing.T) {
	t.Parallel()
	for _, mark := range []func(error) error{
		resilience.Permanent, resilience.Unavailable,
		func(err error) error { return resilience.RetryAfter(err, time.Minute) },
	} {
		require.NoError(t, mark(nil), "a mark makes an error of none")
		got := mark(fmt.Errorf("charge: %w", errPlain))
		require.ErrorIs(t, got, errPlain)
		require.EqualError(t, got, "charge: x")
	}
}

func TestDelayOf(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err  error
		want time.Duration
	}{
		"nil":          {nil, 0},
		"plain":        {errPlain, 0},
		"permanent":    {resilience.Permanent(errPlain), 0},
		"asked":        {fmt.Errorf("charge: %w", resilience.RetryAfter(errPlain, time.Minute)), time.Minute},
		"negative":     {resilience.RetryAfter(errPlain, -time.Minute), 0},
		"of a server":  {fmt.Errorf("charge: %w", &resilience.StatusError{Status: 503, After: time.Hour}), time.Hour},
		"server knows": {resilience.Unavailable(&resilience.StatusError{Status: 503, After: time.Hour}), time.Hour},
		"server vague": {&resilience.StatusError{Status: 503}, 0},
	} {
		got, ok := resilience.DelayOf(tt.err)
		require.Equal(t, tt.want, got, name)
		require.Equal(t, tt.want > 0, ok, name)
	}
}

func TestOwnClassifiers(t *testing.T) {
	t.Parallel()
	errQuota := errors.New("quota")
	quota := func(err error) resilience.Class {
		if errors.Is(err, errQuota) {
			return resilience.ClassUnavailable
		}
		return resilience.ClassNone
	}
	notFound := func(err error) resilience.Class {
		if status, ok := errors.AsType[*resilience.StatusError](err); ok && status.Status == 404 {
			return resilience.ClassTransient
		}
		return resilience.ClassNone
	}
	classify := resilience.With(quota, notFound)
	require.Equal(t, resilience.ClassNone, classify(nil))
	require.Equal(t, resilience.ClassUnavailable, classify(fmt.Errorf("x: %w", errQuota)))
	require.Equal(t, resilience.ClassTransient, classify(&resilience.StatusError{Status: 404}), "before the built-in rules")
	require.Equal(t, resilience.ClassPermanent, classify(&resilience.StatusError{Status: 400}), "the built-in rules still count")
	require.Equal(t, resilience.ClassPermanent, classify(resilience.Permanent(errQuota)), "a mark knows better")
}

// TestThreeOutcomes lets one query be ended in three ways, which must not be taken for each other.
func TestThreeOutcomes(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	sleep := func(ctx context.Context) error {
		_, err := db.Pool.Exec(ctx, "SELECT pg_sleep(30)")
		return fmt.Errorf("handle: %w", err)
	}

	limited, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := sleep(limited)
	require.Equal(t, resilience.ClassTimeout, resilience.ClassifyIn(limited, nil, err))

	gone, leave := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, leave)
	err = sleep(gone)
	require.Equal(t, resilience.ClassCancelled, resilience.ClassifyIn(gone, nil, err))

	stopping, stop := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { stop(resilience.ErrShutdown) })
	inner, cancel := context.WithTimeout(stopping, time.Minute) // as a handler's deadline is
	defer cancel()
	err = sleep(inner)
	require.Equal(t, resilience.ClassShutdown, resilience.ClassifyIn(inner, nil, err))
	require.Equal(t, resilience.ClassShutdown, resilience.ClassifyIn(inner, nil, resilience.Permanent(err)),
		"a handler that calls the interruption permanent would have its message dead-lettered")
	require.Equal(t, resilience.ClassPermanent, resilience.ClassifyIn(inner, nil, resilience.Permanent(errPlain)),
		"an error that has nothing to do with the shutdown keeps its class")
	require.Equal(t, resilience.ClassNone, resilience.ClassifyIn(inner, nil, nil))
}

func TestRealDatabaseErrors(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	_, err := db.Pool.Exec(t.Context(), "SET statement_timeout = 50; SELECT pg_sleep(30)")
	require.Equal(t, resilience.ClassTimeout, resilience.Classify(err), "%v", err)

	conn, err := pgx.Connect(t.Context(), db.URL)
	require.NoError(t, err)
	_, err = db.Pool.Exec(t.Context(), "SELECT pg_terminate_backend($1)", conn.PgConn().PID())
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "SELECT 1")
	require.Equal(t, resilience.ClassUnavailable, resilience.Classify(err), "%v", err)

	network := testkit.Proxy(t, db.URL)
	network.Cut()
	_, err = pgx.Connect(t.Context(), network.Through(t, db.URL))
	require.Equal(t, resilience.ClassUnavailable, resilience.Classify(err), "%v", err)
}

func TestRealNetworkErrors(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			<-r.Context().Done()
			return
		}
		panic(http.ErrAbortHandler) // closes the connection in the middle
	}))
	defer server.Close()
	client := &http.Client{Timeout: 50 * time.Millisecond, Transport: &http.Transport{DisableKeepAlives: true}}
	for path, want := range map[string]resilience.Class{"/abort": resilience.ClassTransient, "/hang": resilience.ClassTimeout} {
		response, err := client.Get(server.URL + path)
		if err == nil {
			response.Body.Close()
		}
		require.Error(t, err)
		require.Equal(t, want, resilience.Classify(err), "%v", err)
	}
	_, err := net.Dial("tcp", "127.0.0.1:1")
	require.Equal(t, resilience.ClassTransient, resilience.Classify(err), "%v", err)
	require.True(t, resilience.IsNetwork(err))
	require.True(t, resilience.IsNetwork(&net.DNSError{IsNotFound: true}))
	require.False(t, resilience.IsNetwork(errPlain))
}

func TestStatusErrorSaysWhat(t *testing.T) {
	t.Parallel()
	require.EqualError(t, &resilience.StatusError{Status: 503}, "http status 503 Service Unavailable")
	err := &resilience.StatusError{Status: 402, Err: errPlain}
	require.EqualError(t, err, "http status 402 Payment Required: x")
	require.ErrorIs(t, err, errPlain)
}
