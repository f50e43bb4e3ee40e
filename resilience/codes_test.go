package resilience_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/timeout"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/resilience"
)

// codedError names its code itself.
type codedError struct{ code resilience.Code }

func (e codedError) Error() string         { return string(e.code) }
func (e codedError) Code() resilience.Code { return e.code }

func TestCodeOf(t *testing.T) {
	t.Parallel()
	status := func(code int) error { return fmt.Errorf("charge: %w", &resilience.StatusError{Status: code}) }
	for _, c := range []struct {
		err  error
		want resilience.Code
		http int
	}{
		{nil, resilience.CodeNone, 500},
		{errPlain, resilience.CodeInternal, 500},
		{resilience.Permanent(errPlain), resilience.CodeInternal, 500},
		{context.Canceled, resilience.CodeInternal, 500},
		{fmt.Errorf("a: %w", codedError{"OUT_OF_STOCK"}), "OUT_OF_STOCK", 500},
		{resilience.Unavailable(codedError{resilience.CodeRateLimited}), resilience.CodeRateLimited, 429},
		{&http.MaxBytesError{Limit: 1}, resilience.CodeRequestTooLarge, 413},
		{bulkhead.ErrFull, resilience.CodeDependencyOverloaded, 503},
		{circuitbreaker.ErrOpen, resilience.CodeDependencyUnavailable, 503},
		{timeout.ErrExceeded, resilience.CodeDependencyUnavailable, 503},
		{context.DeadlineExceeded, resilience.CodeDependencyUnavailable, 503},
		{resilience.Unavailable(errPlain), resilience.CodeDependencyUnavailable, 503},
		{resilience.RetryAfter(errPlain, time.Second), resilience.CodeDependencyUnavailable, 503},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, resilience.CodeDependencyUnavailable, 503},
		{&net.DNSError{IsNotFound: true}, resilience.CodeDependencyUnavailable, 503},
		{&pgconn.PgError{Code: "57P01"}, resilience.CodeDependencyUnavailable, 503},
		{&pgconn.PgError{Code: "40P01"}, resilience.CodeDependencyUnavailable, 503},
		{&pgconn.PgError{Code: "23505"}, resilience.CodeInternal, 500},
		{status(http.StatusServiceUnavailable), resilience.CodeDependencyUnavailable, 503},
		{status(http.StatusTooManyRequests), resilience.CodeDependencyUnavailable, 503},
		{status(http.StatusInternalServerError), resilience.CodeDependencyError, 502},
		{status(http.StatusNotFound), resilience.CodeDependencyError, 502},
		{resilience.ErrShutdown, resilience.CodeOverloaded, 503},
	} {
		require.Equal(t, c.want, resilience.CodeOf(c.err), "%v", c.err)
		require.Equal(t, c.http, resilience.CodeOf(c.err).Status(), "%v", c.err)
	}
}

// Only the request's context tells its own time from that of a dependency.
func TestCodeInTellsTheRequestsTimeFromADependencys(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	require.Equal(t, resilience.CodeDeadlineExceeded, resilience.CodeIn(over, fmt.Errorf("charge: %w", context.DeadlineExceeded)))
	require.Equal(t, resilience.CodeDeadlineExceeded, resilience.CodeIn(over, context.Canceled))
	require.Equal(t, resilience.CodeDependencyUnavailable, resilience.CodeIn(over, circuitbreaker.ErrOpen))
	require.Equal(t, resilience.CodeDependencyUnavailable, resilience.CodeIn(t.Context(), context.DeadlineExceeded))
	require.Equal(t, resilience.CodeNone, resilience.CodeIn(over, nil))
	require.Equal(t, 504, resilience.CodeDeadlineExceeded.Status())
}
